"""Tasks by import path: what is right is used as it is, what is wrong is refused by the name of the setting."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.schemas.errors import UsageError
from headrace.trainer import custom
from headrace.trainer.config import CustomTask, TrainConfig
from headrace.trainer.run import task_functions
from headrace.trainer.window import MicroBatch, Window, cut
from tests.unit.trainer.made_up import META, PLAN, rows_of, texts

TASK = """
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

class Lengths:
    def __init__(self, scale=1.0):
        self.scale = scale
    def screen(self, rows):
        short = pc.less(pc.list_value_length(rows.column("input_ids")), 5)
        return pc.if_else(short, pa.scalar("too-short"), pa.scalar(None, pa.string()))
    def collate(self, micro, padded):
        return {**padded, "goals": padded["attention_mask"].sum(axis=1) * self.scale}, len(padded["input_ids"])
    def loss(self, network, arrays):
        return 0.0, 0.0

class NoScreen:
    def collate(self, micro, padded):
        return padded, np.int64(3)
    def loss(self, network, arrays):
        return 0.0, 0.0

class NoLoss:
    def collate(self, micro, padded):
        return padded, 1

class Wrong(Lengths):
    def screen(self, rows):
        return [True] * len(rows)
    def collate(self, micro, padded):
        return padded
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a module, and nothing left of it afterwards."""
    (tmp_path / "own_lengths.py").write_text(TASK)
    (tmp_path / "own_broken.py").write_text("import no_such_module_anywhere\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("own_lengths", "own_broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    custom._load.cache_clear()
    return tmp_path


def task(name: str, **options: object) -> CustomTask:
    return CustomTask(type=f"own_lengths:{name}", options=options)


def micro_batches(rows: pa.RecordBatch, found: CustomTask) -> list[MicroBatch]:
    return cut(Window.of(0, 9, [rows]), PLAN, 0, custom.screen(found))


def test_screen_collate_and_options_of_a_class_in_the_working_directory() -> None:
    config = TrainConfig.model_validate({"task": {"type": "own_lengths:Lengths", "options": {"scale": 2}}})
    collate, screen = task_functions(config, META)
    rows = rows_of([[1, 7, 2], [1, 7, 8, 9, 2], [1, 7, 8, 9, 9, 2]])
    assert screen(rows).to_pylist() == ["too-short", None, None]
    (micro,) = cut(Window.of(0, 9, [rows]), PLAN, 3, screen)
    batch = collate(micro)
    assert sorted(batch.arrays["goals"].tolist()) == [10, 12]
    assert (batch.count, batch.lane, batch.seed, batch.tokens) == (2, 3, micro.seed, 11)


def test_the_object_is_made_once() -> None:
    assert custom.load(task("Lengths", scale=2)) is custom.load(task("Lengths", scale=2))
    assert custom.load(task("Lengths", scale=2)) is not custom.load(task("Lengths", scale=3))


def test_without_a_screen_every_row_is_kept_and_the_count_may_be_of_numpy() -> None:
    found = task("NoScreen")
    micro = micro_batches(rows_of(texts(4)), found)[0]
    assert custom.screen(found)(micro.rows).null_count == micro.rows.num_rows
    assert custom.collate(found, 0)(micro).count == 3


def test_a_micro_batch_without_rows_is_not_shown_to_the_task() -> None:
    found = task("Wrong")
    (micro,) = cut(Window.of(0, 9, [rows_of([[]])]), PLAN, 0, lambda rows: pa.nulls(len(rows), pa.string()))
    assert custom.collate(found, 0)(micro).count == 0


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("own_lengts:Lengths", r"train.task.type: own_lengts cannot be imported .*own_lengts.*working directory, /"),
        ("own_broken:Lengths", "no_such_module_anywhere"),
        ("own_lengths:Length", "has no class 'Length': did you mean 'Lengths'"),
        ("own_lengths:np", "has no class 'np'"),
        ("own_lengths:NoLoss", "has no loss: add it"),
    ],
)
def test_what_is_not_there_is_named_with_the_cure(path: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        custom.load(CustomTask(type=path))


def test_options_that_the_class_does_not_take_are_refused() -> None:
    with pytest.raises(UsageError, match=r"train.task.options.*scal"):
        custom.load(task("Lengths", scal=2))


def test_what_screen_and_collate_return_is_checked() -> None:
    found = task("Wrong")
    with pytest.raises(UsageError, match="screen of own_lengths:Wrong must return a pyarrow string array"):
        custom.screen(found)(rows_of(texts(2)))
    (micro,) = cut(Window.of(0, 9, [rows_of(texts(2))]), PLAN, 0, lambda rows: pa.nulls(len(rows), pa.string()))
    with pytest.raises(UsageError, match=r"collate of own_lengths:Wrong must return .* not dict"):
        custom.collate(found, 0)(micro)


@pytest.mark.parametrize("path", ["a.b:", ":C", "a b:C", "a:C:D", "a..b:C"])
def test_a_path_that_cannot_be_one_is_refused_when_the_file_is_read(path: str) -> None:
    with pytest.raises(ValueError, match=r"write `package\.module:Class`"):
        CustomTask(type=path)


def test_padded_arrays_are_those_of_every_task() -> None:
    found = task("Lengths")
    micro = micro_batches(rows_of(texts(9)), found)[0]
    batch = custom.collate(found, 0)(micro)
    assert set(batch.arrays) == {"input_ids", "token_type_ids", "attention_mask", "goals"}
    assert np.array_equal(batch.arrays["goals"], batch.arrays["attention_mask"].sum(axis=1))
