"""Which checkpoint an address means, and what is said of what its model has seen. Without Paddle."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.schemas.errors import Stop, UsageError
from headrace.trainer.checkpoint import folder_of
from headrace.trainer.config import ClassificationTask
from headrace.trainer.export import source
from headrace.trainer.export.seen import seen
from tests.unit.trainer.ledger_run import LANES, Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Checkpoints of step 3 and of a later one; every record of partition 0 is trained by then."""
    made = Run(tmp_path)
    made.ingest(made.publish(40))
    made.train(3)
    made.train(1000)
    return made


def test_a_checkpoint_and_a_run_are_found_by_their_folders(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "checkpoints" / "orders" / "main"
    newest = source.find(str(folder))
    assert (newest.name, newest.run) == ("orders", "main")
    assert newest.checkpoint.step > 3
    assert source.find(f"{folder / folder_of(3)}/").checkpoint.step == 3
    assert source.find(folder.as_uri()).checkpoint.step == newest.checkpoint.step
    monkeypatch.chdir(folder)
    assert source.find(".").checkpoint.step == newest.checkpoint.step
    assert source.find(folder_of(3)).checkpoint.step == 3


def test_what_is_no_checkpoint_is_named(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no checkpoint in"):
        source.find(str(tmp_path / "checkpoints" / "orders" / "other"))
    with pytest.raises(Stop, match="there is no checkpoint"):
        source.find(str(tmp_path / "checkpoints" / "orders" / "main" / folder_of(999)))
    with pytest.raises(UsageError, match="name ROOT/NAME/RUN"):
        source.find("/main")


def test_seen_counts_every_record_once(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "orders" / "main"
    found = seen(source.find(str(folder)))
    assert found["rows"] == {"trained": 40}
    assert found["topics"]["orders"]["partitions"] == {"0": {"offsets": [[0, 39]], "rows": {"trained": 40}}}
    assert set(found["cursors"]) == {str(lane) for lane in range(LANES)}
    earlier = seen(source.find(str(folder / folder_of(3))))
    assert 0 < earlier["rows"]["trained"] < 40


def test_task_and_tokenizer_come_from_the_settings_of_the_run() -> None:
    settings = {
        "train.task.type": "classification",
        "train.task.labels": ["a", "b"],
        "train.seed": 1,
        "tokenizer.max_tokens": 64,
        "tokenizer.fingerprint": "f",
    }
    assert source.task_of(settings) == ClassificationTask(type="classification", labels=("a", "b"))
    assert source.tokenizer_settings(settings) == {"max_tokens": 64}
