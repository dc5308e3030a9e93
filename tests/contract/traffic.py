"""Writing what the tests read, in few words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.pipeline.topics import Broker, Message, Writer
from headrace.schemas.position import Position


@dataclass(frozen=True)
class Names:
    text: str
    tokens: str
    group: str
    writer: str


def write(writer: Writer, topic: str, values: Iterable[bytes], partition: int = 0) -> None:
    """One transaction of these messages."""
    writer.begin()
    for value in values:
        writer.append(topic, value, partition=partition)
    writer.commit("", "", {})


def fill(broker: Broker, names: Names, partitions: int = 1, per_partition: int = 5) -> list[tuple[int, bytes]]:
    """Make the text topic and put numbered messages into each partition. Returns (partition, value) of each."""
    broker.create(names.text, partitions)
    made = [(partition, b"%d:%d" % (partition, n)) for n in range(per_partition) for partition in range(partitions)]
    writer = broker.writer(f"{names.writer}.fill")
    writer.begin()
    for partition, value in made:
        writer.append(names.text, value, partition=partition)
    writer.commit("", "", {})
    writer.close()
    return made


def start_at_beginning(broker: Broker, names: Names) -> None:
    """What the start policy `earliest` does."""
    firsts = {partition: Position(ends.first) for partition, ends in broker.ends(names.text).items()}
    broker.set_positions(names.group, names.text, firsts)


def values(messages: Sequence[Message]) -> list[bytes]:
    return [message.value for message in messages]


def seen(messages: Sequence[Message]) -> list[tuple[int, bytes]]:
    return sorted((message.partition, message.value) for message in messages)
