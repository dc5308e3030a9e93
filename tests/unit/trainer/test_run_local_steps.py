"""Checkpoints and evaluations of a run whose ranks are equal only now and then."""

from __future__ import annotations

from pathlib import Path

from tests.unit.trainer.little import World, run_ranks

EVERY = 4


def test_checkpoints_and_evaluations_wait_until_the_ranks_are_equal(tmp_path: Path) -> None:
    world = World(tmp_path, lanes=2, equal_every=EVERY)
    world.fill([40] * world.lanes)
    plan = world.plan()
    evaluate = {"hold_out_share": 0.2, "every_steps": 3}
    plan = plan.revised(evaluate=evaluate)
    result = run_ranks(world, 2, plan)
    assert result.step > 3 * EVERY
    folders = (tmp_path / "checkpoints" / "orders" / "main").glob("step-*")
    saved = sorted(int(folder.name.removeprefix("step-")) for folder in folders)
    assert saved[0] == 0 and saved[-1] == result.step
    assert saved[1:-1] == list(range(EVERY, result.step, EVERY))
    evaluated = [event["step"] for event in world.events if event.get("event") == "evaluated"]
    assert evaluated[-1] == result.step
    assert evaluated[:-1] and all(step % EVERY == 0 for step in evaluated[:-1])
