"""Whole runs: the same batches at any number of ranks and through any number of kills; nothing lost, nothing twice."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from headrace.ingest.backlog import backlog_tokens
from headrace.pipeline.broker import open_broker
from headrace.pipeline.child import Channel
from headrace.schemas.errors import ResumeRefused
from headrace.trainer.checkpoint_store import open_store
from headrace.trainer.ledger_read import Ledger
from tests.unit.trainer.little import BAD, TOKENS, Killed, Result, World, run_ranks

UNEVEN = [14, 9, 12, 0, 5, 11]


def ledger_hash(world: World, run: str = "main") -> str:
    return Ledger.open(open_store(str(world.folder / "checkpoints"), "orders", run)).hash()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, str]:
    """Two ranks that were never touched."""
    world = World(tmp_path_factory.mktemp("whole"))
    world.fill(UNEVEN)
    return run_ranks(world, 2), ledger_hash(world)


@pytest.mark.parametrize("ranks", [1, 3, 6])
def test_the_same_global_batches_at_any_number_of_ranks(tmp_path: Path, whole: tuple[Result, str], ranks: int) -> None:
    world = World(tmp_path)
    world.fill(UNEVEN)
    assert run_ranks(world, ranks) == whole[0]
    assert ledger_hash(world) == whole[1]


def test_a_bounded_run_trains_everything_and_says_why_it_ended(whole: tuple[Result, str]) -> None:
    assert whole[0].why == "end"
    assert whole[0].step > 5


def test_killed_before_every_step_and_resumed_with_other_ranks_it_ends_with_the_same_weights(
    tmp_path: Path, whole: tuple[Result, str]
) -> None:
    world = World(tmp_path)
    world.fill(UNEVEN)
    kills = 0
    for attempt in range(200):

        def kill(step: int, channel: Channel, begun: list[int] = []) -> None:  # noqa: B006 - one list per attempt
            begun.append(step)
            if step - begun[0] >= 4:
                raise Killed

        kill.__defaults__ = ([],)
        try:
            result = run_ranks(world, [2, 1, 3][attempt % 3], before_step=kill)
        except Exception as error:  # noqa: BLE001 - whichever rank failed first: the killed one, or one that lost it
            assert isinstance(error, Killed) or "gone" in str(error)
            kills += 1
        else:
            break
    assert kills >= 2
    assert result == whole[0]
    assert ledger_hash(world) == whole[1]


def test_sigterm_before_any_step_saves_and_goes_on_with_the_same_batches(
    tmp_path: Path, whole: tuple[Result, str]
) -> None:
    world = World(tmp_path)
    world.fill(UNEVEN)
    stops = 0
    while (result := run_ranks(world, 2, before_step=lambda _, channel: channel.stopping.set())).why == "stopped":
        stops += 1
        assert stops < 200
    assert stops >= 3
    assert result == whole[0]
    assert ledger_hash(world) == whole[1]


def test_a_schedule_by_tokens_is_the_same_through_kills(tmp_path: Path) -> None:
    optimizer = {"schedule": "cosine", "warmup_tokens": 500, "total_tokens": 3000}
    results = []
    for folder, killed in (("whole", False), ("killed", True)):
        world = World(tmp_path / folder)
        world.fill(UNEVEN)
        plan = world.plan(optimizer=optimizer)
        if killed:
            run_ranks(world, 3, plan, before_step=lambda step, channel: step == 4 and channel.stopping.set())
        results.append(run_ranks(world, 2, plan))
    assert results[0] == results[1]


def test_a_skipped_step_moves_the_cursors_and_has_an_outcome_of_its_own(
    tmp_path: Path, whole: tuple[Result, str], caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path)
    world.fill(UNEVEN)
    result = run_ranks(world, 2, before_step=lambda step, _: BAD if step == 2 else None)
    assert result.step == whole[0].step
    assert result.weights != whole[0].weights
    ledger = Ledger.open(open_store(str(world.folder / "checkpoints"), "orders", "main"))
    rows = pa.Table.from_batches(ledger.outcomes(("step", "outcome", "reason", "partition", "offset"))).to_pylist()
    assert len(rows) == len({(row["partition"], row["offset"]) for row in rows}) == sum(UNEVEN) * 5
    of_step = [(row["outcome"], row["reason"]) for row in rows if row["step"] == 3]
    assert set(of_step) == {("skipped", "loss-not-finite")}
    assert {row["outcome"] for row in rows if row["step"] != 3} == {"trained"}
    named = [record.getMessage() for record in caplog.records if "skipped" in record.getMessage()]
    assert any("step 3 skipped: the loss is nan; records: orders/" in message for message in named), named
    broker = open_broker(world.address)
    notes = broker.positions("orders.main.trained", "orders.tokens")[0].notes
    broker.close()
    assert notes["records"] == sum(UNEVEN) * 5 - len(of_step)


def test_a_run_over_nothing_says_that_nothing_was_trained(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.fill([0] * 6)
    assert run_ranks(world, 2) == Result(0, "nothing", [])


def test_stop_after_steps_and_go_on_to_the_end(tmp_path: Path, whole: tuple[Result, str]) -> None:
    world = World(tmp_path)
    world.fill(UNEVEN)
    first = run_ranks(world, 2, world.plan(stop={"steps": 4}))
    assert (first.step, first.why) == (4, "steps")
    last = run_ranks(world, 2, world.plan(stop="end"))
    assert (last.step, last.why) == (whole[0].step, "end")
    assert ledger_hash(world) == whole[1]
    assert last.weights != whole[0].weights  # the end was another at first, and so was the schedule


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"seed": 43}, "train.seed"),
        ({"window_tokens": 700}, "train.window_tokens"),
        ({"batch": {"tokens": 64 * 6, "flush_s": 0.2}}, "batch.micro_tokens"),
        ({"task": {"type": "classification", "labels": ["b", "a"]}}, "train.task.labels"),
    ],
)
def test_a_setting_that_defines_the_run_is_refused_by_name(
    tmp_path: Path, changed: dict[str, object], named: str
) -> None:
    world = World(tmp_path)
    world.fill([2] * 6)
    run_ranks(world, 1, world.plan(stop={"steps": 1}))
    with pytest.raises(ResumeRefused, match=named):
        run_ranks(world, 1, world.plan(**changed))


def test_the_trained_and_checkpoint_groups_report_every_lane(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.fill(UNEVEN)
    result = run_ranks(world, 2)
    broker = open_broker(world.address)
    trained = broker.positions("orders.main.trained", "orders.tokens")
    saved = broker.positions("orders.main.checkpoint", "orders.tokens")
    ends = {lane: end.end for lane, end in broker.ends("orders.tokens").items()}
    broker.close()
    assert {lane: position.offset for lane, position in trained.items()} == ends
    assert {lane: position.offset for lane, position in saved.items()} == ends
    assert trained[0].notes["step"] == result.step
    assert trained[0].notes["records"] == sum(UNEVEN) * 5


def test_a_new_run_that_starts_at_the_end_does_not_make_ingest_wait_for_what_it_skips(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.fill(UNEVEN)
    run_ranks(world, 2)
    assert run_ranks(world, 1, world.plan(run="second", start="latest")).why == "nothing"
    broker = open_broker(world.address)
    emitted = broker.positions("orders.ingest", "orders")
    trained = broker.positions("orders.second.trained", "orders.tokens")
    broker.close()
    assert backlog_tokens(emitted, trained) == 0
    assert sum(position.tokens for position in emitted.values()) == TOKENS * sum(UNEVEN)
