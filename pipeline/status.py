"""Where the pipe stands, read from the broker alone: no stage needs to be asked, none needs to run.

What is read: the ends of the text topic and of the lanes, the positions of three groups (what ingest has read, what is
trained, what lies in a checkpoint), and the dead letters. The trainer reports its step, loss and so on in the notes of
lane 0's trained position. Offsets are shown, never subtracted: transaction markers take offsets too. Amounts are the
counters that the stages commit with their positions; dead letters are counted by reading their topic, each once.

A look costs a few requests and the dead letters that are new since the last one. Rates come from two looks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.pipeline import names
from headrace.pipeline.topics import Broker, Reader
from headrace.schemas.position import Position

#: A trainer reports every second; one that has not for so long is not running.
STALE_S = 15.0
_READ_MESSAGES = 5000


@dataclass(frozen=True, slots=True)
class Watched:
    """The names of what is looked at."""

    name: str
    run: str
    text_topic: str
    tokens_topic: str
    dead_letters_topic: str


@dataclass(frozen=True, slots=True)
class TextPartition:
    """One partition of the text topic. `read` is the next offset that ingest reads; None before it began."""

    partition: int
    first: int
    end: int
    read: int | None


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """One lane. `trained` and `checkpoint` are offsets of the next token batch; None before the first report."""

    lane: int
    first: int
    end: int
    trained: int | None
    checkpoint: int | None


@dataclass(frozen=True, slots=True)
class TrainerReport:
    """What rank 0 reports beside the trained positions."""

    reported_ms: int
    step: int = 0
    loss: float | None = None
    accuracy: float | None = None
    freshness_p50_s: float | None = None
    freshness_p99_s: float | None = None
    records: int = 0
    tokens: int = 0
    macro_f1: float | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """One look."""

    at_ms: int
    text: tuple[TextPartition, ...]
    lanes: tuple[LaneStatus, ...]
    emitted_tokens: int
    trained_tokens: int
    skipped_tokens: int
    dead_letters: int
    trainer: TrainerReport | None

    @property
    def backlog_tokens(self) -> int:
        """Tokens that ingest emitted and no step has trained yet."""
        return max(0, self.emitted_tokens - self.trained_tokens - self.skipped_tokens)

    @property
    def trainer_runs(self) -> bool:
        return self.trainer is not None and self.at_ms - self.trainer.reported_ms < STALE_S * 1000


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second, between two looks; None where that cannot be said."""

    emitted_tokens: float | None = None
    tokens: float | None = None
    records: float | None = None
    backlog_s: float | None = None


class StatusReader:
    """Looks again and again; keeps the place up to which dead letters were counted."""

    def __init__(self, broker: Broker, watched: Watched, clock: Callable[[], float] = time.time) -> None:
        self._broker = broker
        self._watched = watched
        self._clock = clock
        self._dead: Reader | None = None
        self._dead_letters = 0
        self._counted_upto: dict[int, int] = {}

    def look(self) -> Status:
        """Raises BrokerAway. Topics that are not there yet are empty."""
        watched, broker = self._watched, self._broker
        read = broker.positions(names.ingest_group(watched.name), watched.text_topic, settled=False)
        trained = broker.positions(names.trained_group(watched.name, watched.run), watched.tokens_topic, settled=False)
        saved = broker.positions(names.checkpoint_group(watched.name, watched.run), watched.tokens_topic, settled=False)
        return Status(
            at_ms=int(self._clock() * 1000),
            text=self._text(read),
            lanes=self._lanes(trained, saved),
            emitted_tokens=sum(position.tokens for position in read.values()),
            trained_tokens=sum(position.tokens for position in trained.values()),
            skipped_tokens=sum(_whole(position.notes.get("skipped_tokens")) for position in trained.values()),
            dead_letters=self._count_dead_letters(),
            trainer=_report(trained.get(0)),
        )

    def close(self) -> None:
        if self._dead is not None:
            self._dead.close()

    def _text(self, read: Mapping[int, Position]) -> tuple[TextPartition, ...]:
        if self._broker.describe(self._watched.text_topic) is None:
            return ()
        ends = self._broker.ends(self._watched.text_topic)
        return tuple(
            TextPartition(number, at.first, at.end, read[number].offset if number in read else None)
            for number, at in sorted(ends.items())
        )

    def _lanes(self, trained: Mapping[int, Position], saved: Mapping[int, Position]) -> tuple[LaneStatus, ...]:
        if self._broker.describe(self._watched.tokens_topic) is None:
            return ()
        ends = self._broker.ends(self._watched.tokens_topic)
        return tuple(
            LaneStatus(lane, at.first, at.end, _offset(trained.get(lane)), _offset(saved.get(lane)))
            for lane, at in sorted(ends.items())
        )

    def _count_dead_letters(self) -> int:
        """Count those that came since the last look; asks for messages only where the topic has grown."""
        topic = self._watched.dead_letters_topic
        if self._broker.describe(topic) is None:
            return 0
        ends = self._broker.ends(topic)
        if self._dead is None:
            self._counted_upto = {partition: at.first for partition, at in ends.items()}
            self._dead = self._broker.reader(topic, self._counted_upto)
        upto = self._counted_upto
        while any(upto.get(partition, 0) < at.end for partition, at in ends.items()):
            fetched = self._dead.poll(_READ_MESSAGES, 1.0)
            passed = {message.partition: message.offset + 1 for message in fetched.messages} | fetched.at_end
            if all(upto.get(partition, 0) >= offset for partition, offset in passed.items()):
                break  # nothing came: the next look goes on from here
            self._dead_letters += len(fetched.messages)
            upto.update(passed)
        return self._dead_letters


def rates(before: Status, after: Status) -> Rates:
    """What went through between two looks."""
    emitted = _rate(after.emitted_tokens - before.emitted_tokens, after.at_ms - before.at_ms)
    if before.trainer is None or after.trainer is None or not after.trainer_runs:
        return Rates(emitted_tokens=emitted)
    passed_ms = after.trainer.reported_ms - before.trainer.reported_ms
    tokens = _rate(after.trainer.tokens - before.trainer.tokens, passed_ms)
    records = _rate(after.trainer.records - before.trainer.records, passed_ms)
    return Rates(emitted, tokens, records, after.backlog_tokens / tokens if tokens else None)


def _rate(amount: int, passed_ms: int) -> float | None:
    # A restarted trainer counts again from its checkpoint: no rate is better than a negative one.
    return amount * 1000 / passed_ms if passed_ms > 0 and amount >= 0 else None


def _offset(position: Position | None) -> int | None:
    return position.offset if position is not None else None


def _whole(value: object) -> int:
    return int(value) if isinstance(value, int | float) else 0


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _report(position: Position | None) -> TrainerReport | None:
    notes = position.notes if position is not None else {}
    if "reported_ms" not in notes:
        return None
    return TrainerReport(
        reported_ms=_whole(notes["reported_ms"]),
        step=_whole(notes.get("step")),
        loss=_number(notes.get("loss")),
        accuracy=_number(notes.get("accuracy")),
        macro_f1=_number(notes.get("macro_f1")),
        freshness_p50_s=_number(notes.get("freshness_p50_s")),
        freshness_p99_s=_number(notes.get("freshness_p99_s")),
        records=_whole(notes.get("records")),
        tokens=_whole(notes.get("tokens")),
    )
