"""The lanes of one rank, read by one reader: what came in is shared out to them, what a step takes is gathered.

No I/O and no threads: `trainer.stream` polls the reader and calls in here with what it brought and with the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.pipeline.topics import Fetched, Message
from headrace.schemas.cursor import Cursor
from headrace.schemas.errors import TokensInvalid
from headrace.schemas.tokens import TokensMeta, decode, token_count
from headrace.trainer.lane import Lane, LaneRules, TokenBatch
from headrace.trainer.window import MicroBatch


@dataclass(frozen=True, slots=True)
class Taken:
    """What a step takes of a rank's lanes."""

    micro_batches: list[MicroBatch]  # by lane, and inside a lane in the order of training
    lanes_at_end: int  # lanes that have nothing to give now: at the end of the topic, or at their fixed end
    lanes_ended: int  # those of them that are at their fixed end
    waiting: frozenset[int]  # lanes that were still waited for when the wait was interrupted; then nothing was taken


class Fingerprints:
    """Decodes token batches and sees that one tokenizer made them all."""

    def __init__(self, expected: str | None) -> None:
        self.meta: TokensMeta | None = None  # of the first batch
        self._expected = expected  # None: whatever the first batch has

    def decode(self, message: Message, now_s: float) -> TokenBatch:
        """Raises TokensInvalid naming the lane and offset, and both fingerprints where they differ."""
        where = f"lane {message.partition}, offset {message.offset}"
        try:
            rows, meta = decode(message.value)
        except TokensInvalid as error:
            raise TokensInvalid(f"{where}: {error}") from error
        if self._expected is None:
            self._expected = meta.fingerprint
        if meta.fingerprint != self._expected:
            raise TokensInvalid(
                f"{where}: made by tokenizer {meta.fingerprint[:16]}, this run trains on those of "
                f"{self._expected[:16]}: restore the tokenizer settings that the topic was begun with, "
                "or use a new `name`, which has topics of its own"
            )
        self.meta = self.meta or meta
        return TokenBatch(message.offset, rows, token_count(rows), now_s)


class Lanes:
    """The state of all lanes of a rank."""

    def __init__(self, cursors: Mapping[int, Cursor], rules: LaneRules) -> None:
        self._lanes = {number: Lane(number, cursors[number], rules) for number in sorted(cursors)}

    def __getitem__(self, number: int) -> Lane:
        return self._lanes[number]

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(self._lanes)

    def open(self, ends: Mapping[int, int]) -> dict[int, int]:
        """Note the ends of the topic as it is now (`trainer.lane`, rule 3). Returns where to read each lane from."""
        for number, lane in self._lanes.items():
            lane.live_from = ends[number]
        return {number: lane.start for number, lane in self._lanes.items()}

    # What comes in.

    def receive(self, batches: Mapping[int, list[TokenBatch]], at_end: Mapping[int, int], now_s: float) -> None:
        """Take in a poll: every lane hears of it, with or without token batches of its own."""
        for number, lane in self._lanes.items():
            lane.receive(batches.get(number, []), at_end.get(number), now_s)

    def advance(self, now_s: float) -> None:
        """Close the windows that are to be closed now."""
        for lane in self._lanes.values():
            lane.advance(now_s)

    def full(self) -> frozenset[int]:
        """Lanes of which no more is to be fetched for now. Right after `advance` only."""
        return frozenset(number for number, lane in self._lanes.items() if lane.full)

    # What a step waits for and takes.

    def want(self, micro_batches: Mapping[int, int], now_s: float) -> None:
        """A step begins to wait for so many micro-batches of each lane; lanes that are not named give none."""
        for number, lane in self._lanes.items():
            lane.want(max(0, micro_batches.get(number, 0)), now_s)

    def waiting(self, now_s: float) -> frozenset[int]:
        """Lanes that are not settled yet. Closes windows whose time has come."""
        self.advance(now_s)
        return frozenset(number for number, lane in self._lanes.items() if not lane.settled)

    def check_stalled(self, now_s: float, trouble: str) -> None:
        for lane in self._lanes.values():
            lane.check_stalled(now_s, trouble)

    def give(self) -> list[MicroBatch]:
        return [micro for lane in self._lanes.values() for micro in lane.give()]

    def taken(self, micro_batches: list[MicroBatch], waiting: frozenset[int] = frozenset()) -> Taken:
        """`micro_batches` with the state of the lanes behind them."""
        at_end = sum(lane.empty for lane in self._lanes.values())
        return Taken(micro_batches, at_end, sum(lane.ended for lane in self._lanes.values()), waiting)

    def has_more(self) -> bool:
        """Whether a lane that gave less than it was asked for has something now."""
        return any(lane.has_more for lane in self._lanes.values())

    def next_flush_s(self) -> float | None:
        """When the next window will be closed by time."""
        return min((at for lane in self._lanes.values() if (at := lane.flush_at_s()) is not None), default=None)


def share_out(fetched: Fetched, fingerprints: Fingerprints, now_s: float) -> dict[int, list[TokenBatch]]:
    """Decode what a poll brought, by lane. O(bytes), for the validation."""
    batches: dict[int, list[TokenBatch]] = {}
    for message in fetched.messages:
        batches.setdefault(message.partition, []).append(fingerprints.decode(message, now_s))
    return batches
