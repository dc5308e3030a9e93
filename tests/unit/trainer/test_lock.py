"""One trainer per run: the second one is told who the first is, and a dead one blocks nobody."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.schemas.errors import Stop
from headrace.trainer.checkpoint_load import load_latest
from headrace.trainer.checkpoint_store import open_store
from headrace.trainer.lock import LOCK_FILE, RunLock
from tests.unit.trainer.checkpoint_samples import memory_store

_HOLD = """
import sys
from headrace.trainer.checkpoint_store import open_store
from headrace.trainer.lock import RunLock

with RunLock(open_store(sys.argv[1], "orders", "main")):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_trainer_is_refused_by_pid_and_host_until_the_first_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _HOLD, str(tmp_path)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    lock = RunLock(open_store(str(tmp_path), "orders", "main"))
    with pytest.raises(Stop, match=rf"pid {holder.pid} on .*train\.run"):
        lock.acquire()
    assert not lock.held
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    with lock:
        assert lock.held
        assert f"pid {os.getpid()} on" in (tmp_path / "orders" / "main" / LOCK_FILE).read_text()


def test_released_lock_can_be_taken_again_and_other_runs_are_free(tmp_path: Path) -> None:
    main = open_store(str(tmp_path), "orders", "main")
    other = open_store(str(tmp_path), "orders", "other")
    with RunLock(main), RunLock(other), pytest.raises(Stop):
        RunLock(main).acquire()
    with RunLock(main):
        pass


def test_a_spawned_child_that_outlives_the_trainer_does_not_hold_its_lock(tmp_path: Path) -> None:
    store = open_store(str(tmp_path), "orders", "main")
    lock = RunLock(store)
    lock.acquire()
    code = "print('here', flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()  # files are closed on exec a moment after the parent goes on: wait until it runs
        lock.release()
        with RunLock(store) as again:
            assert again.held
    finally:
        child.communicate(b"\n")


def test_the_lock_is_no_checkpoint(tmp_path: Path) -> None:
    store = open_store(str(tmp_path), "orders", "main")
    with RunLock(store):
        assert load_latest(store, mend=True) is None


def test_an_object_store_has_no_lock_and_does_not_block() -> None:
    store = memory_store()
    with RunLock(store) as first, RunLock(store) as second:
        assert not first.held
        assert not second.held
