"""`python -m tests.parity`: everything in texts.py, in every setting of sides.py. Ends with 1 where anything differs.

The two main settings are compared in full, the others at every SAMPLED-th row. Two processes, each with tokenizers of
its own; the reference gives 2 000 to 10 000 rows/s, so that all of it takes the better part of an hour.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

from tests.parity import texts
from tests.parity.sides import MAIN, SETTINGS
from tests.parity.work import Done, Work, compare

CHUNK = 2000
SAMPLED = 37
MAX_REPORTS = 40
PROGRESS_S = 5.0


def main() -> int:
    options = _options()
    texts.KINDS["lines"] = replace(texts.KINDS["lines"], size=lambda: options.lines)
    with tempfile.TemporaryDirectory() as scratch:
        work = list(plan(options.only, options.every, Path(scratch)))
        for setting, folder in {(item.setting, item.folder) for item in work}:
            SETTINGS[setting].write(folder)
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(options.processes, context) as pool:
            results = as_completed([pool.submit(compare, item) for item in work])
            try:
                done = list(_follow((result.result() for result in results), sum(len(item.numbers) for item in work)))
            finally:
                pool.shutdown(cancel_futures=True)
    _print_table(done)
    return 1 if any(item.different for item in done) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.parity", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lines", type=int, default=texts.LINES, help="generated lines (default: %(default)s)")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="settings and kinds whose names contain it"
    )
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th row of everything")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    for part in options.only:
        if not any(part in name for name in (*SETTINGS, *texts.KINDS)):
            parser.error(f"--only {part!r} is in none of: {'; '.join([*SETTINGS, *texts.KINDS])}")
    return options


def plan(only: list[str], every: int, scratch: Path) -> Iterator[Work]:
    """What is to be compared. Of several names in `only` each narrows settings or kinds, whichever it is found in."""
    settings = _chosen(list(SETTINGS), only)
    for kind in _chosen(list(texts.KINDS), only):
        size = texts.KINDS[kind].size()
        for setting in settings:
            numbers = range(0, size, every if setting in MAIN else every * SAMPLED)
            for begin in range(0, len(numbers), CHUNK):
                folder = scratch / str(list(SETTINGS).index(setting))
                yield Work(setting, kind, numbers[begin : begin + CHUNK], folder)


def _chosen(names: list[str], only: list[str]) -> list[str]:
    return [name for name in names if any(part in name for part in only)] or names


def _follow(results: Iterator[Done], total: int) -> Iterator[Done]:
    """Say how far it is, now and then, and what differs at once, each minimal case one time."""
    began = told = time.monotonic()
    rows = different = 0
    reported: set[tuple[str, str, str | None]] = set()
    for done in results:
        yield done
        rows += len(done.work.numbers)
        different += done.different
        for report in done.reports:
            case = (report.setting, report.row.text, report.row.pair)
            if case not in reported and len(reported) < MAX_REPORTS:
                reported.add(case)
                print(report, flush=True)
        now = time.monotonic()
        if now - told > PROGRESS_S or rows == total:
            told = now
            print(f"{rows:,} of {total:,}, {different:,} differ, {rows / (now - began):,.0f} rows/s", flush=True)


def _print_table(done: list[Done]) -> None:
    rows, different, took_s = Counter[tuple[str, str]](), Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for item in done:
        key = (item.work.setting, item.work.kind)
        rows[key] += len(item.work.numbers)
        different[key] += item.different
        took_s[key] += item.took_s  # type: ignore[assignment]
    print(f"\n{'setting':<32}{'kind':<18}{'rows':>12}{'differ':>10}{'seconds':>10}")
    for key in sorted(rows):
        setting, kind = key
        print(f"{setting:<32}{kind:<18}{rows[key]:>12,}{different[key]:>10,}{took_s[key]:>10.1f}")
    print(f"{'all':<50}{rows.total():>12,}{different.total():>10,}{took_s.total():>10.1f}")


if __name__ == "__main__":
    sys.exit(main())
