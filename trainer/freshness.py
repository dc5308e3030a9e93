"""Freshness: the time from publishing a record to the optimizer step that trained it.

Ages are counted in buckets whose bounds grow by 5 %, so a quantile is right within 5 %, ranks' counts simply add up,
and a run of any length takes the same memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

_GROWTH = 1.05
_LEAST_S = 1e-3


class Ages:
    """Counts of ages by bucket."""

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self.counts: Counter[int] = Counter({int(bucket): count for bucket, count in (counts or {}).items()})

    def add(self, ages_s: npt.NDArray[np.float64]) -> None:
        """Count ages, in seconds; clocks that disagree may make some negative, those count as zero."""
        numbers = np.ceil(np.log(np.maximum(ages_s, _LEAST_S) / _LEAST_S) / math.log(_GROWTH)).astype(np.int64)
        buckets, counts = np.unique(numbers, return_counts=True)
        self.counts.update(dict(zip(buckets.tolist(), counts.tolist(), strict=True)))

    def merge(self, other: Ages) -> None:
        self.counts.update(other.counts)

    def quantile_s(self, share: float) -> float | None:
        """The age that `share` of the records do not exceed; None before the first record."""
        total = self.counts.total()
        passed = 0
        for bucket in sorted(self.counts):
            passed += self.counts[bucket]
            if passed >= share * total:
                return _LEAST_S * _GROWTH**bucket
        return None
