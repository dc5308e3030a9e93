"""Several passes over a bounded range: every record once a pass, in another order each time, through kills as well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.ingest.backlog import backlog_tokens
from headrace.pipeline.broker import open_broker
from headrace.pipeline.child import Channel
from headrace.schemas.errors import RecordsLost, ResumeRefused
from headrace.trainer.checkpoint_state import Manifest
from headrace.trainer.collate import Batch
from headrace.trainer.learner import StepResult
from headrace.trainer.ledger_read import Ledger
from headrace.trainer.ledger_verify import RunTopics, verify
from tests.unit.trainer.little import TOKENS, Killed, LittleLearner, Result, World, run_ranks
from tests.unit.trainer.made_up import beginning, drain, filled, open_stream

UNEVEN = [6, 9, 4, 0, 5, 7]


def trained(world: World) -> pa.Table:
    columns = ("step", "lane", "partition", "offset", "pass", "outcome")
    return pa.Table.from_batches(list(Ledger.open(world.store()).outcomes(columns)))


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, str]:
    """Two ranks that were never touched."""
    world = World(tmp_path_factory.mktemp("twice"))
    world.fill(UNEVEN)
    result = run_ranks(world, 2, world.plan(passes=2))
    return result, Ledger.open(world.store()).hash()


def test_every_record_is_trained_once_a_pass_and_verify_sees_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.fill(UNEVEN)
    assert run_ranks(world, 2, world.plan(passes=3)).why == "end"
    rows = trained(world)
    times = Counter(zip(*(rows[name].to_pylist() for name in ("partition", "offset", "pass")), strict=True))
    assert set(times.values()) == {1}
    assert len(times) == 3 * 5 * sum(UNEVEN)
    seen = world.verify()
    assert seen.ok
    assert seen.trained == seen.published == 5 * sum(UNEVEN)


def test_all_lanes_end_a_pass_before_the_next_begins_and_each_has_an_order_of_its_own(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.fill(UNEVEN)
    run_ranks(world, 1, world.plan(passes=2))
    rows = trained(world)
    passes = rows["pass"].to_numpy()
    assert rows["step"].to_numpy()[passes == 1].max() < rows["step"].to_numpy()[passes == 2].min()
    assert np.array_equal(np.sort(passes), passes)
    lane = rows["lane"].to_numpy() == 1
    first, second = (rows["offset"].to_numpy()[lane & (passes == number)] for number in (1, 2))
    assert sorted(first) == sorted(second)
    assert first.tolist() != second.tolist()


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_same_batches_at_any_number_of_ranks(tmp_path: Path, twice: tuple[Result, str], ranks: int) -> None:
    world = World(tmp_path)
    world.fill(UNEVEN)
    assert run_ranks(world, ranks, world.plan(passes=2)) == twice[0]
    assert Ledger.open(world.store()).hash() == twice[1]


def test_killed_every_few_steps_and_resumed_it_is_the_same_run(tmp_path: Path, twice: tuple[Result, str]) -> None:
    world = World(tmp_path)
    world.fill(UNEVEN)
    kills = Counter[int]()
    for attempt in range(200):
        begun: list[int] = []

        def kill(step: int, channel: Channel, begun: list[int] = begun) -> None:
            begun.append(step)
            if step - begun[0] >= 4:
                raise Killed

        try:
            result = run_ranks(world, [2, 1, 3][attempt % 3], world.plan(passes=2), before_step=kill)
        except Exception as error:  # noqa: BLE001 - whichever rank failed first: the killed one, or one that lost it
            assert isinstance(error, Killed) or "gone" in str(error)
            kills[1 if begun[-1] <= twice[0].step // 2 else 2] += 1
        else:
            break
    assert kills[1] >= 1 and kills[2] >= 1
    assert result == twice[0]
    assert Ledger.open(world.store()).hash() == twice[1]
    assert world.verify().ok


def test_stopped_before_every_step_and_verified_each_time(tmp_path: Path, twice: tuple[Result, str]) -> None:
    world = World(tmp_path)
    world.fill(UNEVEN)
    plan = world.plan(passes=2)
    stops = 0
    while (result := run_ranks(world, 2, plan, before_step=lambda _, channel: channel.stopping.set())).why == "stopped":
        stops += 1
        seen = world.verify()
        assert seen.ok, seen
        assert stops < 200
    assert result == twice[0]
    assert Ledger.open(world.store()).hash() == twice[1]


class Tampered(Ledger):
    """A ledger in which the first row of pass 2 stands so many times."""

    times = 0

    def outcomes(self, columns: Sequence[str], manifests: Sequence[Manifest] | None = None) -> Iterator[pa.RecordBatch]:
        left = self.times
        done = False
        for batch in super().outcomes(columns, manifests):
            later = np.flatnonzero(batch.column("pass").to_numpy() == 2)
            if done or not len(later):
                yield batch
                continue
            done = True
            keep = np.delete(np.arange(len(batch)), later[0])
            yield batch.take(pa.array([*keep, *[later[0]] * left]))


@pytest.mark.parametrize(("times", "missing", "duplicated"), [(0, 1, 0), (1, 0, 0), (2, 0, 1)])
def test_verify_finds_a_record_that_one_pass_left_out_or_had_twice(
    tmp_path: Path, times: int, missing: int, duplicated: int
) -> None:
    world = World(tmp_path)
    world.fill([2] * 6)
    run_ranks(world, 1, world.plan(passes=2))
    whole = Ledger.open(world.store())
    kind = type("Tampered", (Tampered,), {"times": times})
    topics = RunTopics("orders", "orders.dead", "orders.tokens", "orders.ingest")
    with closing(open_broker(world.address)) as broker:
        seen = verify(kind(whole.store, whole.chain), broker, topics)
    assert (seen.missing, seen.duplicated) == (missing, duplicated)
    assert seen.published == 60


def test_more_passes_go_on_from_the_end_with_the_same_batches_as_if_asked_for_at_once(
    tmp_path: Path, twice: tuple[Result, str]
) -> None:
    world = World(tmp_path)
    world.fill(UNEVEN)
    run_ranks(world, 2, world.plan())
    assert run_ranks(world, 2, world.plan(passes=2)).step == twice[0].step
    assert Ledger.open(world.store()).hash() == twice[1]


def test_the_backlog_counts_a_record_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.fill(UNEVEN)
    run_ranks(world, 1, world.plan())
    with closing(open_broker(world.address)) as broker:
        left = {lane: at.tokens for lane, at in broker.positions("orders.main.trained", "orders.tokens").items()}
        run_ranks(world, 1, world.plan(passes=2))
        trained = broker.positions("orders.main.trained", "orders.tokens")
        emitted = broker.positions("orders.ingest", "orders")
    assert {lane: at.tokens for lane, at in trained.items()} == left
    assert sum(at.tokens for at in emitted.values()) == TOKENS * sum(UNEVEN)
    assert backlog_tokens(emitted, trained) >= 0


def test_another_end_is_refused_while_a_later_pass_is_under_way(tmp_path: Path, twice: tuple[Result, str]) -> None:
    world = World(tmp_path)
    world.fill(UNEVEN)

    def stop(step: int, channel: Channel) -> None:
        if step > twice[0].step * 2 // 3:
            channel.stopping.set()

    assert run_ranks(world, 1, world.plan(passes=2), before_step=stop).why == "stopped"
    with pytest.raises(ResumeRefused, match=r"pass 2 is under way.*train\.stop"):
        run_ranks(world, 1, world.plan(stop="never"))
    assert run_ranks(world, 1, world.plan(passes=2)) == twice[0]


def test_a_schedule_over_the_range_falls_through_all_passes(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.fill(UNEVEN)
    rates: list[float] = []

    class Noting(LittleLearner):
        def step(self, batches: Sequence[Batch], count: int, learning_rate: float) -> StepResult:
            rates.append(learning_rate)
            return super().step(batches, count, learning_rate)

    plan = world.plan(passes=2, optimizer={"schedule": "linear", "learning_rate": 1.0})
    steps = run_ranks(world, 1, plan, learner_type=Noting).step
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == 1.0
    assert rates[steps // 2] == 0.5
    assert rates[-1] < 0.1


@pytest.mark.parametrize("stop", ["never", {"steps": 5}])
def test_passes_without_an_end_are_refused(tmp_path: Path, stop: object) -> None:
    with pytest.raises(ValueError, match="set stop to end or"):
        World(tmp_path).plan(passes=2, stop=stop)


def test_a_range_whose_beginning_retention_has_deleted_is_refused() -> None:
    topic = filled(2)
    ends = dict(topic.ends_at)

    with open_stream(topic, beginning([0, 1])) as stream:
        stream.set_ends(ends)
        drain(stream)
        topic.first[1] = 4
        with pytest.raises(RecordsLost, match=r"pass 2 begins at offset 0 of lane 1.*retention_h"):
            stream.go_back({0: 0, 1: 0}, 2)
