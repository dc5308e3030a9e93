"""Where a new `name` starts in the text topic: the start policy, resolved once into committed positions.

The parent does this before any worker is spawned. After that the committed positions alone count: a partition that
has one is left alone, one that was added to the topic later is read from its beginning by whoever gets it, and a
missing position anywhere else is an error, because guessing would lose or repeat records.

Two notes travel with every position: `fingerprint`, of the tokenizer that made the tokens behind it, and `start`, the
offset that the policy gave (a partition that was added later has none: it starts at its beginning). Another tokenizer
under the same name would put other ids into the same topic, which no trainer could read: it is refused. Positions of
an older version have no notes, and get the fingerprint with their next commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from headrace.pipeline.topics import Broker
from headrace.schemas.errors import Fenced, PositionLost, UsageError
from headrace.schemas.position import Position
from headrace.schemas.settings import AtTime, Start

FINGERPRINT = "fingerprint"
START = "start"

_SHOWN_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a group begins, and with which tokenizer."""

    start: Start
    fingerprint: str


def resolve_start(
    broker: Broker, group: str, text_topic: str, tokens_topic: str, beginning: Beginning
) -> dict[int, Position]:
    """Commit the first positions of `group` where it has none; return its positions as they are now.

    Raises PositionLost when positions are missing of a group that has worked already, UsageError when it has worked
    with another tokenizer.
    """
    committed = broker.positions(group, text_topic)
    check_tokenizer(committed, group, beginning.fingerprint)
    if committed:
        _refuse_gaps(committed, set(broker.ends(text_topic)), group, text_topic)
        return committed
    written = [lane for lane, ends in broker.ends(tokens_topic).items() if ends.end > 0]
    if written:
        raise PositionLost(
            f"group {group!r} has no position in topic {text_topic!r}, and topic {tokens_topic!r} holds token batches "
            "already: reading from the start again would repeat records (a group's positions expire when nothing reads "
            "for `offsets.retention.minutes`). Use another `name`, which starts where `ingest.start` says, and another "
            "tokens.topic"
        )
    positions = {
        partition: Position(offset, notes={FINGERPRINT: beginning.fingerprint, START: offset})
        for partition, offset in _first(broker, text_topic, beginning.start).items()
    }
    try:
        broker.set_positions(group, text_topic, positions)
    except Fenced:  # the group has members by now: another machine was quicker, and its positions hold
        positions = broker.positions(group, text_topic)
        if not positions:
            raise
        check_tokenizer(positions, group, beginning.fingerprint)
    return positions


def check_tokenizer(positions: Mapping[int, Position], group: str, fingerprint: str) -> None:
    """Raises UsageError where the tokens behind a position were made by another tokenizer."""
    for position in positions.values():
        before = position.notes.get(FINGERPRINT, fingerprint)
        if before != fingerprint:
            raise UsageError(
                f"tokenizer: the fingerprint is {fingerprint[:_SHOWN_DIGITS]} now, and group {group!r} has written "
                f"token batches with {str(before)[:_SHOWN_DIGITS]}: the same ids would mean other tokens. Restore the "
                "settings under `tokenizer` and the tokenizer's files, or use a new `name` (with a new tokens.topic)"
            )


def noted(position: Position, fingerprint: str) -> Position:
    """The position with the tokenizer's fingerprint among its notes."""
    if FINGERPRINT in position.notes:
        return position
    return replace(position, notes={**position.notes, FINGERPRINT: fingerprint})


def _first(broker: Broker, topic: str, start: Start) -> dict[int, int]:
    if isinstance(start, AtTime):
        return broker.offsets_at(topic, int(start.time.timestamp() * 1000))
    return {p: end.first if start == "earliest" else end.end for p, end in broker.ends(topic).items()}


def _refuse_gaps(committed: Mapping[int, Position], partitions: set[int], group: str, topic: str) -> None:
    """Partitions are added at the end: one without a position below one with a position has lost it."""
    lost = sorted(number for number in partitions - committed.keys() if number < max(committed))
    if lost:
        raise PositionLost(
            f"group {group!r} has positions in topic {topic!r}, but none in partition {lost[0]}: another program "
            "deleted it. Use another `name`, which starts where `ingest.start` says"
        )
