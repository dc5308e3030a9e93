"""Buckets of gradients, and the order in which they are summed. No Paddle.

All ranks must start the same sums in the same order, whatever data they had. So the buckets and their order follow
from the parameters alone, and a bucket starts only when all before it have: a gradient that is ready early waits.

    parameters   in the reverse of the order of the forward pass: the last layer's gradients are ready first
    bucket k     starts when buckets 0..k-1 have and all of its gradients are ready, or when the backward pass is over
"""

from __future__ import annotations

from collections.abc import Sequence

_FLOAT_BYTES = 4


def buckets(sizes: Sequence[int], bucket_bytes: int) -> list[range]:
    """Cut a sequence of element counts into runs of at most `bucket_bytes`; a larger one has a run of its own."""
    runs: list[range] = []
    start, filled = 0, 0
    for position, size in enumerate(sizes):
        if position > start and (filled + size) * _FLOAT_BYTES > bucket_bytes:
            runs.append(range(start, position))
            start, filled = position, 0
        filled += size
    if start < len(sizes):
        runs.append(range(start, len(sizes)))
    return runs


class Readiness:
    """Turns "this gradient is ready" into "these buckets start now". `begin` comes before every backward pass."""

    def __init__(self, runs: Sequence[range]) -> None:
        self._runs = runs
        self._bucket_of = {position: number for number, run in enumerate(runs) for position in run}
        self._ready: set[int] = set()
        self._missing: list[int] = []
        self._started = 0

    def begin(self) -> None:
        self._ready.clear()
        self._missing = [len(run) for run in self._runs]
        self._started = 0

    def too_late(self, position: int) -> bool:
        """Whether the bucket of this gradient has started already."""
        return self._bucket_of[position] < self._started

    def mark(self, position: int) -> range:
        """A gradient is ready; the numbers of the buckets that start now."""
        if position not in self._ready:
            self._ready.add(position)
            self._missing[self._bucket_of[position]] -= 1
        begun = self._started
        while self._started < len(self._runs) and not self._missing[self._started]:
            self._started += 1
        return range(begun, self._started)

    def rest(self) -> range:
        """The backward pass is over: every bucket that has not started does now."""
        begun, self._started = self._started, len(self._runs)
        return range(begun, self._started)
