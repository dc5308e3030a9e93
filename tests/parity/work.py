"""What a process of `python -m tests.parity` does: a chunk of rows at a time, with tokenizers of its own."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.parity.compare import Comparison, Difference
from tests.parity.texts import KINDS


@dataclass(frozen=True, slots=True)
class Work:
    """Rows of one kind to be compared in one setting, whose folder it is."""

    setting: str
    kind: str
    numbers: range
    folder: Path


@dataclass(frozen=True, slots=True)
class Done:
    """How many rows differ, and some of them, cut down."""

    work: Work
    different: int
    reports: list[Difference]
    took_s: float


def compare(work: Work) -> Done:
    comparison = _comparison(work.setting, work.folder)
    began = time.monotonic()
    row = KINDS[work.kind].row
    different, reports = comparison.run(work.kind, [(number, row(number)) for number in work.numbers])
    return Done(work, different, reports, time.monotonic() - began)


@cache
def _comparison(setting: str, folder: Path) -> Comparison:
    return Comparison(setting, folder)
