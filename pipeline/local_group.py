"""Members of a consumer group on one machine, and which partitions each of them reads.

Everything is a file lock (flock) on a file in the group's folder. A lock dies with its process, so there is no
heartbeat and no clock:

- `seat-N` is held by one member for as long as it lives. A member takes the lowest free seat.
- `partition-P` is held by the member that reads partition P.

Each member looks for itself which seats are taken. With M members on P partitions, the member on the r-th taken seat
may hold P // M partitions, one more when r < P % M: the shares sum up to P. It gives up what it holds beyond its share
and takes what it finds free, and so all members reach the same end without talking. While they count differently a
partition may have no reader for a moment. That one has two is ruled out by the lock, but nothing rests on it: commits
compare and swap.

A member that is stopped (not dead) keeps its partitions. Cost of one look: a few µs a seat and a free partition.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
from pathlib import Path


class Membership:
    """One member of `group` on `topic`. Joins with its first `rebalance`."""

    def __init__(self, root: Path, group: str, topic: str) -> None:
        self.group = group
        self.topic = topic
        self._folder = root / "groups" / _file_name(group, topic)
        self._seat: tuple[int, int] | None = None  # its number, and the open file that holds its lock
        self._held: dict[int, int] = {}  # partition -> the open file that holds its lock

    @property
    def held(self) -> frozenset[int]:
        """Partitions that this member reads."""
        return frozenset(self._held)

    def rebalance(self, partitions: int) -> bool:
        """Give up partitions beyond this member's share and take free ones up to it; whether any of it happened."""
        before = self.held
        share = self._share(partitions)
        for partition in sorted(self._held)[share:]:
            os.close(self._held.pop(partition))
        for partition in range(partitions):
            if len(self._held) >= share:
                break
            if partition not in self._held:
                file = _try_lock(self._folder / f"partition-{partition}", fcntl.LOCK_EX)
                if file is not None:
                    self._held[partition] = file
        return self.held != before

    def leave(self) -> None:
        """Give up everything; the next `rebalance` joins again."""
        for file in self._held.values():
            os.close(file)
        self._held.clear()
        if self._seat is not None:
            os.close(self._seat[1])
        self._seat = None

    def _share(self, partitions: int) -> int:
        if self._seat is None:
            self._seat = self._sit_down()
        seat, _ = self._seat
        taken = self._taken_seats(seat)
        return partitions // len(taken) + (taken.index(seat) < partitions % len(taken))

    def _sit_down(self) -> tuple[int, int]:
        """Take the lowest free seat. Its number, and the open file that holds its lock."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for seat in itertools.count():
            file = _try_lock(self._folder / f"seat-{seat}", fcntl.LOCK_EX)
            if file is not None:
                return seat, file
        raise AssertionError  # count() does not end

    def _taken_seats(self, own: int) -> list[int]:
        """Seats that are held. Looking takes a shared lock, so that two who look do not see each other."""
        taken = [own]
        for seat in itertools.count():
            path = self._folder / f"seat-{seat}"
            if not path.exists():
                return sorted(taken)
            if seat == own:
                continue
            file = _try_lock(path, fcntl.LOCK_SH)
            if file is None:
                taken.append(seat)
            else:
                os.close(file)
        raise AssertionError  # count() does not end


def _file_name(group: str, topic: str) -> str:
    """Names may be long and hold any character, so the folder is named by their hash."""
    return hashlib.blake2b(f"{group}\0{topic}".encode(), digest_size=8).hexdigest()


def _try_lock(path: Path, how: int) -> int | None:
    """The open file that holds the lock, or None when somebody else does. Closing the file frees the lock."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file
