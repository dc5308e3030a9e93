"""The shape of the global batch: how many micro-batches a step takes from every lane, and how large they are.

A step takes `accumulate` micro-batches of at most `micro_tokens` padded tokens from each of the lanes, whatever the
number of ranks. Both follow from `batch.tokens`, `batch.micro_tokens` (a bound, for memory) and the number of lanes:

    share = batch.tokens / lanes, rounded down            what a step may take from one lane
    accumulate = share / batch.micro_tokens, rounded up   as few, and so as large, micro-batches as memory allows
    micro_tokens = share / accumulate, rounded down       never above batch.micro_tokens

so that `lanes * accumulate * micro_tokens <= batch.tokens`. A micro-batch must hold the longest row; where equal shares
would be too small for it, `accumulate` is lowered. What cannot be met is refused with the nearest values that can.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from headrace.schemas.errors import UsageError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What a step takes: the same at any number of ranks."""

    lanes: int
    accumulate: int  # micro-batches from each lane
    micro_tokens: int  # budget of one micro-batch, in padded tokens

    @property
    def tokens(self) -> int:
        """Most padded tokens of a step."""
        return self.lanes * self.accumulate * self.micro_tokens


def batch_shape(
    batch_tokens: int, micro_tokens: int, lanes: int, *, max_tokens: int | None = None, pad_multiple: int = 8
) -> BatchShape:
    """Derive the shape. `max_tokens` is the longest row, where the tokenizer's bound is known.

    Raises UsageError naming the setting and the nearest values that can be met.
    """
    longest = -(-(max_tokens or 1) // pad_multiple) * pad_multiple
    row = f"a row of {max_tokens} tokens, padded to {longest}" if max_tokens else f"a row, padded to {longest}"
    if micro_tokens < longest:
        raise UsageError(
            f"train.batch.micro_tokens is {micro_tokens}, less than {row}: "
            f"set it to {longest} or more{_or_shorter_rows(micro_tokens, pad_multiple, max_tokens)}"
        )
    share = batch_tokens // lanes
    if share < longest:
        fewer = f", or tokens.lanes to {batch_tokens // longest} or fewer" if batch_tokens >= longest else ""
        raise UsageError(
            f"train.batch.tokens is {batch_tokens}, which gives each of {lanes} lanes {share}, less than {row}: "
            f"set it to {lanes * longest} or more{fewer}{_or_shorter_rows(share, pad_multiple, max_tokens)}"
        )
    accumulate = min(-(-share // micro_tokens), share // longest)
    return BatchShape(lanes, accumulate, min(micro_tokens, share // accumulate))


def check_min_tokens(min_tokens: int, shape: BatchShape) -> None:
    """Raises UsageError when no step can be as large as `batch.min_tokens`."""
    if min_tokens > shape.tokens:
        raise UsageError(
            f"train.batch.min_tokens is {min_tokens}, more than a whole step of {shape.tokens}: "
            f"set it to {shape.tokens} or less, or raise train.batch.tokens"
        )


def owned(lanes: int, rank: int, ranks: int) -> tuple[int, ...]:
    """The lanes of one rank: those whose number leaves `rank` when divided by `ranks`.

    Raises UsageError for more ranks than lanes. Ranks that get different numbers of lanes are warned of, by rank 0.
    """
    if not 0 <= rank < ranks:
        raise UsageError(f"rank {rank} of {ranks} ranks does not exist: ranks are counted from 0")
    if ranks > lanes:
        raise UsageError(
            f"{ranks} ranks cannot share {lanes} lanes, a lane is never split: start {lanes} ranks or fewer, "
            f"or use a tokens topic with more lanes (tokens.lanes, fixed for the life of the topic)"
        )
    if lanes % ranks and rank == 0:
        even = max(number for number in range(1, ranks) if lanes % number == 0)
        _log.warning(
            "%d ranks do not share %d lanes evenly: some wait for others in every step. %d ranks would not.",
            ranks,
            lanes,
            even,
        )
    return tuple(range(rank, lanes, ranks))


def _or_shorter_rows(budget: int, pad_multiple: int, max_tokens: int | None) -> str:
    shorter = budget // pad_multiple * pad_multiple
    return f", or tokenizer.max_tokens to {shorter} or less" if max_tokens and shorter >= pad_multiple else ""
