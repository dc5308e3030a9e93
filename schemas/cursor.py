"""Cursor: where the trainer is in one lane, and the plan under which its open window was cut.

A lane is read in windows: consecutive token batches, shuffled and cut into micro-batches together. A cursor names the
next micro-batch to train: the window that is open (the offsets from `start` up to `end`, `token_batches` of them), how
many of its micro-batches are `taken`, and the cutting plan. Reading the same offsets again and cutting them under the
same plan gives the same micro-batches, so resuming costs one window, whatever the position.

With no window open, `start == end`, `token_batches == taken == 0` and the next window begins at or behind `end`.
Offsets are compared, never subtracted: transaction markers take offsets too.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

#: Changes whenever `trainer.window.cut` gives other micro-batches for the same rows.
CUT_VERSION = 1


@dataclass(frozen=True, slots=True)
class CuttingPlan:
    """Every setting that decides how a window is cut. Stored in the cursor of the window it cut."""

    seed: int
    micro_tokens: int  # budget of one micro-batch, in padded tokens
    window_tokens: int  # a window is closed when it holds at least so many tokens
    hold_out_share: float = 0.0  # rows whose bucket lies below this share of 2**16 are held out
    pad_multiple: int = 8  # row lengths are rounded up to a multiple of it
    version: int = CUT_VERSION


@dataclass(frozen=True, slots=True)
class Cursor:
    """The next unread micro-batch of a lane."""

    start: int
    end: int
    token_batches: int = 0
    taken: int = 0
    plan: CuttingPlan | None = None

    @classmethod
    def at(cls, offset: int) -> Cursor:
        """A cursor before `offset` with no window open."""
        return cls(offset, offset)

    @property
    def open(self) -> bool:
        """Whether a window has been begun and not been finished."""
        return self.token_batches > 0

    def take(self, micro_batches: int, *, of: int) -> Cursor:
        """Advance by `micro_batches` in a window that has `of` of them; closes the window with the last one."""
        taken = self.taken + micro_batches
        return Cursor.at(self.end) if taken >= of else replace(self, taken=taken)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Cursor:
        plan = fields.get("plan")
        return cls(**{**fields, "plan": CuttingPlan(**plan) if plan is not None else None})
