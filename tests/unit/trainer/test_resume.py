"""Resume: what may change, what is recorded, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.schemas.errors import ResumeRefused
from headrace.schemas.settings import Settings
from headrace.trainer.batch import BatchShape
from headrace.trainer.checkpoint_state import TrainerState
from headrace.trainer.config import CheckpointConfig, EvaluateConfig, TrainConfig
from headrace.trainer.resume import RULES, Change, Rule, RunFacts, compare, rule_of, run_settings

TASK = {"type": "classification", "labels": ["a", "b"]}
SHAPE = BatchShape(lanes=8, accumulate=2, micro_tokens=4096)


def settings(
    *, facts: dict[str, Any] | None = None, train: dict[str, Any] | None = None, **others: Any
) -> dict[str, Any]:
    known: dict[str, Any] = {
        "tokens_topic": "orders.tokens", "tokens_topic_id": "id", "shape": SHAPE, "fingerprint": "f1", **(facts or {})
    }  # fmt: skip
    return run_settings(
        RunFacts(**known),
        train=TrainConfig.model_validate({"task": TASK, "model": "ernie", **(train or {})}),
        evaluate=EvaluateConfig.model_validate(others.get("evaluate", {})),
        checkpoint=CheckpointConfig.model_validate(others.get("checkpoint", {})),
    )


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("train.seed", {"train": {"seed": 7}}),
        ("train.batch.tokens", {"train": {"batch": {"tokens": 128}}}),
        ("train.batch.micro_tokens", {"train": {"batch": {"micro_tokens": 128}}}),
        ("train.window_tokens", {"train": {"window_tokens": 128}}),
        ("train.task.labels", {"train": {"task": {**TASK, "labels": ["b", "a"]}}}),
        ("train.task.type", {"train": {"task": {"type": "masked-lm"}}}),
        ("train.model", {"train": {"model": {"hidden_size": 8}}}),
        ("evaluate.hold_out_share", {"evaluate": {"hold_out_share": 0.1}}),
        ("tokenizer.fingerprint", {"facts": {"fingerprint": "f2"}}),
        ("tokens.lanes", {"facts": {"shape": BatchShape(4, 2, 4096)}}),
        ("batch.accumulate", {"facts": {"shape": BatchShape(8, 3, 4096)}}),
        ("batch.micro_tokens", {"facts": {"shape": BatchShape(8, 2, 2048)}}),
        ("tokens.topic_id", {"facts": {"tokens_topic_id": "made again"}}),
    ],
)
def test_refused_by_name_with_both_values_and_the_cure(name: str, changed: dict[str, Any]) -> None:
    stored, today = settings(), settings(**changed)
    with pytest.raises(ResumeRefused) as refused:
        compare(stored, today)
    message = str(refused.value)
    assert str(Change(name, stored.get(name), today.get(name))) in message
    assert "another `train.run`" in message


def test_everything_that_is_refused_is_named_at_once() -> None:
    with pytest.raises(ResumeRefused, match=r"(?s)train\.seed.*train\.window_tokens"):
        compare(settings(), settings(train={"seed": 7, "window_tokens": 128}))


@pytest.mark.parametrize(
    "changed",
    [
        {"train": {"batch": {"flush_s": 1, "min_tokens": 5}, "stall_s": 1, "restarts": 0}},
        {"checkpoint": {"root": "elsewhere", "every_steps": 5, "every_s": 1, "keep": 9}},
        {"evaluate": {"data": "other.jsonl", "every_steps": 3, "hold_out_rows": 5}},
        {},
    ],
)
def test_waits_and_cadence_are_free(changed: dict[str, Any]) -> None:
    assert compare(settings(), settings(**changed)) == ()


def test_learning_rate_schedule_and_stop_are_recorded() -> None:
    train = {"optimizer": {"learning_rate": 1e-3, "schedule": "linear"}, "stop": {"steps": 5}, "precision": "bf16"}
    changes = compare(settings(), settings(train=train))
    names = ["train.optimizer.learning_rate", "train.optimizer.schedule", "train.precision", "train.stop"]
    assert [change.name for change in changes] == names
    assert str(changes[0]) == "train.optimizer.learning_rate: 2e-05 in the checkpoint, 0.001 now"
    stored = tuple(change.to_json(30) for change in changes)
    state = TrainerState(30, {}, settings=settings(train=train), changes=stored)
    again = TrainerState.from_json(state.to_json(), "here")
    assert again.changes == stored
    assert compare(again.settings, settings(train=train)) == ()


def test_a_setting_without_a_rule_is_refused_and_one_that_the_checkpoint_lacks_is_recorded() -> None:
    with pytest.raises(ResumeRefused, match=r"train\.forgotten"):
        compare({"train.forgotten": 1}, {"train.forgotten": 2})
    assert compare({}, {"train.forgotten": 2}) == (Change("train.forgotten", None, 2),)


def leaves(prefix: str, kind: type[Settings]) -> set[str]:
    return {f"{prefix}.{name}" for name in kind.model_fields}


def test_every_setting_of_the_trainer_has_a_rule_of_its_own() -> None:
    for name in leaves("train", TrainConfig) - {"train.batch"}:
        assert name in RULES, name
    for name in leaves("evaluate", EvaluateConfig) | leaves("checkpoint", CheckpointConfig):
        assert rule_of(name) is Rule.FREE or name in RULES
    assert all(rule_of(name) is RULES[name] for name in RULES)
