"""History: one JSON line a step, kept with the run, so that a report can be drawn long after.

Rank 0 collects the lines and every checkpoint takes those since its parent (`history.jsonl`), as it does with the
ledger. So the history of a run is its chain of checkpoints: what a kill undoes is in no checkpoint, and is written once
when it is done again. An evaluation at the end of a run whose last step is already saved goes beside that checkpoint
(`evaluated.jsonl`), which is not in the manifest and may be written again.

Times are seconds, `time_ms` is since 1970. About 300 bytes a step.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from headrace.schemas.errors import CheckpointDamaged
from headrace.trainer.checkpoint import EVALUATED_FILE, HISTORY_FILE, folder_of
from headrace.trainer.checkpoint_load import read_file
from headrace.trainer.learner import Score
from headrace.trainer.ledger_read import Ledger

Line = dict[str, Any]


class History:
    """What happened since the last checkpoint."""

    def __init__(self) -> None:
        self._lines: list[Line] = []

    def stepped(self, line: Line) -> None:
        """A line with its `step`."""
        self._lines.append(line)

    def evaluated(self, step: int, scores: Mapping[str, Score]) -> None:
        """Scores by what was evaluated, put into the line of the step where that is not saved yet."""
        if not self._lines or self._lines[-1]["step"] != step:
            self._lines.append({"step": step})
        self._lines[-1]["evaluations"] = {name: score_json(score) for name, score in scores.items()}

    def drain(self) -> bytes:
        """Everything since the last call, as lines."""
        lines, self._lines = self._lines, []
        return "".join(json.dumps(_rounded(line)) + "\n" for line in lines).encode()


def score_json(score: Score) -> dict[str, float | int | None]:
    return {
        "loss": score.mean_loss,
        "accuracy": score.accuracy,
        "macro_f1": score.macro_f1,
        "count": score.count,
    }


def read_history(ledger: Ledger) -> list[Line]:
    """The lines of every step up to a checkpoint, in their order."""
    lines: dict[int, Line] = {}
    folders = [folder_of(manifest.step) for manifest in ledger.chain]
    beside = ledger.store.read_each(folders, EVALUATED_FILE)
    for manifest, evaluated in zip(ledger.chain, beside, strict=True):
        parts = [read_file(ledger.store, manifest, HISTORY_FILE)] if HISTORY_FILE in manifest.files else []
        parts += [evaluated] if evaluated is not None else []
        for line in (line for part in parts for line in _lines(part, folder_of(manifest.step))):
            lines.setdefault(line["step"], {}).update(line)
    return [lines[step] for step in sorted(lines)]


def _lines(data: bytes, where: str) -> Iterator[Line]:
    for text in data.splitlines():
        try:
            yield json.loads(text)
        except ValueError as error:
            raise CheckpointDamaged(f"the history in {where} is cut short: remove its {EVALUATED_FILE}") from error


def _rounded(value: Any) -> Any:
    """Six digits say enough, and take half the room."""
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value
