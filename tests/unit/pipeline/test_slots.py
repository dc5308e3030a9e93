"""Workers of one name on one machine never share a slot, and a slot dies with its process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from headrace.pipeline.slots import Slots


def test_two_claims_never_share_a_slot(tmp_path: Path) -> None:
    first, second = Slots("local:a", "orders", 2, tmp_path), Slots("local:a", "orders", 3, tmp_path)
    assert first.claim() == (0, 1)
    assert second.claim() == (2, 3, 4)
    first.release()
    assert Slots("local:a", "orders", 1, tmp_path).claim() == (0,)


def test_names_and_brokers_do_not_meet(tmp_path: Path) -> None:
    apart = [Slots("local:a", "orders", 1, tmp_path), Slots("local:a", "news", 1, tmp_path)]
    apart.append(Slots("local:b", "orders", 1, tmp_path))
    assert [slots.claim() for slots in apart] == [(0,)] * 3


def test_a_killed_process_leaves_its_slots_free(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from headrace.pipeline.slots import Slots\n"
        "slots = Slots('local:a', 'orders', 2, pathlib.Path(sys.argv[1]))\n"
        "print(slots.claim(), flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "(0, 1)\n"
    mine = Slots("local:a", "orders", 1, tmp_path)
    assert mine.claim() == (2,)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert Slots("local:a", "orders", 2, tmp_path).claim() == (0, 1)
