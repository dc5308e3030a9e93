"""What the compiled tokenizer does a second, beside UTF-8 decoding and other tokenizers, on the same texts in one run.

`python -m bench.tokenizer_rate` prints a table, with `--json` one line. All but the two processes at the end runs in
one thread of one process, in alternating rounds; rates are medians, shares are medians of the rounds' shares.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench import contestants, tokenizer_texts

ROUNDS = 7
STARTS = 5
TWO_PASSES_S = 1.0
DECODING = "bytes.decode(), joined"
OURS = "headrace"
MIXED = "headrace, mixed text"
WORDS = "headrace, with words"

COLD_START = """
import sys, time
began = time.perf_counter()
import pyarrow as pa
from headrace.ingest.tokenizers import load
load(sys.argv[1], max_tokens=512).encode(pa.array(["第一个 text"]), None)
print(time.perf_counter() - began)
"""


def run(folder: Path, rounds: int) -> dict[str, Any]:
    """Every figure. `folder` is for the vocabulary."""
    texts = tokenizer_texts.chinese()
    mixed = tokenizer_texts.mixed(texts)
    tokenizer_texts.write_vocabulary(texts, folder)
    rates = contestants.measure(
        [
            *contestants.decoding(texts),
            contestants.ours(OURS, folder, texts),
            contestants.ours(MIXED, folder, mixed),
            contestants.ours(WORDS, folder, texts, words="jieba"),
            *contestants.others(folder, texts),
            contestants.jieba_cut(texts),
        ],
        rounds,
    )
    ours, decoding = rates[OURS], rates[DECODING]
    one, two = _processes(folder, rounds)
    return {
        "texts": len(texts),
        "bytes": ours.contestant.size,
        "rates": {
            name: {
                "texts_s": round(rate.texts_s),
                "mb_s": round(rate.mb_s, 2),
                "share_of_decoding": round(rate.share_of(decoding), 5),
            }
            for name, rate in rates.items()
        },
        "share_of_decoding": round(ours.share_of(decoding), 3),
        "mixed_not_chinese": round(tokenizer_texts.share_not_chinese(mixed), 3),
        "mixed_share_of_chinese": round(rates[MIXED].share_of(ours), 3),
        "words_times_jieba": round(rates[WORDS].texts_s / rates["jieba.lcut"].texts_s, 1),
        "one_process_texts_s": round(one),
        "two_processes_texts_s": round(two),
        "two_processes_times_one": round(two / one, 3),
        "cold_start_s": round(_cold_start(folder), 2),
    }


def _cold_start(folder: Path) -> float:
    """Seconds in a new process from its first import to its first ids, with the compiled code on disk."""
    command = [sys.executable, "-c", COLD_START, str(folder)]
    took_s = [float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(STARTS)]
    return statistics.median(took_s)


def _processes(folder: Path, rounds: int) -> tuple[float, float]:
    """Texts/s of one process while the other waits, and of two together, in turn."""
    with ExitStack() as stack:
        first, second = (stack.enter_context(_child(folder)) for _ in range(2))
        for child in (first, second):
            assert child.stdout is not None
            child.stdout.readline()  # it is ready
        rates = [(_together([first]), _together([first, second])) for _ in range(rounds)]
    ones, twos = zip(*rates, strict=True)
    return statistics.median(ones), statistics.median(twos)


def _child(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.tokenizer_rate", "--child", str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _together(children: list[subprocess.Popen[str]]) -> float:
    """Texts/s of all, from when the first begins until the last is done."""
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    done = [json.loads(child.stdout.readline()) for child in children if child.stdout is not None]
    return sum(one["texts"] for one in done) / (max(one["end"] for one in done) - min(one["begin"] for one in done))


def _serve(folder: Path) -> None:
    """The child: as many passes a line as take about a second."""
    one = contestants.ours(OURS, folder, tokenizer_texts.chinese())
    one.run()
    began = time.monotonic()
    one.run()
    passes = max(1, round(TWO_PASSES_S / (time.monotonic() - began)))
    print("ready", flush=True)
    for _ in sys.stdin:
        begin = time.monotonic()
        for _ in range(passes):
            one.run()
        print(json.dumps({"texts": passes * one.texts, "begin": begin, "end": time.monotonic()}), flush=True)


def _print_table(found: dict[str, Any]) -> None:
    print(f"{found['texts']:,} texts, {found['bytes']:,} bytes\n")
    print(f"{'':<28}{'texts/s':>12}{'MB/s':>10}{'of decoding':>14}")
    for name, rate in found["rates"].items():
        print(f"{name:<28}{rate['texts_s']:>12,}{rate['mb_s']:>10.1f}{rate['share_of_decoding']:>14.4f}")
    print(
        f"\nmixed text ({found['mixed_not_chinese']:.0%} not Chinese), share of MB/s: {found['mixed_share_of_chinese']}"
    )
    print(f"with words, times jieba.lcut: {found['words_times_jieba']}")
    print(f"two processes, times one: {found['two_processes_times_one']}")
    print(f"cold start: {found['cold_start_s']} s")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.tokenizer_rate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one line of JSON, no table")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread each
    if options.child:
        _serve(options.child)
        return
    with tempfile.TemporaryDirectory() as scratch:
        found = run(Path(scratch), options.rounds)
    if options.json:
        print(json.dumps({"bench": "tokenizer", **found}), flush=True)
    else:
        _print_table(found)


if __name__ == "__main__":
    main()
