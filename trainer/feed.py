"""How fast the lanes become batches, without a model: what one rank can be fed with. No Paddle.

The real path: reader, windows, micro-batches and collate as in training, from where a new run would begin. Nothing is
committed and no cursor is stored, so a run over the same lanes does not notice. The first step waits for its windows to
fill and is not timed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from headrace.pipeline.topics import Broker
from headrace.schemas.cursor import Cursor
from headrace.schemas.errors import UsageError
from headrace.trainer.beginning import Beginning
from headrace.trainer.config import RankPlan
from headrace.trainer.ends import RunEnd
from headrace.trainer.run import Run
from headrace.trainer.start import check_lanes, first_meta, start_offsets


@dataclass(frozen=True, slots=True)
class Feed:
    """What one rank of `ranks` was fed with."""

    ranks: int
    steps: int
    seconds: float
    rows: int
    tokens: int
    padded_tokens: int

    @property
    def tokens_per_s(self) -> float:
        """Without padding."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def padding_share(self) -> float:
        return 1 - self.tokens / self.padded_tokens if self.padded_tokens else 0.0


def feed(plan: RankPlan, broker: Broker, ranks: int, most_s: float, most_steps: int | None = None) -> Feed:
    """Read and collate until a bound is reached or the lanes are empty. Raises UsageError where there is too little."""
    topic = plan.tokens.topic
    check_lanes(broker, topic, plan.tokens.lanes)
    starts = start_offsets(broker, topic, plan.train.start)
    meta = first_meta(broker, topic, starts)
    if meta is None:
        raise UsageError(f"there are no token batches in {topic!r} from train.start on: run `headrace ingest` first")
    cursors = {lane: Cursor.at(offset) for lane, offset in starts.items()}
    run = Run.prepare(plan, broker, Beginning(starts, cursors, RunEnd(), meta), meta)
    steps, rows, tokens, padded, seconds = 0, 0, 0, 0, 0.0
    with run.stream(0, ranks) as stream:
        stream.set_ends({lane: each.end for lane, each in broker.ends(topic).items()})  # or its last step would wait
        stream.take(run.shape.accumulate)
        began = time.monotonic()
        while seconds < most_s and steps != most_steps:
            taken = stream.take(run.shape.accumulate).micro_batches
            if not taken:
                break
            batches = [run.collate(micro_batch) for micro_batch in taken]
            steps += 1
            rows += sum(len(micro_batch.rows) for micro_batch in taken)
            tokens += sum(batch.tokens for batch in batches)
            padded += sum(batch.padded_tokens for batch in batches)
            seconds = time.monotonic() - began
    if not steps:
        raise UsageError(
            f"the lanes of {topic!r} hold less than two steps of batch.tokens {plan.train.batch.tokens}: "
            "ingest more, or measure with a smaller batch"
        )
    return Feed(ranks, steps, seconds, rows, tokens, padded)
