"""The child's side of supervision: `python -m headrace.pipeline.child` is what a supervisor starts.

The parent writes one JSON line to standard input (name, target, arguments); later lines are commands. The child
reports JSON lines on a pipe of its own, so that anything may print to standard output. It ignores SIGINT (a terminal
sends that to the whole group; the parent decides), and turns SIGTERM into `Channel.stopping`.

A child never outlives its parent: standard input closes when the parent dies, and on Linux the kernel kills the child
too, even while native code keeps Python from noticing.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, TextIO

from headrace.schemas.errors import EXIT_FAILED, HeadraceError

REPORT_FD_VARIABLE = "HEADRACE_REPORT_FD"
_PR_SET_PDEATHSIG = 1


class Channel:
    """What a stage process sees of its parent."""

    def __init__(self, reports: TextIO) -> None:
        self.stopping = threading.Event()
        self.commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._reports = reports
        self._lock = threading.Lock()

    def hold_stop(self) -> None:
        """Let SIGTERM wait until `catch_stop` is called again."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def catch_stop(self) -> None:
        """Let SIGTERM set `stopping`. To be called again after a library has put handlers of its own in place."""
        signal.signal(signal.SIGTERM, lambda *_: self.stopping.set())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # the parent spawned us with it blocked

    def report(self, event: dict[str, Any]) -> None:
        """Send one JSON object to the parent."""
        with self._lock:
            self._reports.write(json.dumps(event) + "\n")
            self._reports.flush()


def resolve(target: str) -> Callable[[dict[str, Any], Channel], None]:
    """Import `package.module:function`."""
    module, _, name = target.partition(":")
    function: Callable[[dict[str, Any], Channel], None] = getattr(importlib.import_module(module), name)
    return function


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGKILL when the parent dies; a parent that is dead already is noticed too."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(EXIT_FAILED)


def _follow_parent(channel: Channel) -> None:
    """Pass commands on; leave at once when the parent is gone, for nobody would read what is done from here on."""
    for line in sys.stdin:
        channel.commands.put(json.loads(line))
    os._exit(EXIT_FAILED)


def main() -> int:
    """Run the target; report a failure with its traceback. Returns the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    order = json.loads(sys.stdin.readline())
    die_with_parent(int(order["parent"]))
    reports_fd = int(os.environ.pop(REPORT_FD_VARIABLE))
    os.set_inheritable(reports_fd, False)  # the end of this pipe is our end, not that of whatever we start
    channel = Channel(os.fdopen(reports_fd, "w"))
    channel.catch_stop()
    threading.Thread(target=_follow_parent, args=(channel,), name="parent", daemon=True).start()
    try:
        resolve(order["target"])(order["args"], channel)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent must hear of it
        code = error.exit_code if isinstance(error, HeadraceError) else EXIT_FAILED
        known = isinstance(error, HeadraceError)
        channel.report(
            {
                "event": "failed",
                "known": known,
                "message": str(error) if known else f"{type(error).__name__}: {error}",
                "traceback": traceback.format_exc(),
                "exit_code": code,
            }
        )
        return code
    return 0


if __name__ == "__main__":
    # Threads of libraries (a broker client's, a framework's) must not hold back the end that the parent waits for.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
