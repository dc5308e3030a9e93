"""What the next step trains, agreed by all ranks before any of them begins it.

One call of `next`, on every rank, in the same order:

1. take micro-batches from the owned lanes (waits for lanes that have data; an empty lane gives nothing)
2. collate them, so that the loss count is known
3. exchange one small contribution with all ranks
4. decide, from the contributions alone and so identically everywhere:
       somebody was told to stop           -> end; what was taken is not trained and stays before the cursors
       nothing anywhere, all lanes ended   -> go back to the start for another pass, or end
       nothing anywhere                    -> idle: no step; look again when data comes
       fewer than `min_tokens`, at the end -> hold what there is and wait for more, at most `flush_s`
       otherwise                           -> a step

The loop calls `next` for step n + 1 in a thread while step n computes, so the device does not wait for any of this.
Rank 0's contribution also carries what only one clock may decide: whether a checkpoint is due, whether a held batch is
released, and the ends of the lanes once they are known.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Protocol

from headrace.trainer.agree import Line
from headrace.trainer.collate import Batch, Collate
from headrace.trainer.lanes import Taken
from headrace.trainer.reach import START, Odometer, Reach
from headrace.trainer.window import MicroBatch

#: Between two looks while nothing is there. Data on this rank cuts it short; it delays only what other ranks found.
IDLE_LOOK_S = 0.1


class Lanes(Protocol):
    """What is needed of `stream.LaneStream`."""

    def take(self, accumulate: int, *, held: Sequence[MicroBatch], stopping: threading.Event) -> Taken: ...
    def wait_for_data(self, timeout_s: float, *, stopping: threading.Event) -> bool: ...
    def set_ends(self, ends: Mapping[int, int]) -> None: ...
    def go_back(self, starts: Mapping[int, int], pass_number: int) -> None: ...


class Conductor(Protocol):
    """Rank 0's decisions; see `conduct.Conductor`."""

    def due(self, step: int, *, idle: bool) -> bool: ...
    def release(self) -> bool: ...
    def lane_ends(self) -> Mapping[int, int] | None: ...
    def agreed(self, *, stepped: bool, due: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one rank brings to the agreement."""

    micro_batches: int
    tokens: int  # padded
    real_tokens: int
    count: int  # terms of the loss
    at_end: int  # owned lanes that have nothing more for now
    ended: int  # owned lanes that will never have more
    stop: bool
    due: bool = False
    release: bool = False
    ends: dict[str, int] | None = None
    stretches: dict[str, tuple[float, float]] = field(default_factory=dict)  # by lane, as `reach.Odometer` gives them


@dataclass(frozen=True, slots=True)
class Agreed:
    """One agreement. `ended` says why the run is over; a step has `global_micro_batches` > 0."""

    step: int
    global_micro_batches: int = 0
    count: int = 0
    micro_batches: tuple[MicroBatch, ...] = ()  # this rank's part
    batches: tuple[Batch, ...] = ()
    due: bool = False
    ended: str | None = None
    reach: Reach = START  # before the step


@dataclass(frozen=True, slots=True)
class StepRules:
    """What bounds a step. `last_step` ends the run after that step; `passes` go over the lanes from `starts`."""

    lanes: int  # of all ranks
    accumulate: int
    min_tokens: int
    last_step: int | None = None
    passes: int = 1
    starts: Mapping[int, int] = field(default_factory=dict)


class StepSource:
    """Sequence of agreements. `conductor` is given on rank 0 only."""

    def __init__(
        self,
        stream: Lanes,
        collate: Collate,
        line: Line,
        rules: StepRules,
        stopping: threading.Event,
        *,
        step: int = 0,
        pass_number: int = 1,
        conductor: Conductor | None = None,
        odometer: Odometer | None = None,
    ) -> None:
        self._stream = stream
        self._collate = collate
        self._line = line
        self._rules = rules
        self._stopping = stopping
        self._step = step
        self._pass_number = pass_number
        self._conductor = conductor
        self._odometer = odometer or Odometer({}, START, measured=False)
        self._holding = False
        self._idle = False

    def next(self) -> Agreed:
        """Agree on what comes next. Blocks while lanes have data that has not arrived, and while a batch is held."""
        if self._rules.last_step is not None and self._step >= self._rules.last_step:
            return Agreed(self._step, ended="steps")
        if self._idle:
            self._stream.wait_for_data(IDLE_LOOK_S, stopping=self._stopping)
        held: list[MicroBatch] = []
        collated: dict[tuple[int, int, int], Batch] = {}
        while True:
            taken = self._stream.take(self._rules.accumulate, held=held, stopping=self._stopping)
            held = taken.micro_batches
            batches = [self._collated(micro_batch, collated) for micro_batch in held]
            agreed = self._decide(self._exchange(batches, taken), held, batches)
            if agreed is not None:
                if self._conductor is not None and agreed.ended is None:
                    self._conductor.agreed(stepped=agreed.global_micro_batches > 0, due=agreed.due)
                return agreed
            self._stream.wait_for_data(IDLE_LOOK_S, stopping=self._stopping)

    def _collated(self, micro_batch: MicroBatch, known: dict[tuple[int, int, int], Batch]) -> Batch:
        """Collate once, however often the batch is held."""
        key = (micro_batch.lane, micro_batch.before.start, micro_batch.before.taken)
        if key not in known:
            known[key] = self._collate(micro_batch)
        return known[key]

    def _exchange(self, batches: Sequence[Batch], taken: Taken) -> list[Contribution]:
        conductor = self._conductor
        ends = conductor.lane_ends() if conductor else None
        mine = Contribution(
            micro_batches=len(taken.micro_batches),
            tokens=sum(micro_batch.padded_tokens for micro_batch in taken.micro_batches),
            real_tokens=sum(micro_batch.tokens for micro_batch in taken.micro_batches),
            count=sum(batch.count for batch in batches),
            at_end=taken.lanes_at_end,
            ended=taken.lanes_ended,
            stop=self._stopping.is_set(),
            due=conductor.due(self._step if self._idle else self._step + 1, idle=self._idle) if conductor else False,
            release=conductor.release() if conductor and self._holding else False,
            ends={str(lane): offset for lane, offset in ends.items()} if ends is not None else None,
            stretches=self._odometer.stretches(taken.micro_batches),
        )
        return [Contribution(**item) for item in self._line.exchange_json(asdict(mine))]

    def _decide(
        self, everyone: Sequence[Contribution], held: Sequence[MicroBatch], batches: Sequence[Batch]
    ) -> Agreed | None:
        """From the contributions alone, so that every rank comes to the same. None: look again."""
        root = everyone[0]
        if root.ends is not None:
            lane_ends = {int(lane): offset for lane, offset in root.ends.items()}
            self._stream.set_ends(lane_ends)
            self._odometer.set_ends(lane_ends)
        if any(rank.stop for rank in everyone):
            return Agreed(self._step, ended="stopped")
        micro_batches = sum(rank.micro_batches for rank in everyone)
        ended = sum(rank.ended for rank in everyone) == self._rules.lanes
        self._idle = micro_batches == 0
        if micro_batches == 0:
            self._holding = False
            if ended and self._pass_number < self._rules.passes:
                self._pass_number += 1
                self._idle = False
                self._stream.go_back(self._rules.starts, self._pass_number)
                return None
            if ended:
                return Agreed(self._step, ended="end")
            return Agreed(self._step, due=root.due)
        at_end = sum(rank.at_end for rank in everyone) == self._rules.lanes
        small = sum(rank.tokens for rank in everyone) < self._rules.min_tokens
        if small and at_end and not ended and not root.release:
            self._holding = True
            return None
        self._holding = False
        reach = self._reach(everyone, held)
        self._step += 1
        return Agreed(
            self._step,
            global_micro_batches=micro_batches,
            count=sum(rank.count for rank in everyone),
            micro_batches=tuple(held),
            batches=tuple(batches),
            due=root.due,
            reach=reach,
        )

    def _reach(self, everyone: Sequence[Contribution], held: Sequence[MicroBatch]) -> Reach:
        """Where the run stands before the step that is begun with this."""
        stretches = {lane: stretch for rank in everyone for lane, stretch in rank.stretches.items()}
        tokens = sum(rank.real_tokens for rank in everyone)
        reach = self._odometer.reach(self._step, tokens, stretches, self._pass_number)
        self._odometer.stepped(reach, held)
        return reach
