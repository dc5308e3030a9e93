"""Windows: consecutive token batches of one lane, shuffled, sorted by length and cut into micro-batches together.

Five stages, each a function of the rows, the plan and the lane's number alone:

1. Rows that the run excludes are left out; those that the task cannot use are dropped with a reason; rows whose bucket
   lies in the held-out part are held out.
2. The others are ordered by a keyed hash of (seed, lane, origin), in later passes also of the pass.
3. They are sorted by padded length, with the hash as the tie-breaker.
4. They are cut from the front, greedily: a micro-batch takes rows while rows * padded length stays in the budget.
5. The micro-batches are put in the order of a keyed hash of (seed, lane, window start, number), likewise.

A window that was begun before an exclusion came into force is cut as it was, and the excluded rows are taken out of its
micro-batches afterwards: those that were trained already stay what they were. The plan says how many of the run's
exclusions stage 1 leaves out.

How the rows were split into token batches makes no difference, nor does their order in them. A window always gives at
least one micro-batch, if need be without rows, so that the cursor moves and what was not trained is recorded.

Cost: O(n log n) for n rows; a window of a million tokens is cut in about 20 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.schemas.cursor import CUT_VERSION, Cursor, CuttingPlan
from headrace.schemas.errors import Reason, ResumeRefused
from headrace.schemas.exclusion import Exclusion, excluded_rows
from headrace.schemas.ledger import ORIGIN_COLUMNS, OUTCOMES, Outcome
from headrace.schemas.tokens import BUCKETS
from headrace.trainer.keyed import Purpose, key_of, keys_of, origin_keys, pass_numbers

Integers = npt.NDArray[np.int64]

#: Per row null to keep it, or the reason why the task drops it.
Screen = Callable[[pa.RecordBatch], pa.StringArray]

#: Rows of a window that are not trained: which, and what became of them.
UNTRAINED = pa.schema([OUTCOMES.field(name) for name in (*ORIGIN_COLUMNS, "outcome", "reason")])


@dataclass(frozen=True, slots=True)
class Window:
    """Token batches of a lane from offset `start` up to `end`, as one record batch in the order of arrival."""

    start: int
    end: int
    token_batches: int
    rows: pa.RecordBatch
    pass_number: int = 1

    @classmethod
    def of(cls, start: int, end: int, batches: Sequence[pa.RecordBatch], pass_number: int = 1) -> Window:
        """Put token batches (at least one) together. Dictionaries are unified, `word_start` is filled with nulls."""
        table = pa.concat_tables([pa.Table.from_batches([batch]) for batch in batches], promote_options="default")
        whole = table.unify_dictionaries().combine_chunks()
        rows = next(iter(whole.to_batches()), None)
        return cls(start, end, len(batches), batches[0].slice(0, 0) if rows is None else rows, pass_number)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows that go through the model together, and what the lane's cursor is before and after them.

    `before` always names its window in full: (window, plan, number of the micro-batch) is all that seeds depend on.
    """

    lane: int
    rows: pa.RecordBatch  # as in the token batches, in training order; may be none
    before: Cursor
    after: Cursor
    untrained: pa.RecordBatch  # schema UNTRAINED; of the whole window, on its first micro-batch; and what was taken out
    held_out: pa.RecordBatch  # the held-out rows themselves, likewise
    tokens: int
    left_tokens: int  # what leaves the lane with it: `tokens`, and on the first those of the rows that are not trained
    padded_tokens: int  # rows * longest row, rounded up to the plan's `pad_multiple`
    of: int  # micro-batches in its window

    @property
    def plan(self) -> CuttingPlan:
        """The plan that the window was cut under."""
        assert self.before.plan is not None
        return self.before.plan

    @property
    def seed(self) -> int:
        """A non-negative 63-bit number that is this micro-batch's own at any number of ranks."""
        numbers = (self.plan.seed, self.lane, self.before.start, self.before.taken)
        return key_of(Purpose.MICRO_BATCH_SEED, *numbers, *pass_numbers(self.before.pass_number)) >> 1


def cut(
    window: Window, plan: CuttingPlan, lane: int, screen: Screen, exclusions: Sequence[Exclusion] = ()
) -> list[MicroBatch]:
    """Cut a window into micro-batches, in the order in which they are trained. `exclusions` are all of the run's.

    Raises ResumeRefused when the plan is of a version of the cut that this code does not have.
    """
    if plan.version != CUT_VERSION:
        raise ResumeRefused(
            f"lane {lane}: the open window from offset {window.start} was cut by version {plan.version} of the cut, "
            f"this headrace has version {CUT_VERSION}: finish the window with the headrace that wrote the checkpoint"
        )
    lengths = row_lengths(window.rows)
    aside = _set_aside(window.rows, lengths, plan, screen, exclusions[: plan.exclusions])
    training = np.flatnonzero(~aside.rows)
    groups = _group(window, training, padded_lengths(lengths, plan.pad_multiple), plan, lane)
    ordered = window.rows.take(pa.array(np.concatenate(groups)))
    untrained, held_out_rows = _untrained(window.rows, aside), window.rows.filter(pa.array(aside.held_out))

    micro_batches: list[MicroBatch] = []
    cursor = Cursor(window.start, window.end, window.token_batches, 0, plan, window.pass_number)
    first = 0
    aside_tokens = int(lengths.sum() - lengths[training].sum())
    for group in groups:
        after = cursor.take(1, of=len(groups))
        tokens = int(lengths[group].sum())
        padded = padded_size(lengths[group], plan.pad_multiple)
        rows = ordered.slice(first, len(group))
        left_tokens = tokens + aside_tokens
        micro_batches.append(
            MicroBatch(lane, rows, cursor, after, untrained, held_out_rows, tokens, left_tokens, padded, len(groups))
        )
        first += len(group)
        cursor = after
        untrained, held_out_rows, aside_tokens = untrained.slice(0, 0), held_out_rows.slice(0, 0), 0
    later = exclusions[plan.exclusions :]
    return [_without(micro_batch, later) for micro_batch in micro_batches] if later else micro_batches


def row_lengths(rows: pa.RecordBatch) -> Integers:
    """Tokens of each row."""
    return np.asarray(pc.list_value_length(rows.column("input_ids")), dtype=np.int64)


def padded_lengths(lengths: Integers, pad_multiple: int) -> Integers:
    """Each length rounded up to a multiple."""
    return -(-lengths // pad_multiple) * pad_multiple


def padded_size(lengths: Integers, pad_multiple: int) -> int:
    """Tokens of a rectangle that holds rows of these lengths."""
    return len(lengths) * int(padded_lengths(lengths.max(initial=0, keepdims=True), pad_multiple)[0])


@dataclass(frozen=True, slots=True)
class _Aside:
    """Rows that are not trained, and why: one entry per row."""

    dropped: pa.StringArray  # the reason, else null
    held_out: npt.NDArray[np.bool_]
    excluded: npt.NDArray[np.bool_]

    @property
    def rows(self) -> npt.NDArray[np.bool_]:
        """Whether a row is not trained."""
        return np.asarray(self.dropped.is_valid().to_numpy(zero_copy_only=False) | self.held_out | self.excluded)


def _set_aside(
    rows: pa.RecordBatch, lengths: Integers, plan: CuttingPlan, screen: Screen, exclusions: Sequence[Exclusion]
) -> _Aside:
    """An excluded row is nothing else. A row that the task cannot use is dropped on either side, so that what is held
    out can be evaluated. A row without a single token is dropped whatever the task: its attention mask would hide
    everything, which gives NaN.
    """
    excluded = excluded_rows(rows, exclusions)
    reasons = pc.if_else(pa.array(lengths == 0), pa.scalar(Reason.EMPTY_TEXT.value), screen(rows))
    reasons = pc.if_else(pa.array(excluded), pa.scalar(None, pa.string()), reasons)
    buckets = rows.column("bucket").to_numpy(zero_copy_only=False)
    usable = reasons.is_null().to_numpy(zero_copy_only=False) & ~excluded
    return _Aside(reasons, (buckets < plan.hold_out_share * BUCKETS) & usable, excluded)


def _without(micro_batch: MicroBatch, exclusions: Sequence[Exclusion]) -> MicroBatch:
    """A micro-batch after exclusions that came when its window was begun. They leave the lane: `left_tokens` stays."""
    excluded = excluded_rows(micro_batch.rows, exclusions)
    if not excluded.any():
        return micro_batch
    lengths = row_lengths(micro_batch.rows)
    nothing = np.zeros(len(excluded), bool)
    taken_out = _untrained(micro_batch.rows, _Aside(pa.nulls(len(excluded), pa.string()), nothing, excluded))
    untrained = pa.Table.from_batches([micro_batch.untrained, taken_out]).unify_dictionaries().combine_chunks()
    return replace(
        micro_batch,
        rows=micro_batch.rows.filter(pa.array(~excluded)),
        untrained=untrained.to_batches()[0],
        tokens=int(lengths[~excluded].sum()),
        padded_tokens=padded_size(lengths[~excluded], micro_batch.plan.pad_multiple),
    )


def _group(window: Window, training: Integers, padded: Integers, plan: CuttingPlan, lane: int) -> list[Integers]:
    """Indices of the rows of each micro-batch, in training order; one empty group when there are no rows."""
    of_pass = pass_numbers(window.pass_number)
    keys = origin_keys(key_of(Purpose.ROW_ORDER, plan.seed, lane, *of_pass), window.rows)[training]
    by_length = training[np.lexsort((keys, padded[training]))]
    groups = list(_greedy(by_length, padded[by_length], plan.micro_tokens)) or [by_length]
    numbers = np.arange(len(groups), dtype=np.uint64)
    order = keys_of(Purpose.MICRO_BATCH_ORDER, plan.seed, lane, window.start, *of_pass, last=numbers)
    return [groups[number] for number in np.argsort(order, kind="stable")]


def _greedy(rows: Integers, padded: Integers, micro_tokens: int) -> Iterator[Integers]:
    """Cut `rows` (sorted by their `padded` lengths) so that rows * longest <= micro_tokens, or a single row."""
    first = 0
    while first < len(rows):
        most = max(1, micro_tokens // int(padded[first]))  # no later row is shorter
        lengths = padded[first : first + most]
        sizes = np.arange(1, len(lengths) + 1) * lengths  # never falls: both factors grow
        count = max(1, int(np.searchsorted(sizes, micro_tokens, side="right")))
        yield rows[first : first + count]
        first += count


def _untrained(rows: pa.RecordBatch, aside: _Aside) -> pa.RecordBatch:
    """Origin, outcome and reason of the rows that are not trained, in the order of arrival."""
    outcomes = pc.if_else(pa.array(aside.held_out), Outcome.HELD_OUT.value, Outcome.DROPPED.value)
    outcomes = pc.if_else(pa.array(aside.excluded), Outcome.EXCLUDED.value, outcomes)
    columns = [rows.column(name) for name in ORIGIN_COLUMNS]
    columns += [outcomes.cast(UNTRAINED.field("outcome").type), aside.dropped.cast(UNTRAINED.field("reason").type)]
    return pa.RecordBatch.from_arrays(columns, schema=UNTRAINED).filter(pa.array(aside.rows))
