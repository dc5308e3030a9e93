"""Position: where ingest is in one partition of the text topic.

A position is the next unread record: `offset` is the next message to read and `row` the number of its rows that are
already done (0: the message is untouched). It is committed as a consumer group offset; what an offset cannot hold
rides in the offset's *metadata* string, inside the same transaction.

`tokens` counts the tokens that were ever emitted from the partition. The backlog is the sum of these counters minus
what the trainer reports as trained: exact, survives any restart, and needs no look at the tokens topic.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from headrace.schemas.errors import PositionLost


@dataclass(frozen=True, slots=True)
class Position:
    """The next unread record of a partition, with counters that are committed together with it.

    `notes` holds what else a group wants to publish beside its position (JSON values; a few hundred bytes).
    """

    offset: int
    row: int = 0
    tokens: int = 0
    notes: dict[str, object] = field(default_factory=dict)

    def metadata(self) -> str:
        """Encode everything but the offset; empty when there is nothing to say."""
        fields: dict[str, object] = {}
        if self.row:
            fields["row"] = self.row
        if self.tokens:
            fields["tokens"] = self.tokens
        if self.notes:
            fields["notes"] = self.notes
        return json.dumps(fields, separators=(",", ":"), sort_keys=True) if fields else ""

    @classmethod
    def parse(cls, offset: int, metadata: str | None) -> Position:
        """Inverse of `metadata`. Raises PositionLost when the string is not ours: guessing would repeat records."""
        if not metadata:
            return cls(offset)
        try:
            fields = json.loads(metadata)
            return cls(offset, int(fields.get("row", 0)), int(fields.get("tokens", 0)), dict(fields.get("notes", {})))
        except (ValueError, TypeError, AttributeError) as error:
            raise PositionLost(
                f"the committed offset {offset} carries metadata that headrace did not write ({metadata[:80]!r}): "
                "another program commits to this consumer group; give headrace a name of its own"
            ) from error
