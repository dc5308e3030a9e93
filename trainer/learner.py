"""What the training loop needs of whatever learns: a small protocol, so that the loop is tested without Paddle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from headrace.schemas.errors import BadLoss
from headrace.trainer.collate import Batch
from headrace.trainer.communication import NOTHING_SENT, Traffic

Arrays = Mapping[str, np.ndarray]

#: Of every class that occurs, by number: rows rightly given to it, all rows given to it, all rows that belong to it.
ByClass = Mapping[int, tuple[int, int, int]]


def macro_f1(by_class: ByClass) -> float | None:
    """See `Score.macro_f1`. A class that neither occurs nor is predicted is left out, as scikit-learn does."""
    scores = [2 * right / (given + own) for right, given, own in by_class.values()]
    return sum(scores) / len(scores) if scores else None


def by_class_of(counts: np.ndarray) -> ByClass:
    """`counts` [3 * C] or [3, C] of every class -> those that occur."""
    table = np.rint(counts).astype(np.int64).reshape(3, -1)
    occur = np.flatnonzero(table.any(axis=0))
    return {number: tuple(table[:, number].tolist()) for number in occur.tolist()}


@dataclass(frozen=True, slots=True)
class Score:
    """Sums over batches, over all ranks: divide by `count` for means."""

    loss: float
    correct: float
    count: int
    by_class: ByClass = field(default_factory=dict)

    @property
    def mean_loss(self) -> float:
        return self.loss / self.count if self.count else 0.0

    @property
    def accuracy(self) -> float:
        return self.correct / self.count if self.count else 0.0

    @property
    def macro_f1(self) -> float | None:
        """Mean over the classes that occur of 2 * right / (given + own); None for a task without classes."""
        return macro_f1(self.by_class)


@dataclass(frozen=True, slots=True)
class StepResult:
    """One optimizer step. The score is of the forward pass, so it was measured before training on these records."""

    score: Score
    grad_norm: float
    skipped: BadLoss | None = None  # why no weight has changed; then the score is empty
    traffic: Traffic = NOTHING_SENT


@dataclass(frozen=True, slots=True)
class LearnerState:
    """Everything a checkpoint keeps of the learner, copied: later steps do not change it."""

    weights: Arrays
    optimizer: Arrays
    files: Mapping[str, bytes] = field(default_factory=dict)  # model configuration and what a loader needs beside it


class Learner(Protocol):
    """A model with its optimizer on one rank. Every method but `state` and `load` is called on all ranks together."""

    def step(self, batches: Sequence[Batch], count: int, learning_rate: float) -> StepResult:
        """Train one global batch: `batches` are this rank's part (may be none), `count` is the global loss count > 0.

        Raises BadLoss on every rank, before any weight has changed, unless bad steps are to be skipped.
        """

    def evaluate(self, batches: Iterable[Batch]) -> Score:
        """Score without training; `batches` may differ in number between ranks."""

    @property
    def together(self) -> bool:
        """Whether all ranks hold the same weights now: they do not between the averages of local steps."""

    def collect(self) -> None:
        """Comes before `state`: make the ranks equal, and give rank 0 all that belongs to the state."""

    def state(self) -> LearnerState: ...

    def load(self, state: LearnerState) -> None: ...

    def weight_hash(self) -> str:
        """SHA-256 of the weights: equal on all ranks, or something is broken."""
