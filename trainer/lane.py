"""One lane of a rank: token batches come in, micro-batches go out. No I/O, no threads, and the clock is passed in.

Token batches wait in the inbox, are collected into a window, and a window that is closed is cut into micro-batches:

    receive -> inbox -> pending (the window being collected) -> windows (cut; the first is the open one) -> give

A window is closed, and which one of these it was follows from the topic alone wherever the topic is already full:

1. with the token batch that brings it to `window_tokens`;
2. at once where the lane's fixed end is reached: a record beyond it is never taken;
3. at the end of the lane, when its oldest row has waited `flush_s` and a step waits for it. The same holds short of the
   end for a window that lies wholly in what was published after the run had opened the lane (`live_from`): workers that
   always have a transaction open would otherwise keep the lane from ever being at its end;
4. a window that a cursor names is read again: exactly its token batches, cut under its own plan.

Bounded: the open window and one more. While a lane holds two, `full` says to fetch no more of it.

A step *waits* for the lane until it is settled: it has what the step wants, or it is empty (at its end, with nothing
pending), or it was seen empty or closed a window by time since the step began to wait. So whatever comes in
meanwhile, a lane at its end is waited for `flush_s` at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.schemas.cursor import Cursor, CuttingPlan
from headrace.schemas.errors import CheckpointDamaged, RecordsLost, Stalled
from headrace.schemas.exclusion import Exclusion
from headrace.trainer.window import MicroBatch, Screen, Window, cut

#: Windows that a lane holds at most: the open one and the next.
WINDOWS = 2


@dataclass(frozen=True, slots=True)
class LaneRules:
    """What all lanes of a run have in common."""

    plan: CuttingPlan
    screen: Screen
    flush_s: float
    stall_s: float
    fingerprint: str | None = None  # of the tokenizer that made the token batches; None: the first batch decides
    exclusions: tuple[Exclusion, ...] = ()  # all of the run's


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """A token batch as it arrived: the message's offset, its rows, and when it came."""

    offset: int
    rows: pa.RecordBatch
    tokens: int
    arrived_s: float


@dataclass(slots=True)
class _CutWindow:
    start: int
    end: int
    left: deque[MicroBatch]
    begun: bool  # a micro-batch of it was given: it will be finished


class Lane:
    """The state of one lane. See the module's text for the rules."""

    def __init__(self, number: int, cursor: Cursor, rules: LaneRules) -> None:
        self.number = number
        self.live_from: int | None = None  # the end of the lane when it was opened; None: nothing in it is live
        self.start = cursor.start  # everything before it has been cut
        self.pass_number = cursor.pass_number
        self._rules = rules
        self._reopened = cursor if cursor.open else None
        self._end: int | None = None
        self._at_end: int | None = None  # where the reader stands, when that is the end of what there is
        self._inbox: deque[TokenBatch] = deque()
        self._pending: list[TokenBatch] = []
        self._pending_tokens = 0
        self._windows: deque[_CutWindow] = deque()
        self._wanted = 0
        self._settled = True
        self._waiting_since_s = 0.0
        self._progress_s = 0.0

    # What comes in.

    def receive(self, batches: Sequence[TokenBatch], at_end: int | None, now_s: float) -> None:
        """Take in what a poll brought. `at_end` is the reader's offset if that is the end, with nothing uncommitted."""
        if batches or (at_end is not None and self._at_end is None):
            self._progress_s = now_s
        self._inbox.extend(batches)
        self._at_end = at_end
        self.advance(now_s)

    def set_end(self, end: int) -> int | None:
        """Fix the lane's end, or move it. Returns the offset to read again from, where that is needed: when more had
        been read ahead, or when the end moves on and what lay behind it had been let go.

        A window of which a micro-batch was given is finished even if it reaches beyond the end: it was begun before
        the end was known.
        """
        moves_on = self._end is not None and end > self._end
        self._end = end
        if self._reopened is not None:
            return None
        waiting = [batch.offset for batch in (*self._pending, *self._inbox)]
        ahead = [window for window in self._windows if not window.begun and window.end > end]
        if not moves_on and not ahead and all(offset < end for offset in waiting):
            return None
        for _ in ahead:
            self.start = self._windows.pop().start
        self._inbox.clear()
        self._pending.clear()
        self._pending_tokens = 0
        self._at_end = None
        return self.start

    def go_back(self, start: int, pass_number: int) -> None:
        """Begin another pass at `start`; the lane has ended. All of it is there, so none of its windows is live."""
        self.start = start
        self.pass_number = pass_number
        self.live_from = None
        self._at_end = None
        self._inbox.clear()

    # What a step waits for.

    def want(self, micro_batches: int, now_s: float) -> None:
        """A step begins to wait for so many micro-batches."""
        self._wanted = micro_batches
        self._settled = False
        self._waiting_since_s = now_s
        self.advance(now_s)

    def give(self) -> list[MicroBatch]:
        """What the step wanted, or as much of it as there is."""
        given: list[MicroBatch] = []
        while self._windows and len(given) < self._wanted:
            window = self._windows[0]
            given.append(window.left.popleft())
            window.begun = True
            if not window.left:
                self._windows.popleft()
        self._wanted -= len(given)
        self._settled = True
        return given

    @property
    def settled(self) -> bool:
        return self._settled

    @property
    def ended(self) -> bool:
        """Whether the lane has given everything up to its fixed end."""
        return not self._windows and self._collected_all and self._end_passed()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to give, and the reader is at the end of the lane (or the lane has ended)."""
        return not self._windows and self._caught_up

    @property
    def has_more(self) -> bool:
        """Whether there is something for a step whose wants this lane did not satisfy."""
        return self._wanted > 0 and not self.ended and not self._idle

    @property
    def full(self) -> bool:
        """Whether to fetch no more for now."""
        return self.ended or not self._room()

    @property
    def idle_cursor(self) -> Cursor | None:
        """Where the lane stands when it holds nothing: behind transaction markers too, lest retention overtake it."""
        return Cursor.at(self.start, self.pass_number) if self._idle else None

    def flush_at_s(self) -> float | None:
        """When a window will be closed by time, if nothing else happens."""
        return self._pending[0].arrived_s + self._rules.flush_s if self._may_flush() else None

    def check_stalled(self, now_s: float, trouble: str = "") -> None:
        """Raises Stalled when a step has waited `stall_s` for data that the broker has, without any coming in."""
        if self._settled or self._at_end is not None:
            return
        waited_s = now_s - max(self._waiting_since_s, self._progress_s)
        if waited_s > self._rules.stall_s:
            raise Stalled(
                f"lane {self.number} has not come to its end, yet nothing came from offset {self._position()} on for "
                f"{waited_s:.0f} s (train.stall_s is {self._rules.stall_s:g}){trouble}: see whether the broker is "
                "well, and whether an ingest worker died and left a transaction open"
            )

    # How windows come about.

    def advance(self, now_s: float) -> None:
        """Close every window that is to be closed now."""
        while self._room():
            self._collect()
            if not self._due(now_s):
                break
            self._close()
        if self._caught_up and self._at_end is not None:
            self.start = max(self.start, self._at_end if self._end is None else min(self._at_end, self._end))
        if self._caught_up or self._available() >= self._wanted:
            self._settled = True

    def _room(self) -> bool:
        return len(self._windows) < WINDOWS or self._available() < self._wanted

    def _collect(self) -> None:
        """Move token batches into the window being collected, until it is complete or none is left."""
        while self._inbox and not self._complete():
            batch = self._inbox[0]
            if batch.offset < self.start:
                raise CheckpointDamaged(
                    f"lane {self.number}: the window that ends at offset {self.start} has more token batches than its "
                    "cursor names: the checkpoint belongs to another tokens topic; use a new `name` or a new train.run"
                )
            if self._reopened is not None and batch.offset >= self._reopened.end:
                raise self._window_lost(self._reopened)
            if self._reopened is None and self._end is not None and batch.offset >= self._end:
                self._inbox.clear()
                self._at_end = self._end  # as far as this run is concerned
                self.start = self.start if self._pending else self._end
                return
            self._pending.append(self._inbox.popleft())
            self._pending_tokens += batch.tokens

    def _complete(self) -> bool:
        if self._reopened is not None:
            return len(self._pending) == self._reopened.token_batches
        return self._pending_tokens >= self._rules.plan.window_tokens

    def _due(self, now_s: float) -> bool:
        """Whether the window being collected is to be closed now."""
        if self._complete():
            return True
        if self._reopened is not None:
            if self._at_end is not None:
                raise self._window_lost(self._reopened)
            return False
        if self._pending and self._end_passed():
            return True
        if self._may_flush() and now_s >= self._pending[0].arrived_s + self._rules.flush_s:
            self._settled = True
            return True
        return False

    def _may_flush(self) -> bool:
        """Whether the window being collected is one that time may close."""
        if not self._pending or self._settled or self._reopened is not None:
            return False
        live = self.live_from is not None and self._pending[0].offset >= self.live_from
        return self._at_end is not None or live

    def _close(self) -> None:
        """Cut the window being collected.

        It reaches from its first token batch to its last, whatever markers lie around it: how soon the reader was seen
        to pass those must not decide anything.
        """
        cursor, self._reopened = self._reopened, None
        start = self._pending[0].offset if cursor is None else cursor.start
        end = self._position() if cursor is None else cursor.end
        window = Window.of(start, end, [batch.rows for batch in self._pending], self.pass_number)
        plan = self._rules.plan if cursor is None or cursor.plan is None else cursor.plan
        left = deque(cut(window, plan, self.number, self._rules.screen, self._rules.exclusions))
        taken = 0 if cursor is None else cursor.taken
        if taken >= len(left):
            raise CheckpointDamaged(
                f"lane {self.number}: the window from offset {start} to {end} has {len(left)} micro-batches, its "
                f"cursor says that {taken} of them were trained and some are left: go back to an older checkpoint"
            )
        for _ in range(taken):
            left.popleft()
        self._windows.append(_CutWindow(start, end, left, begun=cursor is not None))
        self.start = end
        self._pending.clear()
        self._pending_tokens = 0

    def _window_lost(self, cursor: Cursor) -> RecordsLost:
        return RecordsLost(
            f"lane {self.number}: the open window from offset {cursor.start} to {cursor.end} had "
            f"{cursor.token_batches} token batches, {len(self._pending)} of them are left in the topic: go back to a "
            "checkpoint that retention has not overtaken, or start a new train.run from these weights"
        )

    @property
    def _collected_all(self) -> bool:
        """Whether everything that came in has been cut."""
        return not self._pending and not self._inbox and self._reopened is None

    @property
    def _caught_up(self) -> bool:
        """Whether everything that there is has been cut."""
        return self._collected_all and (self._at_end is not None or self._end_passed())

    @property
    def _idle(self) -> bool:
        return not self._windows and self._collected_all

    def _available(self) -> int:
        return sum(len(window.left) for window in self._windows)

    def _position(self) -> int:
        """The first offset that was not collected."""
        return self._pending[-1].offset + 1 if self._pending else self.start

    def _end_passed(self) -> bool:
        if self._end is None:
            return False
        return self._position() >= self._end or (
            not self._inbox and self._at_end is not None and self._at_end >= self._end
        )
