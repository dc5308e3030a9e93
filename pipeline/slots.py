"""Slots: numbers that tell apart the workers of one name on one machine.

A worker's transactions run under NAME.ingest.HOST.SLOT. A stable name lets a restarted worker end its predecessor's
transaction at once, and two workers of the same name would fence each other for ever: so a slot belongs to one process
at a time. It is claimed with a file lock, which the kernel gives back when the process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
import tempfile
from pathlib import Path
from typing import IO


class Slots:
    """`count` slots of a `name` at a broker, from `claim` to `release` or the end of the process."""

    def __init__(self, broker: str, name: str, count: int, folder: Path | None = None) -> None:
        self._name = f"{name}-{hashlib.sha256(broker.encode()).hexdigest()[:16]}"
        self._count = count
        self._folder = folder
        self._held: dict[int, IO[bytes]] = {}

    def claim(self) -> tuple[int, ...]:
        """The lowest numbers that no living process has."""
        folder = self._folder or Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}" / "slots"
        folder.mkdir(parents=True, exist_ok=True)
        for slot in itertools.count():
            if len(self._held) == self._count:
                break
            file = (folder / f"{self._name}.{slot}").open("ab")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
            else:
                self._held[slot] = file
        return tuple(self._held)

    def release(self) -> None:
        for file in self._held.values():
            file.close()
        self._held.clear()
