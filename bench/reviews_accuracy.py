"""Accuracy on the reviews: a small ERNIE from random weights, trained on the stream, scored on what it never saw.

The whole pipe as people run it: `headrace publish`, `headrace up`, `headrace report`, on a local broker, one rank on a
CPU. 2 layers, 128 wide, texts cut at 128 tokens, AdamW at 1e-3 without dropout, a linear schedule, 6 % held out. Two
passes are the reviews published twice: they fall on the same side, since the hash of the id decides.

    python -m bench.reviews_accuracy [--passes 2] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from bench.reviews import LABELS, as_json_lines, reviews, write_vocabulary
from bench.step_rate import MODEL
from headrace.trainer.checkpoint_store import open_store
from headrace.trainer.history import read_history
from headrace.trainer.ledger_read import Ledger

BATCH_TOKENS = 4096
MAX_TOKENS = 128
HOLD_OUT = 0.06
LANES = 2
NAME = "reviews"


def run(folder: Path, passes: int) -> dict[str, Any]:
    """Train in `folder`; the page is `folder/reviews-main.html`."""
    rows = reviews()
    write_vocabulary(rows, folder / "vocab.txt")
    (folder / "reviews.jsonl").write_bytes(b"\n".join(as_json_lines(rows)) + b"\n")
    (folder / "headrace.yaml").write_text(yaml.safe_dump(_configuration(folder, _steps(rows, passes))))
    for _ in range(passes):
        _headrace(folder, "publish", "reviews.jsonl", "--again")
    began = time.monotonic()
    _headrace(folder, "up", "--ranks", "1")
    seconds = time.monotonic() - began
    _headrace(folder, "report")
    return {"passes": passes, **_figures(folder), "seconds": round(seconds)}


def _configuration(folder: Path, steps: int) -> dict[str, Any]:
    return {
        "name": NAME,
        "broker": f"local:{folder / 'broker'}",
        "tokenizer": {"path": str(folder / "vocab.txt"), "max_tokens": MAX_TOKENS},
        "tokens": {"lanes": LANES},
        "ingest": {"workers": 1},
        "train": {
            "model": MODEL,
            "task": {"type": "classification", "labels": list(LABELS)},
            "batch": {"tokens": BATCH_TOKENS},
            "optimizer": {
                "learning_rate": 1e-3,
                "schedule": "linear",
                "warmup_steps": 50,
                "total_steps": steps,
            },
            "stop": "end",
        },
        "evaluate": {"hold_out_share": HOLD_OUT, "every_steps": 100, "keep_best": True},
        "checkpoint": {"root": str(folder / "checkpoints")},
    }


def _steps(rows: list[tuple[str, str]], passes: int) -> int:
    """About as many as the batches will be: rows sorted by length leave some 4 % of a batch empty."""
    tokens = sum(min(MAX_TOKENS, len(text) + 2) for text, _ in rows) * (1 - HOLD_OUT)
    return round(passes * tokens / (0.96 * BATCH_TOKENS))


def _headrace(folder: Path, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "headrace", *arguments], cwd=folder, check=True)


def _figures(folder: Path) -> dict[str, Any]:
    history = read_history(Ledger.open(open_store(str(folder / "checkpoints"), NAME, "main")))
    held_out = [line["evaluations"]["held_out"] for line in history if "evaluations" in line]
    return {
        "steps": history[-1]["step"],
        "rows": sum(line.get("rows", 0) for line in history),
        "held_out_rows": held_out[-1]["count"],
        "accuracy": round(held_out[-1]["accuracy"], 4),
        "macro_f1": round(held_out[-1]["macro_f1"], 4),
        "best_accuracy": round(max(score["accuracy"] for score in held_out), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Accuracy on the reviews.")
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--out", type=Path, help="Folder that is kept; else a temporary one.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.out or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        print(json.dumps({"bench": "reviews_accuracy", **run(folder.resolve(), given.passes)}), flush=True)


if __name__ == "__main__":
    main()
