"""Keyed hashes: right by reference values, independent of how values are batched, well spread."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.trainer.keyed import Purpose, fold, key_of, keys_of, mix, origin_keys
from tests.unit.trainer.made_up import rows_of

uint64 = st.integers(0, 2**64 - 1)


def _splitmix64(state: int) -> int:
    """The reference in plain integers: next() of Vigna's splitmix64.c, from a state that has been advanced."""
    mask = 2**64 - 1
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
    return state ^ (state >> 31)


@given(st.lists(uint64, min_size=1))
def test_mix_is_splitmix64(values: list[int]) -> None:
    assert mix(np.array(values, dtype=np.uint64)).tolist() == [_splitmix64(value) for value in values]


def test_known_values_do_not_change_between_releases() -> None:
    # Seed 0 of splitmix64 gives this number first: the published test value.
    assert int(mix(np.array([0x9E3779B97F4A7C15], dtype=np.uint64))[0]) == 0xE220A8397B1DCDAF
    assert key_of(Purpose.ROW_ORDER, 42, 3) == 0xC07976DD9FBC254C


@given(st.integers(-(2**63), 2**64 - 1), st.integers(0, 4096), st.lists(st.integers(0, 2**40), min_size=1, max_size=20))
def test_many_keys_at_once_are_the_same_keys(seed: int, lane: int, last: list[int]) -> None:
    together = keys_of(Purpose.MASK, seed, lane, last=np.array(last))
    assert together.tolist() == [key_of(Purpose.MASK, seed, lane, number) for number in last]


@given(uint64, uint64, uint64)
def test_keys_that_differ_in_one_number_never_collide(key: int, one: int, other: int) -> None:
    folded = fold(np.full(2, key, dtype=np.uint64), np.array([one, other], dtype=np.uint64))
    assert (folded[0] == folded[1]) == (one == other)


def test_purposes_share_no_chances() -> None:
    assert len({key_of(purpose, 1, 2, 3) for purpose in Purpose}) == len(Purpose)


def test_origin_keys_go_by_the_name_of_the_topic_not_by_its_place_in_a_dictionary() -> None:
    one = rows_of([[1, 2]], topic="orders")
    other = rows_of([[1, 2]], topic="reviews")
    assert origin_keys(5, one)[0] != origin_keys(5, other)[0]
    assert origin_keys(5, one)[0] == origin_keys(5, rows_of([[1, 9, 2]], topic="orders"))[0]


def test_every_origin_column_counts() -> None:
    rows = rows_of([[1, 2]] * 2)
    keys = {int(origin_keys(5, rows)[0])}
    for name in ("partition", "offset", "row", "part"):
        number = rows.schema.get_field_index(name)
        field = rows.schema.field(number)
        changed = rows.set_column(number, field, np.array([9, 9]).astype(field.type.to_pandas_dtype()))
        keys.add(int(origin_keys(5, changed)[0]))
    assert len(keys) == 5


def test_order_is_well_spread() -> None:
    """Consecutive offsets land anywhere: half of the order holds half of the rows, within five deviations."""
    keys = origin_keys(key_of(Purpose.ROW_ORDER, 42, 0), rows_of([[1, 2]] * 10_000))
    first_half = np.argsort(keys)[:5000]
    assert abs(int((first_half < 5000).sum()) - 2500) < 5 * 25
