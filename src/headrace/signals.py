"""What SIGINT and SIGTERM mean to a verb that can finish: stop after what is under way."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stopping_on_signals(stopping: threading.Event) -> Iterator[None]:
    """The first SIGINT or SIGTERM sets `stopping`; a second SIGINT raises at once.

    After SIGINT the block ends with KeyboardInterrupt, so that the exit code says so; after SIGTERM it ends as usual.
    """
    interrupted = threading.Event()

    def stop(number: int, _: object) -> None:
        if number == signal.SIGINT:
            if interrupted.is_set():
                raise KeyboardInterrupt
            interrupted.set()
        stopping.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
        if interrupted.is_set():
            raise KeyboardInterrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
