"""Cursor: where the trainer is in one lane, and the plan under which its open window was cut.

A lane is read in windows: consecutive token batches, shuffled and cut into micro-batches together. A cursor names the
next micro-batch to train: the window that is open (the offsets from `start` up to `end`, `token_batches` of them), how
many of its micro-batches are `taken`, and the cutting plan. Reading the same offsets again and cutting them under the
same plan gives the same micro-batches, so resuming costs one window, whatever the position.

A run of several passes goes back to its start when every lane has reached its end: `pass_number` counts them from 1.

With no window open, `start == end`, `token_batches == taken == 0` and the next window begins at or behind `end`.
Offsets are compared, never subtracted: transaction markers take offsets too.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    exclusions: int = (
        0  # so many of the run's exclusions were left out before the cut; later ones are taken out after it
    )
    version: int = CUT_VERSION


@dataclass(frozen=True, slots=True)
class Cursor:
    """The next unread micro-batch of a lane."""

    start: int
    end: int
    token_batches: int = 0
    taken: int = 0
    plan: CuttingPlan | None = None
    pass_number: int = 1

    @classmethod
    def at(cls, offset: int, pass_number: int = 1) -> Cursor:
        """A cursor before `offset` with no window open."""
        return cls(offset, offset, pass_number=pass_number)

    @property
    def open(self) -> bool:
        """Whether a window has been begun and not been finished."""
        return self.token_batches > 0

    def take(self, micro_batches: int, *, of: int) -> Cursor:
        """Advance by `micro_batches` in a window that has `of` of them; closes the window with the last one."""
        taken = self.taken + micro_batches
        return Cursor.at(self.end, self.pass_number) if taken >= of else replace(self, taken=taken)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Cursor:
        plan = fields.get("plan")
        return cls(**{**fields, "plan": CuttingPlan(**plan) if plan is not None else None})


def pass_of(cursors: Mapping[int, Cursor]) -> int:
    """The pass that a run is in. Lanes with nothing to train are not moved to it, and stay at their ends."""
    return max((cursor.pass_number for cursor in cursors.values()), default=1)
