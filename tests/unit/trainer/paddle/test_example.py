"""The task of one's own in examples/ trains as it stands."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headrace.config import load
from headrace.trainer import custom, step
from headrace.trainer.distributed import Ranks
from headrace.trainer.model import build
from headrace.trainer.run import task_functions
from headrace.trainer.window import Window, cut
from tests.unit.trainer.made_up import META, PLAN, VOCAB, rows_of

EXAMPLES = Path(__file__).parents[4] / "examples"


def test_the_example_learns_how_many_stars_a_text_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "stars", raising=False)
    custom._load.cache_clear()
    config = load(EXAMPLES / "stars.yaml").config.train
    assert config is not None
    assert isinstance(config.model, dict)
    small = config.revised(model={**config.model, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64})
    collate, screen = task_functions(small, META)
    words = [[1, 10 + number % 6, 50 + number, 2] for number in range(60)]
    labels = [[str(number % 6)] for number in range(60)]
    rows = rows_of([*words, [1, 9, 2], [1, 9, 2], [1, 9, 2]], labels=[*labels, ["6"], [], ["1", "2"]])
    assert screen(rows).to_pylist() == [None] * 60 + ["no-stars"] * 3
    batches = [collate(micro) for micro in cut(Window.of(0, 9, [rows]), PLAN, 0, screen)]
    learner = step.create(build(small.task, small.model, VOCAB, META.special_ids["pad"], small.seed), small, Ranks())
    before = learner.evaluate(batches)
    for _ in range(60):
        learner.step(batches, 60, 3e-3)
    after = learner.evaluate(batches)
    assert before.mean_loss > 0.1
    assert after.mean_loss < 0.005
    assert after.accuracy > 0.7 > before.accuracy


def test_the_page_on_tasks_shows_the_example_as_it_is() -> None:
    page = (EXAMPLES.parent / "docs" / "tasks.md").read_text()
    assert f"```python\n{(EXAMPLES / 'stars.py').read_text()}```" in page
