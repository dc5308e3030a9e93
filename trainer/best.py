"""The best checkpoint so far: `best.json` beside the checkpoints names it, and pruning spares it.

Best is the highest accuracy of an evaluation (on the development set where there is one, else on the held-out part);
of equal ones the lower loss. `trainer.json` says it too, so that a kill between publishing a checkpoint and writing
`best.json` forgets nothing: of the two the later one counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from headrace.trainer.checkpoint import prune
from headrace.trainer.checkpoint_store import Store
from headrace.trainer.learner import Score

BEST_FILE = "best.json"

#: What is evaluated, by name, the one that decides first.
DEVELOPMENT = "development"
HELD_OUT = "held_out"


@dataclass(frozen=True, slots=True)
class Best:
    """An evaluation, and the step of its checkpoint."""

    step: int
    evaluated: str  # DEVELOPMENT or HELD_OUT
    accuracy: float
    loss: float
    macro_f1: float | None = None

    @classmethod
    def of(cls, step: int, scores: Mapping[str, Score]) -> Self | None:
        """None where nothing was scored."""
        name = next((name for name in (DEVELOPMENT, HELD_OUT) if name in scores and scores[name].count), None)
        if name is None:
            return None
        score = scores[name]
        return cls(step, name, score.accuracy, score.mean_loss, score.macro_f1)

    def beats(self, other: Best | None) -> bool:
        """Whether it is better than `other`. Scores of another kind of data cannot be compared: the new one counts."""
        if other is None or other.evaluated != self.evaluated:
            return True
        return (self.accuracy, -self.loss) > (other.accuracy, -other.loss)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any] | None) -> Self | None:
        return cls(**fields) if fields else None


def read_best(store: Store) -> Best | None:
    """What `best.json` says."""
    (data,) = store.read_each([""], BEST_FILE)
    return Best.from_json(json.loads(data)) if data else None


def best_at(store: Store, step: int, saved: Best | None) -> Best | None:
    """The best one when a run goes on from `step`, whose checkpoint says `saved`."""
    written = read_best(store)
    known = [best for best in (written, saved) if best is not None and best.step <= step]
    return max(known, key=lambda best: best.step, default=None)


def keep(store: Store, best: Best | None, newest: int, every_steps: int | None = None) -> None:
    """Prune as `checkpoint.prune` does, sparing the best one, and say in `best.json` which that is."""
    if best is None:
        prune(store, newest, every_steps)
        return
    former = read_best(store)
    prune(store, newest, every_steps, spared=best.step, former=former.step if former is not None else None)
    if former != best:
        data = [json.dumps(best.to_json(), indent=1).encode()]
        if store.renames:
            store.write("", f"{BEST_FILE}.unfinished", data)
            store.rename(f"{BEST_FILE}.unfinished", BEST_FILE)
        else:
            store.write("", BEST_FILE, data)
