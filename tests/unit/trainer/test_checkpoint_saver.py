"""Saving in the background: one at a time, and no failure goes unseen."""

from __future__ import annotations

import threading

import pytest

from headrace.schemas.errors import Stop, StoreAway
from headrace.trainer.checkpoint import published_steps
from headrace.trainer.checkpoint_saver import Saver
from tests.unit.trainer.checkpoint_samples import DyingStore, checkpoint, memory_store


class SlowStore(DyingStore):
    """Writes only after it was told to."""

    def __init__(self, store) -> None:  # type: ignore[no-untyped-def]
        super().__init__(store, -1, half=False)
        self.go = threading.Event()
        self.writing = threading.Event()

    def write(self, folder, name, chunks) -> None:  # type: ignore[no-untyped-def]
        self.writing.set()
        self.go.wait()
        super().write(folder, name, chunks)


def test_training_goes_on_while_a_checkpoint_is_written() -> None:
    store = SlowStore(memory_store())
    saver = Saver(store, keep=2)
    saver.save(checkpoint(10, None))
    store.writing.wait()
    assert saver.busy
    assert saver.published is None
    store.go.set()
    saver.close()
    assert not saver.busy
    assert saver.published is not None
    assert saver.published.step == 10


def test_saves_follow_each_other_and_prune() -> None:
    store = memory_store()
    saver = Saver(store, keep=1, clock=lambda: 5.0)
    for parent, step in ((None, 10), (10, 20), (20, 30)):
        saver.save(checkpoint(step, parent))
    saver.close()
    assert published_steps(store) == [10, 20, 30]
    assert saver.published is not None
    assert saver.published.created_ms == 5000
    assert "pruned" in store.files("step-0000000020")


def test_a_failed_save_is_raised_by_every_call_after_it() -> None:
    saver = Saver(memory_store(), keep=1)
    saver.save(checkpoint(20, 10))  # its parent was never published
    with pytest.raises(Stop, match="another trainer"):
        saver.wait()
    with pytest.raises(Stop, match="another trainer"):
        saver.check()
    with pytest.raises(Stop, match="another trainer"):
        saver.save(checkpoint(30, None))
    with pytest.raises(Stop, match="another trainer"):
        saver.close()


@pytest.mark.parametrize("half", [False, True])
def test_a_store_that_is_away_for_a_moment_is_asked_again(half: bool) -> None:
    store = memory_store()
    for at in range(14):
        store = memory_store()
        dying = DyingStore(store, at, half=half, die=StoreAway)
        saver = Saver(dying, keep=2, pauses_s=(0.0, 0.0))
        saver.save(checkpoint(10, None))
        saver.close()
        assert published_steps(store) == [10]


def test_an_answer_that_was_lost_is_not_taken_for_another_trainer() -> None:
    class LosesTheAnswer(DyingStore):
        def write(self, folder, name, chunks) -> None:  # type: ignore[no-untyped-def]
            super().write(folder, name, chunks)
            if name == "manifest.json":
                raise StoreAway("no answer")

    saver = Saver(LosesTheAnswer(memory_store(), -1, half=False), keep=2, pauses_s=(0.0,))
    saver.save(checkpoint(10, None))
    saver.close()
    assert saver.published is not None
    assert saver.published.step == 10


def test_a_store_that_stays_away_fails_the_save() -> None:
    class Away(DyingStore):
        def write(self, folder, name, chunks) -> None:  # type: ignore[no-untyped-def]
            raise StoreAway("no answer")

    saver = Saver(Away(memory_store(), -1, half=False), keep=2, pauses_s=(0.0, 0.0))
    saver.save(checkpoint(10, None))
    with pytest.raises(StoreAway):
        saver.close()
