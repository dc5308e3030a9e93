"""How far a run has come before a step: what the schedule of the learning rate is a function of. No Paddle.

Steps and tokens are counted. Where only the ends of the lanes bound a run, the measure is the *share* of their range
that is trained. It follows from what all ranks exchange before a step and from what the checkpoint holds, so it is the
same on every rank, at any number of ranks, and after every resume:

1. each rank gives, for each of its lanes, where the step begins and ends: inside a window by the part of its
   micro-batches that is taken, else the cursor's offset
2. once the ends of the lanes are fixed, the range is what lies between that moment's positions and the ends; at a run
   over a topic that is already full this is the moment before the first step
3. share = sum over the lanes of what is passed / sum over the lanes of the range, added in the order of the lanes
4. a run of several passes goes over that range in each of them: (passes before + share) / passes

Offsets are no counts (transaction markers take some), so a share is not one of records; it runs from 0 to 1 and never
back, which is all that a schedule needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.schemas.cursor import Cursor
from headrace.trainer.window import MicroBatch

#: Of a lane: where a step begins and where it ends.
Stretch = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Range:
    """What is left of the lanes at the moment when their ends are known. `whole`: that was before the first step."""

    starts: Mapping[int, float]
    ends: Mapping[int, int]
    whole: bool

    def share(self, positions: Mapping[int, float]) -> float:
        """Part of the range that lies before `positions`: 0 to 1."""
        lanes = sorted(self.ends)
        length = sum(max(0.0, self.ends[lane] - self.starts[lane]) for lane in lanes)
        if not length:
            return 1.0
        passed = sum(
            min(max(0.0, positions[lane] - self.starts[lane]), max(0.0, self.ends[lane] - self.starts[lane]))
            for lane in lanes
        )
        return passed / length

    def to_json(self) -> dict[str, Any]:
        return {
            "starts": {str(lane): position for lane, position in sorted(self.starts.items())},
            "ends": {str(lane): offset for lane, offset in sorted(self.ends.items())},
            "whole": self.whole,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Range:
        starts = {int(lane): float(position) for lane, position in fields["starts"].items()}
        ends = {int(lane): int(offset) for lane, offset in fields["ends"].items()}
        return cls(starts, ends, bool(fields["whole"]))


@dataclass(frozen=True, slots=True)
class Reach:
    """How far the run has come before a step, and how far the step takes it."""

    steps: int = 0  # finished
    tokens: int = 0  # without padding, of the finished steps
    step_tokens: int = 0  # of this one
    share: float | None = None  # of the range, None while its end is unknown
    share_after: float | None = None
    range: Range | None = None

    @property
    def tokens_after(self) -> int:
        return self.tokens + self.step_tokens


#: The beginning of a run.
START = Reach()


class Odometer:
    """Keeps count on one rank, one agreement after the other; see the module's text for the rules.

    `cursors` are those of this rank's lanes. `measured` says whether shares are asked for: else none are exchanged.
    """

    def __init__(self, cursors: Mapping[int, Cursor], begun: Reach, *, measured: bool, passes: int = 1) -> None:
        self._positions = {lane: float(cursor.start) for lane, cursor in cursors.items()}
        self._begun = begun  # what the checkpoint holds
        self._tokens = begun.tokens
        self._range = begun.range
        self._ends: Mapping[int, int] | None = None
        self._measured = measured
        self._passes = passes

    def set_ends(self, ends: Mapping[int, int]) -> None:
        """The ends of all lanes are known."""
        self._ends = dict(ends)

    def stretches(self, taken: Sequence[MicroBatch]) -> dict[str, Stretch]:
        """By lane of this rank: from where to where the step with `taken` would go (rule 1)."""
        if not self._measured:
            return {}
        found = {lane: (position, position) for lane, position in self._positions.items()}
        seen: set[int] = set()
        for micro_batch in taken:
            lane = micro_batch.lane
            before = _position(micro_batch, micro_batch.before.taken)
            first = found[lane][0] if lane in seen else before
            found[lane] = (first, _position(micro_batch, micro_batch.before.taken + 1))
            seen.add(lane)
        return {str(lane): stretch for lane, stretch in found.items()}

    def reach(self, steps: int, step_tokens: int, stretches: Mapping[str, Stretch], pass_number: int = 1) -> Reach:
        """Before a step, from what all ranks gave. Fixes the range when it can (rule 2)."""
        before = {int(lane): stretch[0] for lane, stretch in stretches.items()}
        if self._measured and self._ends is not None and (self._range is None or self._range.ends != self._ends):
            # A range that was stored had another end: the run was over, or its `stop` was changed.
            self._range = Range(before, self._ends, whole=steps == 0 or self._begun.range is not None)
        if not self._measured or self._range is None:
            return Reach(steps, self._tokens, step_tokens, range=self._range)
        after = {int(lane): stretch[1] for lane, stretch in stretches.items()}
        done, passes = pass_number - 1, max(self._passes, pass_number)
        share, share_after = ((done + self._range.share(at)) / passes for at in (before, after))  # rule 4
        return Reach(steps, self._tokens, step_tokens, share, share_after, range=self._range)

    def stepped(self, reach: Reach, taken: Sequence[MicroBatch]) -> None:
        """The step will be made."""
        self._tokens = reach.tokens_after
        for micro_batch in taken:
            self._positions[micro_batch.lane] = float(micro_batch.after.start)


def _position(micro_batch: MicroBatch, taken: int) -> float:
    """In offsets: the window's start, and the part of it that `taken` of its micro-batches are."""
    window = micro_batch.before
    return window.start + (window.end - window.start) * taken / micro_batch.of
