"""The whole configuration: the stages' own models put together, loaded from YAML, and defaults that depend on others.

Only this package sees a `Config`; everything below takes the parts that it uses. `load` does it in one go: read the
document, check it, fill in what follows from other keys (once, so that nobody derives a topic's name a second time).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError

from headrace import faults, keys
from headrace.document import ConfigError, Document, KeyPath, parse, read
from headrace.ingest.config import IngestConfig, TokenizerConfig
from headrace.pipeline import names
from headrace.pipeline.config import BrokerConfig, MetricsConfig, TextConfig, TokensConfig
from headrace.schemas.settings import Settings
from headrace.trainer.config import (
    CheckpointConfig,
    ClassificationTask,
    EvaluateConfig,
    MaskedLmTask,
    StopSteps,
    TrainConfig,
)
from headrace.trainer.device import visible_gpus
from headrace.trainer.other_run import names_run

_SECRET_KEY = re.compile(r"password|secret|token|key", re.IGNORECASE)
_ADDRESS = re.compile(r"^(?!file:)[a-z][a-z0-9+.-]*://", re.IGNORECASE)

#: The sections that each stage uses.
INGEST_SECTIONS = frozenset({"text", "tokenizer", "tokens", "ingest"})
TRAINER_SECTIONS = frozenset({"tokens", "train", "evaluate", "checkpoint"})


class Config(BrokerConfig):
    """Everything that one file says."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")
    """Names the work: topics, consumer groups and checkpoints are called after it."""
    text: TextConfig = TextConfig()
    """Where the text comes from."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """How texts become ids."""
    tokens: TokensConfig = TokensConfig()
    """The shared queue of token batches between ingest and trainer."""
    ingest: IngestConfig = IngestConfig()
    """The ingest stage: text to token batches."""
    train: TrainConfig | None = None
    """The trainer stage: token batches to model. A file without it can publish and ingest."""
    evaluate: EvaluateConfig = EvaluateConfig()
    """Evaluation beside training."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Checkpoints of a run."""
    metrics: MetricsConfig = MetricsConfig()
    """Where metrics are exported."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes, where the task has some."""
        return self.train.task.labels if self.train and isinstance(self.train.task, ClassificationTask) else ()

    @property
    def run(self) -> str:
        return self.train.run if self.train else "main"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration, where it comes from, and which of its values may not be shown."""

    config: Config = field(repr=False)
    file: Path
    secrets: dict[KeyPath, str] = field(default_factory=dict, repr=False)

    def shown(self) -> str:
        """The effective configuration as YAML, secrets masked."""
        values = self.config.model_dump(mode="json")
        ordered = {"name": values.pop("name"), **values}
        return yaml.safe_dump(self._mask(ordered, ()), allow_unicode=True, sort_keys=False, width=120)

    def _mask(self, value: Any, path: KeyPath) -> Any:
        if isinstance(value, dict):
            return {key: self._mask(inner, (*path, key)) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._mask(inner, (*path, index)) for index, inner in enumerate(value)]
        private = path[:1] == ("kafka",) and any(_SECRET_KEY.search(str(part)) for part in path[1:])
        outside = path in self.secrets or (isinstance(value, str) and value in self.secrets.values())
        return "***" if value is not None and (private or outside) else value


def load(file: Path, overrides: Sequence[str] = ()) -> Loaded:
    """Read, check and complete the configuration. Raises ConfigError with one line per fault."""
    document = read(file, overrides)
    return Loaded(_complete(_check(document)), file, document.secrets)


def loads(text: str, name: str = "configuration", overrides: Sequence[str] = ()) -> Config:
    """Like `load`, from text."""
    return _complete(_check(parse(text, name, overrides)))


def require_train(config: Config) -> TrainConfig:
    """The `train` section. Raises ConfigError where there is none."""
    if config.train is None:
        raise ConfigError(["train is missing: add a train section with a model and a task (docs/configuration.md)"])
    return config.train


def unsupported(config: Config, sections: Collection[str] | None = None) -> list[str]:
    """What the configuration asks for and this version cannot do yet, one line per key: what works today.

    `sections` leaves out what stands in other sections: ingest need not refuse what only the trainer cannot do.
    """
    return [
        f"{key}: {message}"
        for key, message in (*_unsupported_ingest(config), *_unsupported_train(config))
        if sections is None or key.split(".")[0] in sections
    ]


def refuse_unsupported(config: Config, sections: Collection[str]) -> None:
    found = unsupported(config, sections)
    if found:
        raise ConfigError(found)


def _unsupported_ingest(config: Config) -> Iterator[tuple[str, str]]:
    if config.ingest.interleave != IngestConfig.model_fields["interleave"].default:
        yield "ingest.interleave", "splits are not read yet: remove the key; texts published as messages work"
    for address in config.text.files:
        if _ADDRESS.match(address):
            yield "text.files", f"{address!r} is not local, and stores are not read yet: name local files"
            break


def _unsupported_train(config: Config) -> Iterator[tuple[str, str]]:
    train = config.train
    if train is None:
        return
    if train.precision in {"bf16", "fp16"} and not visible_gpus():
        yield "train.precision", f"{train.precision} needs a GPU, and there is none here: use fp32 or auto"
    optimizer = train.optimizer
    if optimizer.total_steps or optimizer.total_tokens or isinstance(train.stop, StopSteps):
        return
    if train.stop == "never" and optimizer.schedule in {"linear", "cosine"}:
        yield "train.optimizer.schedule", f"{_NO_END}, or use constant"
    if train.stop in {"never", "end"} and optimizer.warmup_share > 0 and not optimizer.warmup_steps:
        yield "train.optimizer.warmup_share", f"{_NO_END}, or use warmup_steps or warmup_tokens"


_NO_END = "the run's length is not known: set train.optimizer.total_steps or total_tokens, or train.stop: {steps: N}"


@cache
def _keys() -> keys.Keys:
    return keys.by_path(Config)


@cache
def _boolean_keys() -> frozenset[str]:
    found = (key for group in _keys().values() for key in group if bool in keys.scalar_types(key.field.annotation))
    return frozenset(key.dotted for key in found)


def _check(document: Document) -> Config:
    words = faults.booleans(document, _keys(), _boolean_keys())
    found = list(words.values())
    try:
        config = Config.model_validate(document.values)
    except ValidationError as error:
        # From None: pydantic's error prints its input, and that may hold a secret.
        raise ConfigError([*found, *faults.lines(error, document, _keys(), set(words))]) from None
    if found:
        raise ConfigError(found)
    return config


def _complete(config: Config) -> Config:
    """Fill in the defaults that follow from other keys."""
    text = config.text.model_copy(update={"topic": config.text.topic or config.name})
    tokens = config.tokens.model_copy(update={"topic": config.tokens.topic or names.tokens_topic(config.name)})
    dead = config.ingest.dead_letters
    dead = dead.model_copy(update={"topic": dead.topic or names.dead_letters_topic(text.topic)})
    model = config.train.model if config.train and isinstance(config.train.model, str) else ""
    model = "" if names_run(model) else model
    by_words = config.train and isinstance(config.train.task, MaskedLmTask) and config.train.task.mask_unit == "word"
    words = config.tokenizer.words or ("jieba" if by_words else "")
    tokenizer = config.tokenizer.model_copy(update={"path": config.tokenizer.path or model, "words": words})
    ingest = config.ingest.model_copy(update={"dead_letters": dead})
    complete = {"text": text, "tokens": tokens, "tokenizer": tokenizer, "ingest": ingest}
    return config.model_copy(update=complete)


def sections() -> dict[str, type[Settings] | None]:
    """The top-level keys in the order that people should meet them, with the model of each section."""
    ordered = ["name", *(key for key in Config.model_fields if key != "name")]
    found = {key: keys.Key((key,), Config.model_fields[key]).sections for key in ordered}
    return {key: kinds[0] if kinds else None for key, kinds in found.items()}
