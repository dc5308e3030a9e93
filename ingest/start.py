"""Where a new `name` starts in the text topic: the start policy, resolved once into committed positions.

The parent does this before any worker is spawned. After that the committed positions alone count: a partition that
has one is left alone, one that was added to the topic later is read from its beginning by whoever gets it, and a
missing position anywhere else is an error, because guessing would lose or repeat records.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.pipeline.topics import Broker
from headrace.schemas.errors import Fenced, PositionLost
from headrace.schemas.position import Position
from headrace.schemas.settings import AtTime, Start


def resolve_start(broker: Broker, group: str, text_topic: str, tokens_topic: str, start: Start) -> dict[int, Position]:
    """Commit the first positions of `group` where it has none; return its positions as they are now.

    Raises PositionLost when positions are missing of a group that has worked already.
    """
    committed = broker.positions(group, text_topic)
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
    positions = _first(broker, text_topic, start)
    try:
        broker.set_positions(group, text_topic, positions)
    except Fenced:  # the group has members by now: another machine was quicker, and its positions hold
        positions = broker.positions(group, text_topic)
        if not positions:
            raise
    return positions


def _first(broker: Broker, topic: str, start: Start) -> dict[int, Position]:
    if isinstance(start, AtTime):
        time_ms = int(start.time.timestamp() * 1000)
        return {partition: Position(offset) for partition, offset in broker.offsets_at(topic, time_ms).items()}
    ends = broker.ends(topic)
    return {partition: Position(end.first if start == "earliest" else end.end) for partition, end in ends.items()}


def _refuse_gaps(committed: Mapping[int, Position], partitions: set[int], group: str, topic: str) -> None:
    """Partitions are added at the end: one without a position below one with a position has lost it."""
    lost = sorted(number for number in partitions - committed.keys() if number < max(committed))
    if lost:
        raise PositionLost(
            f"group {group!r} has positions in topic {topic!r}, but none in partition {lost[0]}: another program "
            "deleted it. Use another `name`, which starts where `ingest.start` says"
        )
