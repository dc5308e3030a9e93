from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.trainer.communication import CommunicationConfig
from headrace.trainer.shard import shares


@given(st.lists(st.integers(1, 100), min_size=1, max_size=50), st.integers(1, 9))
def test_shares_hold_every_parameter_once_and_are_near_their_part(sizes: list[int], ranks: int) -> None:
    runs = shares(sizes, ranks)
    assert [position for run in runs for position in run] == list(range(len(sizes)))
    assert len(runs) == ranks
    for run in runs:
        assert sum(sizes[position] for position in run) <= sum(sizes) / ranks + max(sizes)


def test_the_first_group_that_fits_gives_the_interval() -> None:
    settings = CommunicationConfig.model_validate({"local_steps": 8, "groups": {"*embed*": 2, "*": 3}})
    assert [settings.interval(name) for name in ("a.embeddings.w", "b")] == [2, 3]
    assert CommunicationConfig(local_steps=8).interval("b") == 8
