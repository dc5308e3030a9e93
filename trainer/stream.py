"""The stream of micro-batches of one rank: a reader, a thread that prefetches, and the cursors.

A prefetch thread owns the reader (opened, used and closed in it). It polls, decodes and validates outside the lock,
and hands what came to the lanes under it; windows are cut as soon as they are complete, so a step finds its
micro-batches ready. What it holds is bounded by the lanes, which are paused when they are full. An error in it is
raised again by `take`. Without prefetch the caller's thread does the same work inside `take`, which tests use with a
clock of their own.

Two positions per lane: how far micro-batches were *given*, which is the lane's own affair, and the cursor, which moves
when the loop says that they were *trained*. A checkpoint holds cursors only.

Cost of a resume: one window per lane. Cost in memory: two windows per lane, and one poll.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from headrace.pipeline.topics import Broker, Fetched, Reader
from headrace.schemas.cursor import Cursor
from headrace.schemas.errors import BrokerAway, RecordsLost
from headrace.schemas.tokens import TokensMeta
from headrace.trainer.lane import LaneRules
from headrace.trainer.lanes import Fingerprints, Lanes, Taken, share_out
from headrace.trainer.window import MicroBatch

if TYPE_CHECKING:
    from headrace.trainer.token_stream import TokenStreamBase as TokenStream

__all__ = ["LaneStream", "TokenStream"]

#: Token batches fetched at a time: bounds what is held beside the windows.
MAX_MESSAGES = 32

#: Longest poll, and so how soon a change of mind (stop, pause, close) is noticed.
POLL_S = 0.1

Clock = Callable[[], float]


class LaneStream:
    """Micro-batches of the lanes in `cursors`. A context manager: entering opens the reader, leaving closes it."""

    def __init__(
        self,
        broker: Broker,
        topic: str,
        cursors: Mapping[int, Cursor],
        rules: LaneRules,
        *,
        prefetch: bool = True,
        clock: Clock = time.monotonic,
    ) -> None:
        self._broker = broker
        self._topic = topic
        self._cursors = dict(cursors)
        self._given = dict(cursors)  # where the next micro-batch to give begins
        self._offsets: dict[int, int] = {}  # where the reader begins
        self._lanes = Lanes(cursors, rules)
        self._fingerprints = Fingerprints(rules.fingerprint)
        self._clock = clock
        self._changed = threading.Condition(threading.RLock())  # guards all below, and the lanes
        self._reader: Reader | None = None
        self._thread = (
            threading.Thread(target=self._prefetch, name="headrace-prefetch", daemon=True) if prefetch else None
        )
        self._closing = threading.Event()
        self._failure: BaseException | None = None
        self._trouble = ""
        self._paused: frozenset[int] = frozenset()
        self._seeks: dict[int, int] = {}

    def __enter__(self) -> Self:
        ends = self._broker.ends(self._topic)
        self._offsets = self._lanes.open({number: ends[number].end for number in self._lanes.numbers})
        if self._thread is None:
            self._reader = self._broker.reader(self._topic, self._offsets)
        else:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop prefetching and close the reader. What was given and not trained is given again after a resume."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()
        elif self._reader is not None:
            self._reader.close()
        self._reader = None

    @property
    def meta(self) -> TokensMeta | None:
        """What the token batches say of themselves, once one has come."""
        return self._fingerprints.meta

    # The training loop's side.

    def take(
        self,
        accumulate: int | Mapping[int, int],
        *,
        held: Sequence[MicroBatch] = (),
        stopping: threading.Event | None = None,
    ) -> Taken:
        """Wait until every lane has `accumulate` micro-batches or is empty, and take up to so many of each.

        With a mapping, so many of each lane that it names. `held` were taken before and not trained: they count, and
        stand in the result.
        Interrupted by `stopping` it takes nothing new and says what it was waiting for. Raises what the prefetch thread
        met (RecordsLost, TokensInvalid, ...), and Stalled.
        """
        wanted = accumulate if isinstance(accumulate, Mapping) else dict.fromkeys(self._lanes.numbers, accumulate)
        have = Counter(micro.lane for micro in held)
        with self._changed:
            self._raise_failure()
            self._lanes.want({number: count - have[number] for number, count in wanted.items()}, self._clock())
            self._changed.notify_all()
            while waiting := self._lanes.waiting(self._clock()):
                self._raise_failure()
                if self._closing.is_set() or (stopping is not None and stopping.is_set()):
                    return self._lanes.taken(list(held), waiting)
                self._lanes.check_stalled(self._clock(), self._trouble)
                self._wait(POLL_S)
            fresh = self._lanes.give()
            self._given.update({micro.lane: micro.after for micro in fresh})
            self._changed.notify_all()
            return self._lanes.taken(sorted([*held, *fresh], key=lambda micro: micro.lane))

    def wait_for_data(self, timeout_s: float, *, stopping: threading.Event | None = None) -> bool:
        """Wait until a lane that gave the last `take` less than it asked for has more. False: nothing came in time."""
        deadline_s = self._clock() + timeout_s
        with self._changed:
            while not self._lanes.has_more():
                self._raise_failure()
                left_s = deadline_s - self._clock()
                if left_s <= 0 or (stopping is not None and stopping.is_set()):
                    return False
                self._wait(min(left_s, POLL_S))
            return True

    def trained(self, micro_batches: Sequence[MicroBatch]) -> None:
        """Advance the cursors: the optimizer has stepped on these (or they were given up), in the order of giving.

        Raises ValueError for micro-batches out of order: a cursor that jumps would lose records.
        """
        with self._changed:
            for micro in micro_batches:
                cursor = self._cursors[micro.lane]
                if not _follows(micro.before, cursor):
                    raise ValueError(f"lane {micro.lane}: trained {micro.before} while the cursor is {cursor}")
                self._cursors[micro.lane] = micro.after

    def cursors(self) -> dict[int, Cursor]:
        """The cursor of every lane: all before it was trained, nothing behind it."""
        with self._changed:
            return {number: self._cursor(number) for number in self._lanes.numbers}

    def set_ends(self, ends: Mapping[int, int]) -> None:
        """Fix the ends of lanes, or move them: no record at or behind them is taken. Lanes of other ranks are ignored.

        A run is repeated with these two: for each step the end of the window that its last cursor names, and `take`
        with the micro-batches that each lane gave.
        """
        with self._changed:
            for number in self._lanes.numbers:
                if number in ends:
                    read_again_from = self._lanes[number].set_end(ends[number])
                    if read_again_from is not None:
                        self._seeks[number] = read_again_from
                    self._lanes[number].advance(self._clock())
            self._changed.notify_all()

    def go_back(self, starts: Mapping[int, int], pass_number: int) -> None:
        """Begin another pass over lanes that have all ended. Cursors follow as its micro-batches are trained.

        Raises RecordsLost where retention has deleted the beginning.
        """
        ends = self._broker.ends(self._topic)
        with self._changed:
            for number in self._lanes.numbers:
                start, first = starts[number], ends[number].first
                if start < first and start < ends[number].end:
                    raise RecordsLost(
                        f"pass {pass_number} begins at offset {start} of lane {number}, where retention has deleted "
                        f"the {first - start} offsets before {first}: keep tokens as long as all passes take "
                        "(tokens.retention_h), or end this run with the passes that it has (train.passes)"
                    )
                self._lanes[number].go_back(start, pass_number)
                self._given[number] = Cursor.at(start, pass_number)
                self._seeks[number] = start
            self._changed.notify_all()

    # The reader's side.

    def _prefetch(self) -> None:
        try:
            self._reader = self._broker.reader(self._topic, self._offsets)
            try:
                while not self._closing.is_set():
                    self._pump(POLL_S)
            finally:
                self._reader.close()
        except BaseException as error:  # noqa: BLE001 (raised again by `take`)
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _pump(self, wait_s: float) -> None:
        """Poll once and hand what came to the lanes."""
        assert self._reader is not None
        with self._changed:
            self._steer(self._reader)
            if len(self._paused) == len(self._lanes.numbers) and self._thread is not None:
                self._changed.wait(wait_s)  # all lanes are full: poll all the same, so that the client stays alive
                wait_s = 0.0
        try:
            fetched = self._reader.poll(MAX_MESSAGES, wait_s)
            trouble = ""
        except BrokerAway as error:
            fetched, trouble = Fetched(), f"; the broker is away: {error}"
            self._closing.wait(wait_s)
        batches = share_out(fetched, self._fingerprints, self._clock())
        with self._changed:
            self._trouble = trouble
            for number in self._seeks:  # fetched before its end was fixed: it will be read again
                batches.pop(number, None)
                fetched.at_end.pop(number, None)
            self._lanes.receive(batches, fetched.at_end, self._clock())
            self._changed.notify_all()

    def _steer(self, reader: Reader) -> None:
        """Seek, pause and resume as the lanes ask."""
        for number, offset in self._seeks.items():
            reader.seek(number, offset)
        self._seeks.clear()
        self._lanes.advance(self._clock())  # what waits in the lanes comes before anything new
        full = self._lanes.full()
        if full - self._paused:
            reader.pause(sorted(full - self._paused))
        if self._paused - full:
            reader.resume(sorted(self._paused - full))
        self._paused = full

    def _wait(self, most_s: float) -> None:
        """Let time pass until something may have changed; the lock is held, and free while it waits."""
        flush_s = self._lanes.next_flush_s()
        wait_s = most_s if flush_s is None else max(0.0, min(most_s, flush_s - self._clock()))
        if self._thread is None:
            self._pump(wait_s)
        else:
            self._changed.wait(wait_s)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _cursor(self, number: int) -> Cursor:
        """An idle lane's cursor follows its reader over transaction markers; any other stands where training is."""
        idle = self._lanes[number].idle_cursor
        return idle if idle is not None and self._cursors[number] == self._given[number] else self._cursors[number]


def _follows(before: Cursor, cursor: Cursor) -> bool:
    """Whether a micro-batch is the next one of a lane. Between windows lie transaction markers, between passes all."""
    if cursor.open:
        return (before.start, before.taken, before.pass_number) == (cursor.start, cursor.taken, cursor.pass_number)
    if before.pass_number > cursor.pass_number:
        return before.taken == 0
    return before.taken == 0 and before.start >= cursor.end and before.pass_number == cursor.pass_number


def __getattr__(name: str) -> Any:
    """`TokenStream` is made when it is first asked for: its base class comes with Paddle, which takes seconds."""
    if name == "TokenStream":
        from headrace.trainer.token_stream import token_stream_class

        return token_stream_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
