"""Mending a run: go back to one of its checkpoints, and go on without some records.

Done by the command before any rank starts, under the run's lock, so that ranks which restart do not go back again:

1. Find the checkpoint, read it whole, and refuse what could not go on from it: a setting that may not change, token
   batches that retention has deleted, named records that it has been trained on.
2. Write the mend beside it (`lineage.MEND_FILE`).
3. Rename the newer checkpoints aside, newest first. With the last of them the mend is in force; a kill before that
   leaves the run as it was, at the newest checkpoint that is left, and the command can be given again.

The abandoned branch keeps its weights and its ledger under names that nobody resumes from; what it had trained after
the checkpoint is trained again. So the ledger, which is the chain of parents, stays one line.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from headrace.pipeline.topics import Broker
from headrace.schemas.errors import RecordsLost, UsageError
from headrace.schemas.exclusion import Exclusion, excluded_rows
from headrace.schemas.ledger import Outcome
from headrace.trainer.beginning import Beginning, resume
from headrace.trainer.checkpoint import folder_of, newest_step, published_steps
from headrace.trainer.checkpoint_load import load, rename_aside, whole_steps
from headrace.trainer.checkpoint_store import Store
from headrace.trainer.config import RankPlan
from headrace.trainer.ledger_read import Ledger
from headrace.trainer.lineage import Lineage, Mend, read_mend, write_mend
from headrace.trainer.lock import RunLock
from headrace.trainer.run import Run

ABANDONED = ".abandoned"
_MOST_LISTED = 20


@dataclass(frozen=True, slots=True)
class Mended:
    """What a mend did. `already`: the run's lineage had it, and nothing was changed."""

    mend: Mend
    already: bool = False
    abandoned: tuple[int, ...] = ()  # steps of the checkpoints that were set aside
    named: Counter[str] = field(default_factory=Counter)  # what had become of the named records since, by outcome

    def __str__(self) -> str:
        without = f" without {', '.join(map(str, self.mend.exclusions))}" if self.mend.exclusions else ""
        if self.already:
            return f"this run has gone back to step {self.mend.step} already and goes on{without}"
        lines = [f"going on from step {self.mend.step}{without}"]
        if self.abandoned:
            lines.append(
                f"{len(self.abandoned)} checkpoints up to step {self.abandoned[-1]} are set aside as *{ABANDONED}: "
                "remove them when nobody needs them"
            )
        if self.mend.exclusions:
            counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in sorted(self.named.items()))
            lines.append(f"of the records named, {counts or 'none had been reached'} before")
        return "\n".join(lines)


def mend(
    plan: RankPlan, broker: Broker, store: Store, step: int | None, skip: Sequence[Exclusion], now_ms: int
) -> Mended:
    """Go back to the checkpoint at `step` (None: the newest), and exclude `skip` from then on.

    Raises UsageError where there is no such checkpoint or the records cannot be left out of it any more, RecordsLost
    where retention has deleted what would be trained next.
    """
    with RunLock(store):
        newest = newest_step(store)
        if newest is None:
            raise UsageError(f"there is no checkpoint in {store.address}: nothing to go back to; leave --from out")
        before = _done_before(_lineage(store, newest), step, skip)
        if before is not None:
            return Mended(before, already=True)
        target = newest if step is None else step
        _check_there(store, target)  # 1
        checkpoint = load(store, target)
        earlier = read_mend(store, folder_of(target)) if step is None else None  # going back again begins anew
        exclusions = (*earlier.exclusions, *skip) if earlier is not None else tuple(skip)
        made = Mend(target, exclusions, newest if newest > target else None, now_ms)
        beginning = resume(checkpoint, checkpoint.state.lineage.with_mend(made), plan.train)
        if beginning.meta is not None:
            Run.prepare(plan, broker, beginning, beginning.meta)
        ledger = Ledger.open(store, newest)
        _check_retention(plan, broker, beginning, ledger)
        _check_topics(plan, broker, ledger, skip)
        named = _named(store, ledger, target, skip)
        write_mend(store, folder_of(target), made)  # 2
        abandoned = tuple(each for each in published_steps(store) if each > target)
        for each in reversed(abandoned):  # 3
            rename_aside(store, each, ABANDONED, store.folders())
        return Mended(made, abandoned=abandoned, named=named)


def _lineage(store: Store, newest: int) -> Lineage:
    return Ledger.open(store, newest).state().lineage.with_mend(read_mend(store, folder_of(newest)))


def _done_before(lineage: Lineage, step: int | None, skip: Sequence[Exclusion]) -> Mend | None:
    """The mend that this one would repeat: a command that is started again must not undo what came of it."""
    if not skip or not set(skip) <= set(lineage.exclusions):
        return None
    if step is None:
        return lineage.mends[-1]
    return next((each for each in lineage.mends if each.step == step and set(skip) <= set(each.exclusions)), None)


def _check_there(store: Store, step: int) -> None:
    there = whole_steps(store)
    if step in there:
        return
    listed = ", ".join(map(str, there[-_MOST_LISTED:])) or "none"
    if step in published_steps(store):
        raise UsageError(
            f"--from {step}: the weights of that checkpoint were pruned, only its ledger is kept. Checkpoints to go "
            f"back to: {listed}. To have more of them from now on, raise `checkpoint.keep` or set "
            "`checkpoint.keep_every_steps`"
        )
    raise UsageError(f"--from {step}: there is no such checkpoint in {store.address}. Those to go back to: {listed}")


def _check_retention(plan: RankPlan, broker: Broker, beginning: Beginning, ledger: Ledger) -> None:
    ends = broker.ends(plan.tokens.topic)
    lost = {lane: ends[lane].first for lane, cursor in beginning.cursors.items() if cursor.start < ends[lane].first}
    if not lost:
        return
    records = sum(
        row["rows"]
        for table in ledger.steps(after=beginning.step)
        for row in table.select(["lane", "before", "rows"]).to_pylist()
        if row["lane"] in lost and json.loads(row["before"])["start"] < lost[row["lane"]]
    )
    raise RecordsLost(
        f"step {beginning.step} cannot be gone on from: retention has deleted token batches of "
        f"{len(lost)} lanes behind its cursors, with {records:,} records that were trained after it: go back to a "
        "newer checkpoint, and keep tokens as long as a mistake may take to be noticed (tokens.retention_h)"
    )


def _check_topics(plan: RankPlan, broker: Broker, ledger: Ledger, skip: Sequence[Exclusion]) -> None:
    known = {part.topic for manifest in ledger.chain for part in manifest.ledger} | {plan.text_topic}
    topic = broker.describe(plan.text_topic)
    for each in skip:
        if each.topic not in known:
            raise UsageError(f"--skip {each}: this run has no records of a topic {each.topic!r}: {', '.join(known)}")
        if each.topic == plan.text_topic and topic is not None and each.partition >= topic.partitions:
            raise UsageError(f"--skip {each}: topic {each.topic!r} has {topic.partitions} partitions, counted from 0")


def _named(store: Store, ledger: Ledger, target: int, skip: Sequence[Exclusion]) -> Counter[str]:
    """What has become of the named records after `target`. Raises UsageError where it was trained on some of them."""
    after: Counter[str] = Counter()
    trained = 0
    first: int | None = None
    for rows in _rows_named(ledger, skip):
        steps = rows.column("step").to_numpy()
        outcomes = np.array(rows.column("outcome").cast(pa.string()).to_pylist(), object)
        after.update(outcomes[steps > target].tolist())
        learnt = steps[(steps <= target) & (outcomes == Outcome.TRAINED)]
        trained += len(learnt)
        if len(learnt):
            first = int(learnt.min()) if first is None else min(first, int(learnt.min()))
    if first is None:
        return after
    older = [step for step in whole_steps(store) if step < first]
    cure = (
        f"go back further: --from {older[-1]}"
        if older
        else "no checkpoint from before that has its weights: begin a new `train.run`"
    )
    raise UsageError(
        f"--skip: the checkpoint at step {target} has been trained on {trained:,} of the named records, from step "
        f"{first} on, and that cannot be taken back: {cure}"
    )


def _rows_named(ledger: Ledger, skip: Sequence[Exclusion]) -> Iterator[pa.RecordBatch]:
    for manifest in ledger.chain:
        held = [
            each
            for each in skip
            for part in manifest.ledger
            if (part.topic, part.partition) == (each.topic, each.partition)
            and part.first <= each.last
            and each.first <= part.last
        ]
        if held:
            for rows in ledger.outcomes(("step", "topic", "partition", "offset", "outcome"), [manifest]):
                yield rows.filter(pa.array(excluded_rows(rows, held)))
