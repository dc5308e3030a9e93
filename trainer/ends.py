"""Where a run ends: a small state machine that rank 0 turns and every checkpoint holds.

    never            the run ends when it is told to
    steps            after N steps
    time             1. once the moment has passed, the ends of the lanes are fixed: what was published before it
    end              1. the ends of the text topic are fixed, once, when the run begins
                     2. when ingest's group has passed all of them, the ends of the lanes are fixed

A run whose lanes have ends is over when every lane has reached its own. Offsets are compared, never subtracted.

The order of two look-ups matters. Ingest commits its positions and its token batches together, so positions must be
read *before* the ends of the lanes: then the ends lie behind everything that belongs to those positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from headrace.pipeline.topics import Ends
from headrace.schemas.position import Position


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The rule and how far it has come. Immutable: each call returns the next state."""

    rule: Literal["never", "steps", "time", "end"] = "never"
    steps: int | None = None
    time_ms: int | None = None
    text: Mapping[int, int] | None = None  # offset per partition of the text topic
    lanes: Mapping[int, int] | None = None  # offset per lane

    @property
    def needs_text(self) -> bool:
        """Whether `fix_text` is due: stop `end`, and the ends of the text topic are not fixed yet."""
        return self.rule == "end" and self.text is None

    def fix_text(self, ends: Mapping[int, Ends]) -> RunEnd:
        """Fix the ends of the text topic. Partitions in which nothing lies are left out: nobody reads them.

        Ends that are fixed stay as they are, however often a run is resumed.
        """
        if not self.needs_text:
            return self
        return replace(self, text={partition: each.end for partition, each in ends.items() if each.first < each.end})

    def lanes_due(self, *, now_ms: int, positions: Mapping[int, Position] | None = None) -> bool:
        """Whether the ends of the lanes can be fixed now: `fix_lanes` is next.

        `positions` are those of ingest's group in the text topic, read before the ends of the lanes.
        """
        if self.lanes is not None:
            return False
        if self.rule == "time":
            return self.time_ms is not None and now_ms >= self.time_ms
        return self.rule == "end" and self.text is not None and _passed(self.text, positions or {})

    def fix_lanes(self, offsets: Mapping[int, int]) -> RunEnd:
        """Fix the ends of the lanes: `end` takes the ends of the tokens topic, `time` its offsets at the moment."""
        return self if self.lanes is not None else replace(self, lanes=dict(offsets))

    def reached(self, *, step: int, lanes_ended: int) -> bool:
        """Whether the run is over after `step` steps, with so many of all lanes at their ends."""
        if self.rule == "steps":
            return self.steps is not None and step >= self.steps
        return self.lanes is not None and lanes_ended >= len(self.lanes)

    def to_json(self) -> dict[str, Any]:
        return {
            "rule": self.rule,
            "steps": self.steps,
            "time_ms": self.time_ms,
            "text": _keys_to_text(self.text),
            "lanes": _keys_to_text(self.lanes),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> RunEnd:
        offsets = {name: _keys_to_numbers(fields.get(name)) for name in ("text", "lanes")}
        return cls(fields["rule"], fields.get("steps"), fields.get("time_ms"), **offsets)

    def resumed_with(self, configured: RunEnd) -> RunEnd:
        """The state to go on with when a run whose checkpoint holds `self` is resumed with a stop as `configured`.

        The same rule goes on where it was; another rule starts from its beginning.
        """
        same = (self.rule, self.steps, self.time_ms) == (configured.rule, configured.steps, configured.time_ms)
        return self if same else configured


def _passed(ends: Mapping[int, int], positions: Mapping[int, Position]) -> bool:
    """Whether every position has reached its end. Rows done inside the message at the position do not count."""
    return all(partition in positions and positions[partition].offset >= end for partition, end in ends.items())


def _keys_to_text(offsets: Mapping[int, int] | None) -> dict[str, int] | None:
    return None if offsets is None else {str(number): offset for number, offset in sorted(offsets.items())}


def _keys_to_numbers(offsets: Mapping[str, int] | None) -> dict[int, int] | None:
    return None if offsets is None else {int(number): offset for number, offset in offsets.items()}
