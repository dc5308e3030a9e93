"""A kill at any moment of saving leaves a checkpoint that is usable, and a ledger that is whole (Paddle#26348)."""

from __future__ import annotations

import functools
import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.schemas.record import Origin
from headrace.trainer.checkpoint import prune, publish, published_steps
from headrace.trainer.checkpoint_load import load_latest
from headrace.trainer.checkpoint_store import Store, open_store
from headrace.trainer.ledger import LedgerTables
from headrace.trainer.ledger_read import Ledger
from tests.unit.trainer.checkpoint_samples import DyingStore, Killed, assert_same, checkpoint, memory_store, noted

STEPS = (10, 20, 30, 40)
KEEP = 2


def ledger_of(step: int) -> LedgerTables:
    origins = [[Origin("orders", lane, step * 10 + row) for row in range(3)] for lane in range(2)]
    return noted({step: {lane: [origins[lane]] for lane in range(2)}}, 2)


def save(store: Store, step: int, parent: int | None) -> None:
    publish(store, checkpoint(step, parent, ledger_of(step)))
    prune(store, KEEP)


def go_on(store: Store) -> None:
    """What a trainer does: resume from the newest checkpoint, and save the steps that are still to come."""
    newest = load_latest(store, mend=True)
    parent = None if newest is None else newest.step
    if newest is not None:
        assert_same(newest, checkpoint(newest.step, newest.parent))
    for step in STEPS:
        if parent is None or step > parent:
            save(store, step, parent)
            parent = step


@functools.cache
def expected_hash() -> str:
    store = memory_store()
    go_on(store)
    return Ledger.open(store).hash()


def assert_finished(store: Store) -> None:
    ledger = Ledger.open(store)
    assert tuple(manifest.step for manifest in ledger.chain) == STEPS
    assert ledger.hash() == expected_hash()
    assert_same(load_latest(store, mend=False), checkpoint(40, 30))


@pytest.mark.parametrize("half", [False, True], ids=["before", "half-done"])
@pytest.mark.parametrize("kind", ["local", "object"])
def test_killed_at_every_change_of_the_store(tmp_path: Path, kind: str, half: bool) -> None:
    for at in itertools.count():
        store = open_store(str(tmp_path / str(at)), "orders", "main") if kind == "local" else memory_store()
        save(store, 10, None)
        save(store, 20, 10)
        dying = DyingStore(store, at, half=half)
        try:
            save(dying, 30, 20)
            save(dying, 40, 30)
        except Killed:
            newest = load_latest(store, mend=True)
            assert newest is not None
            assert newest.step in {20, 30, 40}
            go_on(store)
            assert_finished(store)
        else:
            assert at >= dying.changes > 20
            return


@pytest.mark.parametrize("kind", ["local", "object"])
def test_killed_again_and_again_while_resuming(tmp_path: Path, kind: str) -> None:
    """Every life gets one change further than the one before; resuming itself is killed too."""
    store = open_store(str(tmp_path), "orders", "main") if kind == "local" else memory_store()
    for life in itertools.count():
        try:
            go_on(DyingStore(store, life, half=life % 2 == 1))
        except Killed:
            continue
        break
    assert life > 10
    assert_finished(store)


_LIFE = """
import os, signal, sys
from tests.unit.trainer import test_checkpoint_killed as here
from tests.unit.trainer.checkpoint_samples import DyingStore

class ByTheKernel(BaseException):
    def __init__(self):
        os.kill(os.getpid(), signal.SIGKILL)

store = here.open_store(sys.argv[1], "orders", "main")
here.go_on(DyingStore(store, int(sys.argv[2]), half=int(sys.argv[2]) % 2 == 1, die=ByTheKernel))
"""


def test_killed_by_sigkill(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    codes = []
    for at in (3, 13, 18, 31, 1000):
        command = [sys.executable, "-c", _LIFE, str(tmp_path), str(at)]
        codes.append(subprocess.run(command, cwd=root, check=False).returncode)
        store = open_store(str(tmp_path), "orders", "main")
        newest = load_latest(store, mend=False)
        if published_steps(store):
            assert newest is not None
            assert_same(newest, checkpoint(newest.step, newest.parent))
    assert codes == [-9, -9, -9, -9, 0]
    assert_finished(store)
