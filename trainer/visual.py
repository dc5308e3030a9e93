"""VisualDL: the figures of every step and evaluation as scalars, where `train.visualdl` names a folder.

One log for each start of the run, `FOLDER/NAME/RUN/from-step-N`: VisualDL shows them beside each other. A log is for
watching while a run goes on; what belongs to the checkpoints is `history`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.schemas.errors import UsageError
from headrace.trainer.learner import Score

_SCALARS = ("loss", "accuracy", "macro_f1", "learning_rate", "tokens_s", "padding", "freshness_p50_s", "wait_share")


class VisualLog:
    """Opened by `open_log`."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer  # VisualDL is untyped

    def stepped(self, line: Mapping[str, Any]) -> None:
        """A line of the history."""
        for name in _SCALARS:
            if line.get(name) is not None:
                self._writer.add_scalar(tag=f"train/{name}", step=line["step"], value=line[name])

    def evaluated(self, step: int, scores: Mapping[str, Score]) -> None:
        for name, score in scores.items():
            figures = {"loss": score.mean_loss, "accuracy": score.accuracy, "macro_f1": score.macro_f1}
            for figure, value in figures.items():
                if value is not None:
                    self._writer.add_scalar(tag=f"{name}/{figure}", step=step, value=value)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def check_visualdl() -> None:
    """Raises UsageError where the package is not there."""
    if importlib.util.find_spec("visualdl") is None:
        raise UsageError(
            "train.visualdl needs the package visualdl (pip install visualdl): install it, or leave the setting out"
        )


def open_log(folder: str, name: str, run: str, step: int) -> VisualLog | None:
    """The log of a run that starts after `step`; None where no folder is named."""
    if not folder:
        return None
    check_visualdl()
    from visualdl import LogWriter  # takes half a second

    return VisualLog(LogWriter(logdir=str(Path(folder) / name / run / f"from-step-{step}")))
