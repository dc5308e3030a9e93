"""When a checkpoint is due, and when a small batch has waited long enough. Only rank 0 asks; the others are told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

#: A stream that has been idle for so long is saved, if there is anything to save.
IDLE_SAVE_S = 30.0


@dataclass(slots=True)
class Cadence:
    """Turns a clock and a step number into decisions; all times are the clock's, in seconds.

    Used by one thread: the one that agrees on steps. It counts agreed steps, since every one of them is trained.
    """

    every_steps: int | None
    every_s: float
    flush_s: float
    clock: Callable[[], float]
    unsaved_steps: int = 0
    saved_at: float | None = None
    idle_since: float | None = None
    held_since: float | None = None

    def due(self, step: int, *, idle: bool) -> bool:
        """Whether to save: after `step`, which is about to be agreed, or now, when the stream is idle after it."""
        now = self.clock()
        if self.saved_at is None:
            self.saved_at = now
        if not idle:
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since = now
        if idle and self.unsaved_steps == 0:
            return False
        by_steps = not idle and self.every_steps is not None and step % self.every_steps == 0
        by_time = now - self.saved_at >= self.every_s
        by_idling = self.idle_since is not None and now - self.idle_since >= min(self.every_s, IDLE_SAVE_S)
        return by_steps or by_time or by_idling

    def release(self) -> bool:
        """Whether a batch below `min_tokens`, held since the first call after a step, is to be trained as it is."""
        now = self.clock()
        if self.held_since is None:
            self.held_since = now
        return now - self.held_since >= self.flush_s

    def agreed(self, *, stepped: bool, due: bool) -> None:
        """What the ranks agreed on: a step or none, with a save after it or not."""
        if stepped:
            self.unsaved_steps += 1
            self.held_since = None
        if due:
            self.unsaved_steps = 0
            self.saved_at = self.clock()
