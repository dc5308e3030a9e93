from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from headrace.pipeline import names
from headrace.pipeline.broker import open_broker
from headrace.schemas.errors import UsageError
from headrace.trainer.feed import feed
from tests.unit.trainer.little import World


def test_a_rank_is_fed_with_its_lanes_and_leaves_no_trace(tmp_path: Path) -> None:
    world = World(tmp_path, lanes=2)
    world.fill([10] * world.lanes)
    plan = world.plan()
    with closing(open_broker(world.address)) as broker:
        alone, half = (feed(plan, broker, ranks, 60.0) for ranks in (1, 2))
        assert not broker.positions(names.trained_group("orders", "main"), "orders.tokens")
    assert not (tmp_path / "checkpoints").exists()
    assert alone.rows > half.rows > 0
    assert 0 < alone.padding_share < 1
    assert alone.tokens_per_s * alone.seconds == pytest.approx(alone.tokens)


def test_a_bound_on_steps_ends_the_measurement(tmp_path: Path) -> None:
    world = World(tmp_path, lanes=2)
    world.fill([10] * world.lanes)
    with closing(open_broker(world.address)) as broker:
        assert feed(world.plan(), broker, 1, 60.0, most_steps=2).steps == 2


def test_empty_lanes_are_told(tmp_path: Path) -> None:
    world = World(tmp_path, lanes=2)
    world.fill([0] * world.lanes)
    with closing(open_broker(world.address)) as broker, pytest.raises(UsageError, match="no token batches"):
        feed(world.plan(), broker, 1, 60.0)
