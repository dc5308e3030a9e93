"""When checkpoints are due and held batches are released, on a clock that the test turns."""

from __future__ import annotations

from headrace.trainer.cadence import IDLE_SAVE_S, Cadence


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def cadence(clock: Clock, *, every_steps: int | None = None, every_s: float = 600.0, flush_s: float = 5.0) -> Cadence:
    return Cadence(every_steps, every_s, flush_s, clock)


def steps_due(rules: Cadence, steps: range) -> list[int]:
    due_at = []
    for step in steps:
        due = rules.due(step, idle=False)
        rules.agreed(stepped=True, due=due)
        if due:
            due_at.append(step)
    return due_at


def test_every_n_steps() -> None:
    assert steps_due(cadence(Clock(), every_steps=3), range(1, 10)) == [3, 6, 9]


def test_every_s_seconds_of_the_clock() -> None:
    clock = Clock()
    rules = cadence(clock, every_s=600)
    assert steps_due(rules, range(1, 50)) == []
    clock.now += 600
    assert steps_due(rules, range(50, 60)) == [50]
    clock.now += 599
    assert steps_due(rules, range(60, 70)) == []


def test_idle_with_unsaved_steps_is_saved_once() -> None:
    clock = Clock()
    rules = cadence(clock)
    steps_due(rules, range(1, 4))
    assert not rules.due(3, idle=True)
    clock.now += IDLE_SAVE_S
    assert rules.due(3, idle=True)
    rules.agreed(stepped=False, due=True)
    clock.now += 10 * IDLE_SAVE_S
    assert not rules.due(3, idle=True)


def test_a_moment_of_data_ends_the_idle_time() -> None:
    clock = Clock()
    rules = cadence(clock)
    steps_due(rules, range(1, 2))
    assert not rules.due(1, idle=True)
    clock.now += IDLE_SAVE_S - 1
    steps_due(rules, range(2, 3))
    clock.now += IDLE_SAVE_S - 1
    assert not rules.due(2, idle=True)


def test_nothing_to_save_is_never_due_while_idle() -> None:
    clock = Clock()
    rules = cadence(clock, every_s=1)
    rules.due(0, idle=True)
    clock.now += 1e6
    assert not rules.due(0, idle=True)


def test_a_held_batch_is_released_after_flush_s_and_the_next_waits_anew() -> None:
    clock = Clock()
    rules = cadence(clock, flush_s=5)
    assert not rules.release()
    clock.now += 4.9
    assert not rules.release()
    clock.now += 0.1
    assert rules.release()
    rules.agreed(stepped=True, due=False)
    assert not rules.release()
