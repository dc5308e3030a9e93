"""A topic of texts with labels, and what a training loop that is killed now and then must have trained in the end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from headrace.pipeline.local import LocalBroker
from headrace.trainer.token_stream import TokenStreamBase
from tests.unit.trainer.made_up import publish, rows_of, texts

TOPIC = "demo.tokens"
LABELS = ("a", "b", "c")
_SIZES = {0: 31, 1: 0, 2: 17}  # token batches by lane


class Killed(BaseException):
    """Ends a loop where it stands; nothing may catch it."""


def example(name: str) -> ModuleType:
    """A file of examples/, which is no package."""
    path = Path(__file__).parents[3] / "examples" / f"{name}.py"
    spec = util.spec_from_file_location(f"examples_{name}", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def topic(folder: Path) -> str:
    """Publish the topic; returns its broker."""
    broker = LocalBroker(folder)
    broker.create(TOPIC, len(_SIZES))
    publish(
        broker,
        TOPIC,
        {
            lane: [
                rows_of(
                    texts(5, 100 * lane + number), partition=lane, first_offset=5 * number,
                    labels=[[LABELS[(lane + number + row) % 3]] for row in range(5)],
                )
                for number in range(count)
            ]
            for lane, count in _SIZES.items()
        },
    )  # fmt: skip
    broker.close()
    return f"local:{folder}"


def stream(address: str, make: Callable[..., Any] = TokenStreamBase) -> Any:
    return make(address, TOPIC, 128, labels=LABELS, window_tokens=600, seed=7, stop="end", flush_s=0.01)


def rows(batch: dict[str, Any]) -> list[list[int]]:
    """The texts of a micro-batch, as lists of ids."""
    lengths = np.asarray(batch["attention_mask"]).sum(axis=1)
    return [ids[:length].tolist() for ids, length in zip(np.asarray(batch["input_ids"]), lengths, strict=True)]


def all_texts() -> list[list[int]]:
    return sorted(
        ids for lane, count in _SIZES.items() for number in range(count) for ids in texts(5, 100 * lane + number)
    )


def lives(live: Callable[[Callable[[int, dict[str, Any]], None]], Any], every: int) -> tuple[Any, list[list[int]]]:
    """Run a loop again and again, killed after every `every` steps, until it ends by itself.

    Returns what the last life gave, and the texts whose gradient is in the weights: a step that is done again after a
    kill takes the place of the lost one.
    """
    trained: dict[int, list[list[int]]] = {}
    for _ in range(100):
        begun: list[int] = []

        def after_step(step: int, batch: dict[str, Any], begun: list[int] = begun) -> None:
            begun.append(step)
            for lost in [later for later in trained if later > step]:
                del trained[lost]
            trained[step] = rows(batch)
            if len(begun) == every:
                raise Killed

        try:
            result = live(after_step)
        except Killed:
            continue
        return result, sorted(ids for texts_ in trained.values() for ids in texts_)
    raise AssertionError("it never came to its end")
