"""The shape of the global batch: a function of settings and lanes, refused with values that can be met."""

from __future__ import annotations

import logging
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.schemas.errors import UsageError
from headrace.trainer.batch import BatchShape, batch_shape, check_min_tokens, owned

sizes = st.integers(64, 2_000_000)
lanes_ = st.integers(1, 256)


@given(sizes, sizes, lanes_, st.none() | st.integers(1, 4096))
def test_a_step_never_exceeds_the_batch_nor_a_micro_batch_memory(
    batch: int, micro: int, lanes: int, max_tokens: int | None
) -> None:
    try:
        shape = batch_shape(batch, micro, lanes, max_tokens=max_tokens)
    except UsageError:
        assume(False)
    assert shape.lanes * shape.accumulate * shape.micro_tokens == shape.tokens <= batch
    assert shape.accumulate >= 1
    assert (max_tokens or 1) <= shape.micro_tokens <= micro


@given(sizes, sizes, lanes_)
def test_micro_batches_are_as_large_as_memory_allows_and_little_is_lost(batch: int, micro: int, lanes: int) -> None:
    assume(batch // lanes >= 64)
    shape = batch_shape(batch, micro, lanes)
    assert shape.accumulate == 1 or (shape.accumulate - 1) * micro < batch // lanes
    assert batch - shape.tokens < lanes * (shape.accumulate + 1)


def test_the_shapes_of_the_documented_configurations() -> None:
    assert batch_shape(65_536, 16_384, 16, max_tokens=256) == BatchShape(16, 1, 4096)
    assert batch_shape(1_048_576, 16_384, 64, max_tokens=512) == BatchShape(64, 1, 16_384)
    assert batch_shape(65_536, 2048, 8, max_tokens=512) == BatchShape(8, 4, 2048)


def test_fewer_micro_batches_where_equal_shares_are_too_small_for_a_row() -> None:
    assert batch_shape(600 * 4, 512, 4, max_tokens=512) == BatchShape(4, 1, 512)


@given(sizes, sizes, lanes_, st.integers(1, 4096))
def test_every_value_that_a_refusal_names_can_be_met(batch: int, micro: int, lanes: int, max_tokens: int) -> None:
    with pytest.raises(UsageError) as refused:
        batch_shape(batch, micro, lanes, max_tokens=max_tokens)
        assume(False)
    text = str(refused.value)
    if "train.batch.micro_tokens is" in text:
        (cure,) = re.findall(r"set it to (\d+) or more", text)
        micro = int(cure)  # then the batch itself may still be too small, which is refused next
        with_cure = batch_shape(10**9, micro, lanes, max_tokens=max_tokens)
        assert with_cure.micro_tokens >= max_tokens
        return
    (cure,) = re.findall(r"set it to (\d+) or more", text)
    batch_shape(int(cure), micro, lanes, max_tokens=max_tokens)
    with pytest.raises(UsageError):
        batch_shape(int(cure) - 1, micro, lanes, max_tokens=max_tokens)
    for fewer in re.findall(r"tokens\.lanes to (\d+)", text):
        batch_shape(batch, micro, int(fewer), max_tokens=max_tokens)
        with pytest.raises(UsageError):
            batch_shape(batch, micro, int(fewer) + 1, max_tokens=max_tokens)
    for shorter in re.findall(r"max_tokens to (\d+)", text):
        batch_shape(batch, micro, lanes, max_tokens=int(shorter))


def test_a_refusal_names_setting_and_cures() -> None:
    with pytest.raises(UsageError) as refused:
        batch_shape(4096, 16_384, 16, max_tokens=512)
    assert str(refused.value) == (
        "train.batch.tokens is 4096, which gives each of 16 lanes 256, less than a row of 512 tokens, padded to 512: "
        "set it to 8192 or more, or tokens.lanes to 8 or fewer, or tokenizer.max_tokens to 256 or less"
    )


def test_min_tokens_above_a_whole_step_would_wait_at_every_end() -> None:
    shape = batch_shape(65_536, 16_384, 8)
    check_min_tokens(shape.tokens, shape)
    with pytest.raises(UsageError, match=r"train\.batch\.min_tokens is 65537, more than a whole step of 65536"):
        check_min_tokens(65_537, shape)


@given(st.integers(1, 64), st.data())
def test_ranks_share_all_lanes_and_none_twice(lanes: int, data: st.DataObject) -> None:
    ranks = data.draw(st.integers(1, lanes))
    shares = [owned(lanes, rank, ranks) for rank in range(ranks)]
    assert sorted(lane for share in shares for lane in share) == list(range(lanes))
    assert all(lane % ranks == rank for rank, share in enumerate(shares) for lane in share)
    assert all(shares)


def test_more_ranks_than_lanes_are_refused() -> None:
    with pytest.raises(UsageError, match="5 ranks cannot share 4 lanes"):
        owned(4, 0, 5)


def test_ranks_with_unequal_shares_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        owned(8, 1, 3)
        owned(8, 0, 4)
        assert not caplog.records
        owned(8, 0, 3)
    assert caplog.messages == [
        "3 ranks do not share 8 lanes evenly: some wait for others in every step. 2 ranks would not."
    ]
