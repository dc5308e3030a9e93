"""The training loop of one rank, without Paddle: what learns is behind `learner.Learner`.

The order of a step; the numbers stand again in the code:

1. take the agreement on this step, and let a thread begin the one on the next
2. learn: forward, backward, reduce, optimizer step, on all ranks together
3. advance the cursors: from here on these records are trained
4. note the rows in the ledger, keep the held-out ones
5. send this rank's figures to rank 0
6. evaluate and save, when due; the best checkpoint so far is always saved. Where ranks take local steps, as soon as
   they are equal again

A kill anywhere leaves the last checkpoint, in which weights, cursors and ledger belong together; what came after it is
done again in the same way.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow.compute as pc

from headrace.schemas.cursor import Cursor
from headrace.schemas.errors import BadLoss
from headrace.schemas.ledger import ORIGIN_COLUMNS, Outcome
from headrace.schemas.record import Origin
from headrace.trainer.agree import Line
from headrace.trainer.freshness import Ages
from headrace.trainer.held_out import HeldOut
from headrace.trainer.learner import Learner, Score, StepResult
from headrace.trainer.ledger import LedgerRows
from headrace.trainer.progress import RankReport
from headrace.trainer.reach import Reach
from headrace.trainer.source import Agreed, StepSource
from headrace.trainer.window import MicroBatch

_log = logging.getLogger(__name__)

_MOST_NAMED = 20

#: A step whose micro-batches hold nothing to learn from moves the cursors and is noted; the learner is not asked.
NOTHING_LEARNT = StepResult(Score(0.0, 0.0, 0), 0.0)


class Lanes(Protocol):
    """What the loop needs of `stream.LaneStream`."""

    def trained(self, micro_batches: Sequence[MicroBatch]) -> None: ...
    def cursors(self) -> Mapping[int, Cursor]: ...


class Watcher(Protocol):
    """Rank 0's view of the loop; other ranks have none."""

    def stepped(self, step: int, result: StepResult, reports: Sequence[RankReport], reach: Reach) -> None: ...
    def idle(self) -> None: ...
    def evaluated(self, step: int, scores: Mapping[str, Score]) -> bool:
        """Returns whether it is the best one so far, and its checkpoint is to be kept."""


@dataclass(frozen=True, slots=True)
class LoopParts:
    """What a rank's loop works with."""

    source: StepSource
    lanes: Lanes
    learner: Learner
    ledger: LedgerRows
    held_out: HeldOut
    results: Line
    learning_rate: Callable[[Reach], float]
    evaluate: Callable[[], Mapping[str, Score]]  # on all ranks together; by the name of what is scored
    save: Callable[[int], None]  # on all ranks together; called with the step that is saved
    keep_best: bool = False
    watcher: Watcher | None = None


class Loop:
    """One rank's loop. `left` counts, per lane, the tokens that have left it since the topic began."""

    def __init__(
        self,
        parts: LoopParts,
        left: dict[int, int],
        evaluate_every: int | None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._parts = parts
        self._left = left
        self._evaluate_every = evaluate_every
        self._now_ms = now_ms
        self._wait_s = 0.0  # since the last step
        self._save_due = False
        self._evaluation_due = False
        self._evaluated_step: int | None = None

    def run(self, saved_step: int) -> tuple[int, str]:
        """Train until the agreement ends the run; returns the last step and why: `end`, `steps` or `stopped`.

        `saved_step` is the step of the last checkpoint. What was trained since is saved before this returns.
        """
        parts = self._parts
        ahead = ThreadPoolExecutor(1, thread_name_prefix="ahead")
        try:
            future = ahead.submit(parts.source.next)
            while (agreed := self._wait(future)).ended is None:  # 1
                future = ahead.submit(parts.source.next)
                best = False
                if agreed.global_micro_batches:
                    best = self._step(agreed)
                elif parts.watcher is not None:
                    parts.watcher.idle()
                self._save_due |= agreed.due or best
                equal = parts.learner.together or not agreed.global_micro_batches
                if self._save_due and equal and agreed.step > saved_step:  # 6
                    parts.save(agreed.step)
                    saved_step = agreed.step
                    self._save_due = False
        finally:
            # After an error the thread may wait for a rank that never comes: the process ends without it.
            ahead.shutdown(wait=False, cancel_futures=True)
        if agreed.ended != "stopped":
            parts.learner.collect()
        if agreed.ended != "stopped" and self._evaluated_step != agreed.step:
            self._evaluate(agreed.step)
        if agreed.step > saved_step:
            parts.save(agreed.step)
        return agreed.step, agreed.ended

    def _wait(self, future: Future[Agreed]) -> Agreed:
        began = time.monotonic()
        agreed = future.result()
        self._wait_s += time.monotonic() - began
        return agreed

    def _step(self, agreed: Agreed) -> bool:
        """One step; returns whether its checkpoint is the best one so far."""
        parts = self._parts
        result = NOTHING_LEARNT
        began = time.monotonic()
        if agreed.count:
            result = self._learn(agreed)  # 2
        step_s = time.monotonic() - began
        if result.skipped is not None:
            _log.warning(
                "step %d skipped: %s; records: %s", agreed.step, result.skipped, _named(result.skipped, agreed)
            )
        parts.lanes.trained(agreed.micro_batches)  # 3
        stepped_ms = self._now_ms()
        parts.ledger.add(agreed.step, agreed.micro_batches, stepped_ms, *_outcome(result))  # 4
        parts.held_out.add(agreed.micro_batches)
        report = self._report(agreed, stepped_ms, step_s, result)
        reports = parts.results.gather_json(report.to_json())  # 5
        if parts.watcher is not None:
            parts.watcher.stepped(agreed.step, result, [RankReport(**each) for each in reports], agreed.reach)
        self._wait_s = 0.0
        self._evaluation_due |= self._evaluate_every is not None and agreed.step % self._evaluate_every == 0
        if self._evaluation_due and parts.learner.together:  # 6
            return self._evaluate(agreed.step)
        return False

    def _learn(self, agreed: Agreed) -> StepResult:
        try:
            rate = self._parts.learning_rate(agreed.reach)
            return self._parts.learner.step(agreed.batches, agreed.count, rate)
        except BadLoss as error:
            if not error.batches:
                raise
            raise type(error)(f"{error}; records: {_named(error, agreed)}", error.batches) from error

    def _report(self, agreed: Agreed, stepped_ms: int, step_s: float, result: StepResult) -> RankReport:
        """Records of a skipped step have left their lanes, and that is all that counts of them."""
        trained = result.skipped is None
        lanes: dict[str, tuple[int, int, int]] = {str(lane): (0, 0, 0) for lane in self._parts.lanes.cursors()}
        for micro_batch in agreed.micro_batches:
            rows, tokens, padded_tokens = lanes[str(micro_batch.lane)]
            lanes[str(micro_batch.lane)] = (
                rows + len(micro_batch.rows),
                tokens + micro_batch.tokens,
                padded_tokens + micro_batch.padded_tokens,
            )
            if micro_batch.before.pass_number > 1:
                continue  # it left the lane in the first pass
            self._left[micro_batch.lane] = self._left.get(micro_batch.lane, 0) + micro_batch.left_tokens
        ages = Ages()
        counted = agreed.micro_batches if trained else ()
        for micro_batch in counted:
            if len(micro_batch.rows) and micro_batch.before.pass_number == 1:
                published_ms = np.asarray(pc.cast(micro_batch.rows.column("published"), "int64"))
                ages.add((stepped_ms - published_ms) / 1000)
        return RankReport(
            offsets={str(lane): cursor.start for lane, cursor in self._parts.lanes.cursors().items()},
            left={str(lane): tokens for lane, tokens in self._left.items()},
            ages={str(bucket): count for bucket, count in ages.counts.items()},
            rows=sum(len(micro_batch.rows) for micro_batch in counted),
            tokens=sum(micro_batch.tokens for micro_batch in counted),
            padded_tokens=sum(micro_batch.padded_tokens for micro_batch in counted),
            wait_s=self._wait_s,
            step_s=step_s,
            sent=result.traffic.to_json(),
            lanes=lanes,
        )

    def _evaluate(self, step: int) -> bool:
        """Score; returns, the same on all ranks, whether it is the best one so far."""
        parts = self._parts
        self._evaluation_due = False
        self._evaluated_step = step
        scores = parts.evaluate()
        if not scores:
            return False
        best = parts.watcher.evaluated(step, scores) if parts.watcher is not None else False
        return parts.keep_best and bool(parts.results.exchange_json({"best": best})[0]["best"])


def _outcome(result: StepResult) -> tuple[Outcome, str | None]:
    """What the ledger says of the step's records."""
    if result.skipped is None:
        return Outcome.TRAINED, None
    return Outcome.SKIPPED, result.skipped.reason


def _named(error: BadLoss, agreed: Agreed) -> str:
    """The records of this rank that are to blame."""
    origins = [origin for number in error.batches for origin in origins_of(agreed.micro_batches[number])]
    more = f" and {len(origins) - _MOST_NAMED} more" if len(origins) > _MOST_NAMED else ""
    return (", ".join(str(origin) for origin in origins[:_MOST_NAMED]) + more) or "none of this rank"


def origins_of(micro_batch: MicroBatch) -> list[Origin]:
    """The names of a micro-batch's records, in the order they are trained."""
    columns = (micro_batch.rows.column(name).to_pylist() for name in ORIGIN_COLUMNS)
    return [Origin(*values) for values in zip(*columns, strict=True)]
