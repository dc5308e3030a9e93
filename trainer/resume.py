"""Resume: which settings may differ from the checkpoint's, and which may not.

Pure. `run_settings` flattens everything that a run depends on to dotted names, a checkpoint stores them, and `compare`
holds today's against them. Three rules:

- free      does not change what is trained: ranks, workers, waits, cadence of checkpoints and evaluation
- recorded  changes the training on purpose, and cannot lose or repeat a record: learning rate, schedule, stop. Warned
            of, and kept in the checkpoint's `changes`
- refused   decides what a global batch is, or what the weights mean. Raised by name, all at once

Everything that cuts a window is refused, the seed included. So with one version of headrace the window that is open at
the checkpoint and all later ones are cut under one plan. The version of the cut is no setting: a newer headrace refuses
only where a window of the older cut is open (`window.cut`).

A setting that no rule names is refused when it differs: the safe side for one that somebody forgets to add. One that
the checkpoint does not have (an older headrace wrote it) is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from headrace.schemas.errors import ResumeRefused
from headrace.schemas.settings import Settings
from headrace.trainer.batch import BatchShape

_SHOWN_CHARS = 80


class Rule(Enum):
    FREE = "free"
    RECORDED = "recorded"
    REFUSED = "refused"


#: By dotted name; a name also stands for all names below it, and the longest that fits decides.
RULES: Mapping[str, Rule] = {
    "train.run": Rule.REFUSED,  # the folder is the run's, so it never differs
    "train.model": Rule.REFUSED,
    "train.task": Rule.REFUSED,
    "train.seed": Rule.REFUSED,
    "train.start": Rule.RECORDED,  # resolved when the run began; has no effect any more
    "train.stop": Rule.RECORDED,
    "train.passes": Rule.RECORDED,
    "train.batch.tokens": Rule.REFUSED,
    "train.batch.micro_tokens": Rule.REFUSED,
    "train.batch.pad_multiple": Rule.REFUSED,
    "train.batch.min_tokens": Rule.FREE,
    "train.batch.flush_s": Rule.FREE,
    "train.window_tokens": Rule.REFUSED,
    "train.optimizer": Rule.RECORDED,
    "train.precision": Rule.RECORDED,
    "train.amp_level": Rule.RECORDED,
    "train.recompute": Rule.FREE,  # the same gradients but for rounding
    "train.on_bad_loss": Rule.RECORDED,
    "train.spike_factor": Rule.RECORDED,
    "train.spike_steps": Rule.RECORDED,
    "train.most_skips": Rule.RECORDED,
    "train.communication": Rule.RECORDED,
    "train.communication.overlap": Rule.FREE,
    "train.sharding": Rule.FREE,
    "train.stall_s": Rule.FREE,
    "train.restarts": Rule.FREE,
    "train.balance_steps": Rule.FREE,
    "train.skew_warning": Rule.FREE,
    "train.visualdl": Rule.FREE,
    "evaluate": Rule.FREE,
    "evaluate.hold_out_share": Rule.REFUSED,
    "checkpoint": Rule.FREE,
    "tokens.topic": Rule.REFUSED,
    "tokens.topic_id": Rule.REFUSED,  # a topic that was deleted and made again has other records at the same offsets
    "tokens.lanes": Rule.REFUSED,
    "tokenizer": Rule.FREE,  # kept for those who serve the model; what decides ids is in the fingerprint
    "tokenizer.fingerprint": Rule.REFUSED,
    "batch.accumulate": Rule.REFUSED,
    "batch.micro_tokens": Rule.REFUSED,
}


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What defines a run and stands in no setting of the trainer."""

    tokens_topic: str
    tokens_topic_id: str
    shape: BatchShape
    fingerprint: str  # of the tokenizer
    tokenizer: Mapping[str, Any] = field(default_factory=dict)  # its settings, without its path


@dataclass(frozen=True, slots=True)
class Change:
    """A setting that differs from the checkpoint's. `stored` is None where the checkpoint does not have it."""

    name: str
    stored: Any
    today: Any

    def __str__(self) -> str:
        return f"{self.name}: {_shown(self.stored)} in the checkpoint, {_shown(self.today)} now"

    def to_json(self, step: int) -> dict[str, Any]:
        """For the checkpoint's `changes`: in force from the step after `step`."""
        return {"after_step": step, **asdict(self)}


def run_settings(facts: RunFacts, **parts: Settings) -> dict[str, Any]:
    """Everything that `compare` looks at, by dotted name: `run_settings(facts, train=…, evaluate=…, checkpoint=…)`."""
    settings: dict[str, Any] = {
        "tokens.topic": facts.tokens_topic,
        "tokens.topic_id": facts.tokens_topic_id,
        "tokens.lanes": facts.shape.lanes,
        **{f"tokenizer.{name}": value for name, value in facts.tokenizer.items()},
        "tokenizer.fingerprint": facts.fingerprint,
        "batch.accumulate": facts.shape.accumulate,
        "batch.micro_tokens": facts.shape.micro_tokens,
    }
    for prefix, part in parts.items():
        settings |= _flat(prefix, part)
    return settings


def _flat(prefix: str, part: Settings) -> dict[str, Any]:
    """Leaves of a settings model. What is no model (a list, a model's configuration) is one value."""
    leaves: dict[str, Any] = {}
    values = part.model_dump(mode="json")
    for name in type(part).model_fields:
        value = getattr(part, name)
        if isinstance(value, Settings) and f"{prefix}.{name}" not in _WHOLE:
            leaves |= _flat(f"{prefix}.{name}", value)
        else:
            leaves[f"{prefix}.{name}"] = values[name]
    return leaves


#: Shown and compared as one value: `never` and `{steps: 5}` are two values of one setting.
_WHOLE = frozenset({"train.start", "train.stop"})


def rule_of(name: str) -> Rule:
    """The rule of a setting."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        rule = RULES.get(".".join(parts[:length]))
        if rule is not None:
            return rule
    return Rule.REFUSED


def compare(stored: Mapping[str, Any], today: Mapping[str, Any]) -> tuple[Change, ...]:
    """What changed and is to be warned of and recorded. Raises ResumeRefused naming every setting that may not."""
    recorded: list[Change] = []
    refused: list[Change] = []
    for name in sorted(stored.keys() | today.keys()):
        change = Change(name, stored.get(name), today.get(name))
        if change.stored == change.today:
            continue
        rule = rule_of(name)
        if rule is Rule.REFUSED and name in stored:
            refused.append(change)
        elif rule is not Rule.FREE:
            recorded.append(change)
    if refused:
        listed = "\n".join(f"  {change}" for change in refused)
        raise ResumeRefused(
            f"the checkpoint was made with other settings, which decide what is trained:\n{listed}\n"
            "set them back, or set another `train.run` to begin a run of its own"
        )
    return tuple(recorded)


def _shown(value: Any) -> str:
    text = "not set" if value is None else repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
