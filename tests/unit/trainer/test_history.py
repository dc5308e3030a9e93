"""History, evaluations and the best checkpoint of whole runs: through kills, at any number of ranks, once each step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.pipeline.child import Channel
from headrace.schemas.errors import UsageError
from headrace.schemas.tokens import encode
from headrace.trainer.best import read_best
from headrace.trainer.checkpoint_load import load
from headrace.trainer.checkpoint_store import open_store
from headrace.trainer.config import RankPlan
from headrace.trainer.history import Line, read_history
from headrace.trainer.ledger_read import Ledger
from headrace.trainer.report import gather, page
from tests.unit.trainer.little import LABELS, Killed, World, run_ranks
from tests.unit.trainer.made_up import META, token_batches

FILL = [10, 10, 9, 0, 5, 10]


def ledger_of(world: World) -> Ledger:
    return Ledger.open(open_store(str(world.folder / "checkpoints"), "orders", "main"))


def history_of(world: World) -> list[Line]:
    return read_history(ledger_of(world))


def evaluating(world: World, **evaluate: object) -> RankPlan:
    fields = world.plan().model_dump()
    fields["evaluate"] = {"hold_out_share": 0.2, "every_steps": 2, "keep_best": True, **evaluate}
    fields["checkpoint"] |= {"every_steps": 5, "keep": 2}
    return RankPlan.model_validate(fields)


def without_times(lines: list[Line]) -> list[Line]:
    timed = ("time_ms", "step_s", "tokens_s", "wait_share", "freshness_p50_s", "freshness_p99_s")
    return [{name: value for name, value in line.items() if name not in timed} for line in lines]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A run on one rank that nothing disturbs."""
    world = World(tmp_path_factory.mktemp("whole"))
    world.fill(FILL)
    run_ranks(world, 1, evaluating(world))
    return world


def test_every_step_has_one_line_also_after_kills_at_other_ranks(whole: World, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.fill(FILL)
    for steps, ranks in ((3, 2), (7, 3), (8, 1)):

        def die(step: int, _: Channel, at: int = steps) -> None:
            if step == at:
                raise Killed

        with pytest.raises(Killed):
            run_ranks(world, ranks, evaluating(world), before_step=die)
    last = run_ranks(world, 2, evaluating(world))
    lines = history_of(world)
    assert [line["step"] for line in lines] == list(range(1, last.step + 1))
    assert without_times(lines) == without_times(history_of(whole))
    evaluated = [line["step"] for line in lines if "evaluations" in line]
    assert evaluated == sorted({*range(2, last.step + 1, 2), last.step})


def test_the_best_checkpoint_is_named_and_keeps_its_weights(whole: World) -> None:
    scored = [
        (line["evaluations"]["held_out"]["accuracy"], -line["step"])
        for line in history_of(whole)
        if "evaluations" in line
    ]
    store = open_store(str(whole.folder / "checkpoints"), "orders", "main")
    best = read_best(store)
    assert best is not None
    assert best.step == -max(scored)[1]
    assert best.accuracy == pytest.approx(max(scored)[0], rel=1e-5)
    assert load(store, best.step).step == best.step
    whole_ones = [folder for folder in store.folders() if "model.safetensors" in store.files(folder)]
    assert len(whole_ones) <= 3  # the newest two, and the best


def test_the_development_set_is_scored_whole_at_any_number_of_ranks(tmp_path: Path) -> None:
    (rows,) = token_batches(0, 1)
    usable = rows.filter(
        [label[:1] in ([LABELS[0]], [LABELS[1]]) and len(label) == 1 for label in rows.column("labels").to_pylist()]
    )
    (tmp_path / "development.arrow").write_bytes(encode(usable, META))
    counts = []
    for ranks in (1, 3):
        world = World(tmp_path / str(ranks))
        world.fill(FILL)
        plan = evaluating(world).model_copy(update={"development": str(tmp_path / "development.arrow")})
        run_ranks(world, ranks, plan)
        scores = [line["evaluations"]["development"] for line in history_of(world) if "evaluations" in line]
        counts.append([(score["count"], score["accuracy"]) for score in scores])
        best = read_best(open_store(plan.checkpoint.root, "orders", "main"))
        assert best is not None
        assert best.evaluated == "development"
    assert counts[0] == counts[1]
    assert {count for count, _ in counts[0]} == {len(usable)}


def test_a_development_record_that_the_task_cannot_use_is_named(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.fill(FILL)
    (rows,) = token_batches(0, 1)
    unlabelled = rows.set_column(
        rows.schema.get_field_index("labels"),
        "labels",
        type(rows.column("labels")).from_arrays([0] * (len(rows) + 1), rows.column("labels").values.slice(0, 0)),
    )
    (tmp_path / "development.arrow").write_bytes(encode(unlabelled, META))
    plan = evaluating(world).model_copy(update={"development": str(tmp_path / "development.arrow")})
    with pytest.raises(UsageError, match=r"evaluate\.data: line \d+: missing-label"):
        run_ranks(world, 1, plan)


def test_balance_is_told_and_skew_warned_of(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.fill([20, 2, 2, 2, 2, 2])
    run_ranks(world, 2, world.plan(balance_steps=8))
    balances = [event for event in world.events if event["event"] == "balance"]
    assert balances[0]["text"].startswith("balance over 1 step;")
    assert balances[1]["lane_skew"] > 1.5
    assert balances[1]["ranks"].keys() == {0, 1}
    warned = [event["text"] for event in world.events if event["event"] == "warning"]
    assert any("lane 0 has" in text for text in warned)


def test_the_report_is_one_page_that_fetches_nothing(whole: World) -> None:
    text = page(gather(ledger_of(whole), "orders", "main"))
    for part in ("Loss", "Accuracy and macro F1", "Freshness", "held out", "trained", "best, kept", "<svg"):
        assert part in text
    assert "http" not in text
    assert "<script" not in text
    steps = history_of(whole)[-1]["step"]
    assert f"<dd>{steps}</dd>" in text


def test_a_run_that_evaluates_nothing_has_a_report_too(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.fill([3, 0, 0, 0, 0, 0])
    run_ranks(world, 1)
    assert "Evaluations" not in page(gather(ledger_of(world), "orders", "main"))
    assert read_best(open_store(str(tmp_path / "checkpoints"), "orders", "main")) is None
    lines = (tmp_path / "checkpoints/orders/main/step-0000000003/history.jsonl").read_text().splitlines()
    assert all("step" in json.loads(line) for line in lines)
