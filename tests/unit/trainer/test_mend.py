"""Mending a run: wrong records are taken out of what it learnt, the ledger stays right, nothing newer is resumed."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.pipeline import names
from headrace.pipeline.broker import open_broker
from headrace.pipeline.child import Channel
from headrace.pipeline.local import LocalBroker
from headrace.schemas.errors import RecordsLost, ResumeRefused, Stop, UsageError
from headrace.schemas.exclusion import Exclusion, excluded_rows
from headrace.schemas.position import Position
from headrace.schemas.record import Origin
from headrace.schemas.tokens import encode
from headrace.trainer.agree import Line
from headrace.trainer.checkpoint import folder_of, newest_step, published_steps
from headrace.trainer.checkpoint_load import whole_steps
from headrace.trainer.checkpoint_store import Store
from headrace.trainer.collate import Batch
from headrace.trainer.config import RankPlan
from headrace.trainer.learner import Score, StepResult
from headrace.trainer.ledger_read import Ledger
from headrace.trainer.lineage import MEND_FILE
from headrace.trainer.mend import ABANDONED, Mended, mend
from tests.unit.trainer.checkpoint_samples import DyingStore
from tests.unit.trainer.checkpoint_samples import Killed as StoreKilled
from tests.unit.trainer.little import Killed, LittleLearner, World, run_ranks
from tests.unit.trainer.made_up import META, VOCAB, rows_of, token_batches

BATCH_ROWS = 10
POISONED = Exclusion("orders", 1, 100, 599)
UNEVEN = [14, 9, 12, 0, 5, 11]


class CountingLearner(LittleLearner):
    """Naive Bayes: how often each token stood in a row of each class. Whole numbers, so any number of ranks agrees."""

    def __init__(self, line: Line, before_step: Callable[[int], object], equal_every: int) -> None:
        super().__init__(line, before_step, equal_every)
        self.weights = np.zeros((2, VOCAB), np.int64)

    def step(self, batches: Sequence[Batch], count: int, learning_rate: float) -> StepResult:
        self._before_step(self.steps)
        mine = np.zeros_like(self.weights)
        for batch in batches:
            for ids, label in zip(batch.arrays["input_ids"], batch.arrays["labels"], strict=True):
                np.add.at(mine[label], ids[ids > 4], 1)
        for each in self._line.exchange_json({"counts": mine.ravel().tolist()}):
            self.weights = self.weights + np.array(each["counts"], np.int64).reshape(mine.shape)
        self.steps += 1
        return StepResult(Score(0.0, 0.0, count), 1.0)

    def evaluate(self, batches: Sequence[Batch]) -> Score:
        return Score(0.0, 0.0, 0)


def texts_of_class(number: int, count: int, seed: int) -> list[list[int]]:
    """A class prefers twenty of forty tokens, four times in five."""
    random = np.random.default_rng(seed)
    own = random.random((count, 8)) < 0.8
    return (5 + random.integers(0, 20, (count, 8)) + 20 * np.where(own, number, 1 - number)).tolist()


def accuracy(weights: Sequence[Sequence[int]]) -> float:
    """Over texts that were never trained on."""
    scores = np.log(np.array(weights) + 1.0)
    scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
    right = [scores[:, texts_of_class(c, 500, 99 + c)].sum(axis=-1).argmax(axis=0) == c for c in (0, 1)]
    return float(np.mean(right))


def fill_poisoned(world: World) -> None:
    """900 texts in two partitions, shared out over all lanes; the last 500 of partition 1 have wrong labels."""
    lane = itertools.cycle(range(world.lanes))
    with closing(open_broker(world.address)) as broker:
        broker.create("orders", 2)
        broker.create("orders.tokens", world.lanes)
        with closing(broker.writer("w")) as writer:
            for offset, partition in itertools.product(range(0, 600, BATCH_ROWS), range(2)):
                if partition == 0 and offset >= 300:
                    continue
                classes = [(offset + row) % 2 for row in range(BATCH_ROWS)]
                ids = [texts_of_class(c, 1, 10_000 * partition + offset + row)[0] for row, c in enumerate(classes)]
                wrong = partition == POISONED.partition and offset >= POISONED.first
                labels = [["ab"[1 - c if wrong else c]] for c in classes]
                rows = rows_of(ids, partition=partition, first_offset=offset, topic="orders", labels=labels)
                writer.begin()
                for _ in range(BATCH_ROWS):
                    writer.append("orders", b"text", partition=partition)
                writer.append("orders.tokens", encode(rows, META), partition=next(lane))
                writer.commit("p", "orders", {})
        group = names.ingest_group("orders")
        broker.set_positions(
            group, "orders", {number: Position(end.end) for number, end in broker.ends("orders").items()}
        )


def mended(
    world: World, step: int | None, *skip: Exclusion, plan: RankPlan | None = None, store: Store | None = None
) -> Mended:
    with closing(open_broker(world.address)) as broker:
        return mend(plan or world.plan(), broker, store or world.store(), step, skip, 1_000)


def outcomes(world: World) -> pa.Table:
    columns = ("step", "lane", "topic", "partition", "offset", "outcome")
    return pa.Table.from_batches(list(Ledger.open(world.store()).outcomes(columns)))


def aside(world: World) -> list[str]:
    return sorted(folder for folder in world.store().folders() if ABANDONED in folder)


def last_step_before(world: World, exclusion: Exclusion) -> int:
    """The newest checkpoint that has seen none of the records."""
    first = min(
        step
        for batch in Ledger.open(world.store()).outcomes(("step", "topic", "partition", "offset"))
        for step in batch.column("step").to_numpy()[excluded_rows(batch, [exclusion])].tolist()
    )
    return max(step for step in published_steps(world.store()) if step < first)


def test_a_poisoned_run_is_mended(tmp_path: Path) -> None:
    world = World(tmp_path, lanes=4)
    fill_poisoned(world)
    plan = world.plan(keep=1000, every_steps=1, window_tokens=200)
    poisoned = run_ranks(world, 2, plan, learner_type=CountingLearner)
    newest = newest_step(world.store())
    clean_step = last_step_before(world, POISONED)
    assert 0 < clean_step < poisoned.step

    done = mended(world, clean_step, POISONED, plan=plan)
    assert done.named == Counter(trained=500)
    assert newest_step(world.store()) == clean_step
    assert aside(world)[-1] == f"{folder_of(newest or 0)}{ABANDONED}"

    well = run_ranks(world, 3, plan, learner_type=CountingLearner)
    assert well.why == "end"
    assert accuracy(poisoned.weights) < 0.6
    assert accuracy(well.weights) > 0.9
    seen = world.verify()
    assert seen.ok
    assert (seen.excluded, seen.trained, seen.published) == (500, 400, 900)
    assert Ledger.open(world.store()).find(Origin("orders", 1, 100))[0].outcome == "excluded"


def test_killed_after_a_mend_it_goes_on_without_the_records(tmp_path: Path) -> None:
    """Before there is a newer checkpoint, and again later: the same run as one that was not killed."""
    results = []
    for name, patience in (("whole", [1000]), ("killed", [1, 2, 3, 3, 1000])):
        world = World(tmp_path / name, lanes=4)
        fill_poisoned(world)
        plan = world.plan(keep=1000, every_steps=2, window_tokens=200)
        run_ranks(world, 2, plan)
        mended(world, last_step_before(world, POISONED), POISONED, plan=plan)
        for attempt, steps in enumerate(patience):
            begun: list[int] = []

            def kill(step: int, channel: Channel, begun: list[int] = begun, steps: int = steps) -> None:
                begun.append(step)
                if step - begun[0] >= steps:
                    raise Killed

            try:
                result = run_ranks(world, 1 + attempt % 2, plan, before_step=kill)
            except Exception as error:  # noqa: BLE001 - whichever rank failed first
                assert isinstance(error, Killed) or "gone" in str(error)
                assert steps < 1000
        assert world.verify().excluded == 500
        results.append((result, Ledger.open(world.store()).hash()))
    assert results[0] == results[1]


def test_an_open_window_is_finished_with_the_batches_it_had_and_without_the_records(tmp_path: Path) -> None:
    """At every checkpoint: some records that were trained next are taken out, the others stay where they were."""
    world = World(tmp_path)
    world.fill(UNEVEN)
    plan = world.plan(keep=1000, every_steps=2, window_tokens=2000)
    run_ranks(world, 2, plan)
    tried = 0
    for step in [each for each in whole_steps(world.store()) if each > 0]:
        state = Ledger.open(world.store(), step).state()
        before = outcomes(world)
        after = before.filter(pa.array(before["step"].to_numpy() == step + 1))
        open_lanes = [row for row in after.to_pylist() if state.cursors[row["lane"]].open]
        if not open_lanes:
            continue
        victims = [Exclusion("orders", row["partition"], row["offset"], row["offset"]) for row in open_lanes[::2]]
        mended(world, step, *victims, plan=plan)
        assert run_ranks(world, 1, plan).why == "end"
        seen = world.verify()
        assert seen.ok
        assert seen.excluded == len(victims)
        now = outcomes(world)
        now = now.filter(pa.array(now["step"].to_numpy() == step + 1)).to_pylist()
        expected = [{**row, "outcome": "excluded"} if row in open_lanes[::2] else row for row in after.to_pylist()]
        assert sorted(map(str, now)) == sorted(map(str, expected))
        mended(world, step, plan=plan)  # undone, for the next one
        run_ranks(world, 2, plan)
        assert outcomes(world).equals(before)
        tried += 1
    assert tried >= 3


def test_going_back_without_an_exclusion_trains_the_same_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.fill(UNEVEN)
    first = run_ranks(world, 2, world.plan(keep=1000))
    whole = Ledger.open(world.store()).hash()
    mended(world, 6, Exclusion("orders", 0, 60, 69))
    assert run_ranks(world, 2, world.plan(keep=1000)) != first
    assert Ledger.open(world.store()).hash() != whole
    mended(world, 6)
    assert run_ranks(world, 1) == first
    assert Ledger.open(world.store()).hash() == whole
    assert any(name.endswith(f"{ABANDONED}.2") for name in aside(world))


def test_records_ahead_are_excluded_without_going_back_and_exclusions_add_up(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.fill(UNEVEN)
    run_ranks(world, 1, world.plan(stop={"steps": 3}))
    mended(world, None, Exclusion("orders", 0, 60, 64))
    mended(world, None, Exclusion("orders", 1, 40, 44))
    assert published_steps(world.store())[-1] == 3
    run_ranks(world, 1, world.plan(stop={"steps": 6}))
    mended(world, None, Exclusion("orders", 5, 50, 54))
    assert run_ranks(world, 2).why == "end"
    seen = world.verify()
    assert seen.ok and seen.excluded == 15
    mends = Ledger.open(world.store()).state().lineage.mends
    assert [(each.step, len(each.exclusions)) for each in mends] == [(3, 2), (6, 1)]


def test_a_command_that_is_given_again_undoes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.fill(UNEVEN)
    run_ranks(world, 1, world.plan(keep=1000))
    skip = Exclusion("orders", 0, 60, 69)
    mended(world, 3, skip)
    assert mended(world, 3, skip).already  # before there is a newer checkpoint
    run_ranks(world, 1)
    before = world.store().folders()
    done = mended(world, 3, skip)
    assert done.already
    assert "step 3 already" in str(done)
    assert mended(world, None, skip).already
    assert world.store().folders() == before


@pytest.mark.parametrize(
    ("step", "skip", "error", "said"),
    [
        (4, [], UsageError, r"--from 4: there is no such checkpoint .* go back to: 6, 9, 12, 14"),
        (3, [], UsageError, r"--from 3: the weights .* pruned.* go back to: .*keep_every_steps"),
        (
            12,
            [Exclusion("orders", 0, 0, 9)],
            UsageError,
            r"trained on \d+ of the named records, from step \d+ on.*begin a",
        ),
        (None, [Exclusion("order", 0, 0, 9)], UsageError, r"no records of a topic 'order'"),
        (None, [Exclusion("orders", 6, 0, 9)], UsageError, r"topic 'orders' has 6 partitions"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_changed(
    full: World, step: int | None, skip: list[Exclusion], error: type[Stop], said: str
) -> None:
    before = full.store().folders()
    with pytest.raises(error, match=said):
        mended(full, step, *skip)
    assert full.store().folders() == before
    assert not any(MEND_FILE in full.store().files(folder) for folder in before)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A run that has ended, with the last four of its checkpoints whole."""
    world = World(tmp_path_factory.mktemp("full"))
    world.fill(UNEVEN)
    run_ranks(world, 2, world.plan(keep=4))
    return world


def test_records_that_were_trained_before_are_named_with_the_step_to_go_back_to(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.fill(UNEVEN)
    run_ranks(world, 1, world.plan(keep=1000))
    row = next(row for row in outcomes(world).to_pylist() if row["step"] == 8)
    skip = Exclusion("orders", row["partition"], row["offset"], row["offset"])
    with pytest.raises(UsageError, match=r"trained on 1 of the named records, from step 8 on.*--from 6"):
        mended(world, 9, skip)
    mended(world, 6, skip)


def test_another_seed_is_refused_before_checkpoints_are_set_aside(full: World) -> None:
    whole = whole_steps(full.store())
    with pytest.raises(ResumeRefused, match=r"train\.seed"):
        mended(full, whole[0], plan=full.plan(seed=43))
    assert whole_steps(full.store()) == whole


def test_tokens_that_retention_has_deleted_are_counted(tmp_path: Path) -> None:
    world = World(tmp_path)
    hour_ms = 3_600_000
    with closing(open_broker(world.address)) as broker:
        broker.create("orders", world.lanes)
        broker.create("orders.tokens", world.lanes, retention_ms=hour_ms)
    world.fill(UNEVEN)
    run_ranks(world, 1, world.plan(keep=1000))
    rows = outcomes(world)
    later = LocalBroker(world.folder / "broker", lambda: time.time() + 2 * 3600)
    with closing(later.writer("w")) as writer:  # what is written makes room
        for batch in token_batches(0, 1, topic="orders"):
            writer.begin()
            writer.append("orders.tokens", encode(batch, META), partition=0)
            writer.commit("p", "orders", {})
    lost = int((rows["step"].to_numpy() > 3).sum())
    with pytest.raises(RecordsLost, match=rf"step 3 .* 5 lanes .* {lost} records .*retention_h"):
        mended(world, 3)
    assert aside(world) == []
    assert mended(world, None, Exclusion("orders", 0, 70, 74)).named == Counter()


@pytest.mark.parametrize("half", [False, True])
def test_killed_at_any_moment_of_a_mend_the_run_is_as_it_was_or_mended(tmp_path: Path, half: bool) -> None:
    world = World(tmp_path)
    world.fill(UNEVEN)
    run_ranks(world, 1, world.plan(keep=1000))
    skip = Exclusion("orders", 0, 60, 69)
    for at in range(100):
        dying = DyingStore(world.store(), at, half=half)
        newest = newest_step(world.store())
        try:
            mended(world, 3, skip, store=dying)  # type: ignore[arg-type]
        except StoreKilled:
            assert Ledger.open(world.store()).step == newest_step(world.store())  # the chain has no hole
            assert (newest_step(world.store()) or 0) <= (newest or 0)
        else:
            break
    assert at > 2
    assert newest_step(world.store()) == 3
    run_ranks(world, 2)
    assert world.verify().excluded == 10


def test_a_mend_that_was_cut_short_is_refused_and_not_ignored(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.fill([3] * 6)
    run_ranks(world, 1)
    newest = folder_of(newest_step(world.store()) or 0)
    world.store().write(newest, MEND_FILE, [b'{"step": 3'])
    with pytest.raises(Stop, match="cut short"):
        run_ranks(world, 1)


@pytest.mark.parametrize("text", ["orders/0@5..4", "orders@5", "orders/0@a..b", "orders/0@5-9", "orders/0@1+2..4"])
def test_a_range_that_cannot_be_read_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(UsageError, match=r"FIRST\.\.LAST, both included"):
        Exclusion.parse(text)


def test_a_range_is_read_as_it_is_written() -> None:
    assert Exclusion.parse("a.b/3@7") == Exclusion("a.b", 3, 7, 7)
    for text in ("a.b/3@7", "orders/0@1200..1699"):
        assert str(Exclusion.parse(text)) == text
