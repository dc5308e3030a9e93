"""Programs of test_ranks_tasks.py, run by `rank_programs`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def every_task(ranks: Any, folder: Path) -> dict[str, np.ndarray]:
    """The gradient of the same rows: in micro-batches shared out unevenly, all on one rank, and as one big batch.

    With fresh moments and no clipping the first moment after one step is the gradient times a constant.
    """
    from tests.unit.trainer.paddle import cases

    found: dict[str, np.ndarray] = {}
    for case in cases.CASES:
        rows = cases.rows(case)
        many, (whole,) = cases.batches(case, rows), cases.batches(case, rows, cases.WHOLE)
        splits: dict[str, Sequence[Any]] = {
            "uneven": _share(many, ranks, len(many) - 2),
            "one-empty": _share(many, ranks, len(many)),
            "one-big-batch": _share([whole], ranks, 1),
        }
        for name, mine in splits.items():
            learner = cases.learner(case, ranks)
            result = learner.step(mine, whole.count, 1e-3)
            moments = learner.state().optimizer
            for key, moment in moments.items():
                if key.endswith("/moment1"):
                    found[f"{case}/{name}/gradient/{key.removesuffix('/moment1')}"] = moment
            found[f"{case}/{name}/score"] = np.array([result.score.loss, result.score.correct, result.score.count])
            found[f"{case}/{name}/hash"] = np.array(learner.weight_hash())
        found[f"{case}/batches"] = np.array([len(many), sum(batch.count for batch in many), whole.count])
    return found


def _share(batches: Sequence[Any], ranks: Any, first: int) -> Sequence[Any]:
    """Of two ranks the first takes the `first` leading batches and the second the rest; one rank takes all."""
    if ranks.world == 1:
        return batches
    return batches[:first] if ranks.rank == 0 else batches[first:]
