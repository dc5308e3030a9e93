"""An ingest worker that is killed or frozen at one of its protocol calls: `python -m tests.integration.ingest_member`.

Reads one JSON line from standard input: the stage's arguments, the call, before or after it, and the signal that it
sends itself there. Says `ready` on standard output; reports follow. Ends with the test that started it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Any

from headrace.ingest import stage
from headrace.pipeline.broker import open_broker
from headrace.pipeline.child import Channel
from headrace.pipeline.topics import Broker
from tests.unit.ingest.pipe import Calls


class Struck:
    """A broker whose worker gets the signal."""

    def __init__(self, inner: Broker, how: dict[str, Any]) -> None:
        self._inner = inner
        self._how = how

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def worker(self, name: str, group: str, topic: str) -> Calls:
        inner = self._inner.worker(name, group, topic)
        number = signal.Signals[self._how["signal"]]
        return Calls(
            inner,
            die_at=self._how["at"],
            after=self._how["after"],
            strike=lambda: os.kill(os.getpid(), number),
            longest_wait_s=0.2,
        )


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def main() -> None:
    how = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    channel = Channel(sys.stdout)
    signal.signal(signal.SIGTERM, lambda *_: channel.stopping.set())
    print("ready", flush=True)
    if how["at"] is not None:
        stage.open_broker = lambda *given: Struck(open_broker(*given), how)  # type: ignore[assignment, return-value]
    stage.work(how["args"], channel)


if __name__ == "__main__":
    main()
