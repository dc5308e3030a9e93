from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.trainer.buckets import Readiness, buckets

sizes = st.lists(st.integers(0, 100), max_size=50)


@given(sizes, st.integers(4, 1000))
def test_buckets_hold_every_parameter_once_in_order(sizes: list[int], bucket_bytes: int) -> None:
    runs = buckets(sizes, bucket_bytes)
    assert [position for run in runs for position in run] == list(range(len(sizes)))
    assert all(len(run) for run in runs)


@given(sizes, st.integers(4, 1000))
def test_a_bucket_is_over_its_size_only_for_a_single_parameter(sizes: list[int], bucket_bytes: int) -> None:
    for run in buckets(sizes, bucket_bytes):
        assert len(run) == 1 or 4 * sum(sizes[position] for position in run) <= bucket_bytes


@given(sizes, st.data())
def test_buckets_start_in_order_whatever_is_ready_first(sizes: list[int], data: st.DataObject) -> None:
    runs = buckets(sizes, 400)
    readiness = Readiness(runs)
    for _ in range(2):
        readiness.begin()
        ready = data.draw(st.lists(st.integers(0, max(0, len(sizes) - 1)), max_size=60 if sizes else 0))
        seen: set[int] = set()
        started: list[int] = []
        for position in ready:
            seen.add(position)
            started += readiness.mark(position)
            assert all(set(runs[number]) <= seen for number in started)
        assert len(started) == len(runs) or not set(runs[len(started)]) <= seen
        assert [*started, *readiness.rest()] == list(range(len(runs)))


def test_a_gradient_is_too_late_once_its_bucket_has_started() -> None:
    readiness = Readiness([range(2), range(2, 3)])
    readiness.begin()
    readiness.mark(2)
    readiness.mark(0)
    assert not readiness.too_late(0)
    assert list(readiness.mark(1)) == [0, 1]
    assert readiness.too_late(0) and readiness.too_late(2)
