"""Is a step's loss one to learn from? The same answer on every rank, and after every resume. No Paddle.

A step is bad when its loss or its gradient is not finite, or when its loss lies above `spike_factor` times the median
of the last `spike_steps` good ones (once there are so many). All that is looked at are the sums over all ranks and the
losses before, which the checkpoint holds; so nobody has to agree on the answer.

With `on_bad_loss: skip` a bad step changes no weight, but its cursors advance: its records are not seen again. Losses
of skipped steps do not enter the median. A level that stays high would be skipped for ever, and a model that is broken
too: after `most_skips` bad steps in a row the run stops.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.schemas.errors import BadLoss, LossNotFinite, LossSpike
from headrace.trainer.config import TrainConfig


@dataclass(frozen=True, slots=True)
class Bad:
    """Why a step is bad. `bound` is what a micro-batch's mean loss must not exceed."""

    error: type[BadLoss]
    what: str
    bound: float = math.inf


class LossWatch:
    """The losses of the last good steps, and how many bad ones came since."""

    def __init__(self, settings: TrainConfig) -> None:
        self._factor = settings.spike_factor
        self._skip = settings.on_bad_loss == "skip"
        self._most_skips = settings.most_skips
        self._losses: deque[float] = deque(maxlen=settings.spike_steps)
        self._skips = 0  # since the last good step

    @property
    def skips(self) -> bool:
        """Whether the next bad step is skipped: the run stops otherwise."""
        return self._skip and self._skips < self._most_skips

    @property
    def cure(self) -> str:
        """What a user can do when the run stops on a bad step."""
        cure = "look at the records, or lower optimizer.learning_rate, and go on from the last checkpoint"
        if self._skip:
            return f"{self._skips} steps in a row before it were skipped (train.most_skips): {cure}"
        return f"{cure}; train.on_bad_loss: skip passes such steps over"

    def judge(self, loss: float, norm: float) -> Bad | None:
        """`loss` is the mean over the global batch, `norm` that of its gradient. None: a good step."""
        if not math.isfinite(loss):
            return Bad(LossNotFinite, f"the loss is {loss}")
        spike = self.spike(loss)
        if spike is None and not math.isfinite(norm):
            return Bad(LossNotFinite, f"the gradient's norm is {norm}")
        return spike

    def spike(self, loss: float) -> Bad | None:
        """Whether a finite loss lies too far above those before."""
        if self._factor is None or len(self._losses) < (self._losses.maxlen or 0):
            return None
        median = statistics.median(self._losses)
        bound = self._factor * median
        if loss <= bound:
            return None
        what = f"the loss is {loss:g}, the median of the last {len(self._losses)} steps {median:g}"
        return Bad(LossSpike, what, bound)

    def learnt(self, loss: float) -> None:
        """A good step has been made."""
        self._losses.append(loss)
        self._skips = 0

    def skipped(self) -> None:
        """A bad step has been passed over."""
        self._skips += 1

    def array(self) -> np.ndarray[Any, Any]:
        """For the checkpoint: [bad steps in a row, losses of the last good ones]."""
        return np.array([self._skips, *self._losses], np.float64)

    def load(self, array: np.ndarray[Any, Any]) -> None:
        """Go on from `array`, with as many of its losses as are looked at now."""
        self._skips = int(array[0])
        self._losses.clear()
        self._losses.extend(float(loss) for loss in array[1:])
