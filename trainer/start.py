"""Where a new run starts, and what it must know before its first step.

The start is resolved once, by rank 0, and lies in the run's first checkpoint (step 0) before anything is trained: a
run that is killed early starts at the same offsets again, even with `start: latest`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from headrace.pipeline.topics import Broker
from headrace.schemas.errors import TopicError
from headrace.schemas.settings import AtTime, Start
from headrace.schemas.tokens import TokensMeta, decode

_WAIT_S = 0.5
_MOST_S = 10.0


def check_lanes(broker: Broker, topic: str, lanes: int) -> None:
    """Raises TopicError when the tokens topic is missing or has another number of lanes."""
    found = broker.describe(topic)
    if found is None:
        raise TopicError(f"there is no topic {topic!r} at {broker.address}: start ingest, or `headrace topics create`")
    if found.partitions != lanes:
        raise TopicError(
            f"topic {topic!r} has {found.partitions} lanes, tokens.lanes says {lanes}: set it to {found.partitions} "
            "(the lanes of a topic never change)"
        )


def start_offsets(broker: Broker, topic: str, start: Start) -> dict[int, int]:
    """The offset at which each lane begins, for a new run."""
    if isinstance(start, AtTime):
        return broker.offsets_at(topic, int(start.time.timestamp() * 1000))
    ends = broker.ends(topic)
    return {lane: end.first if start == "earliest" else end.end for lane, end in ends.items()}


def first_meta(broker: Broker, topic: str, offsets: Mapping[int, int]) -> TokensMeta | None:
    """What the first token batch at or behind `offsets` says of its tokenizer; None when there is none yet.

    A new run needs it to size the model's vocabulary; an old one has it in its checkpoint. Returns when a message has
    come or every lane is known to be at its end, which a distant broker may take a while to say.
    """
    reader = broker.reader(topic, offsets)
    deadline = time.monotonic() + _MOST_S
    try:
        while time.monotonic() < deadline:
            fetched = reader.poll(1, _WAIT_S)
            if fetched.messages:
                return decode(fetched.messages[0].value)[1]
            if fetched.at_end.keys() >= offsets.keys():
                break
    finally:
        reader.close()
    return None
