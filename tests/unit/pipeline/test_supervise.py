"""Supervision: errors travel up, restarts are bounded, signals are passed on, nothing outlives the supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.pipeline.supervise import Child, Group, Supervisor
from headrace.schemas.errors import ChildFailed, TopicError, TryAgain, UsageError

STAGES = "tests.unit.pipeline.stages"


class Recorder:
    """Keeps events, and runs an action when one of a kind arrives."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.actions: dict[str, Callable[[], None]] = {}

    def __call__(self, name: str, event: dict[str, Any]) -> None:
        self.events.append((name, event))
        action = self.actions.get(event["event"])
        if action is not None:
            action()

    def kinds(self, name: str) -> list[str]:
        return [event["event"] for who, event in self.events if who == name]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for _, event in self.events if event["event"] == kind]


def group(target: str, *, count: int = 1, restarts: int = 0, together: bool = False, **args: Any) -> Group:
    children = tuple(Child(f"{target}-{n}", f"{STAGES}:{target}", args) for n in range(count))
    return Group(target, lambda: children, restarts, together)


def test_children_report_and_end() -> None:
    seen = Recorder()
    Supervisor([group("finish", count=2, text="你好")], seen).run()
    assert [event["text"] for event in seen.of("said")] == ["你好", "你好"]
    assert seen.kinds("finish-0") == ["started", "said", "ended"]


def test_no_report_is_lost_when_many_come_at_once() -> None:
    seen = Recorder()
    Supervisor([group("chatter", lines=5000)], seen).run()
    assert [event["number"] for event in seen.of("line")] == list(range(5000))


def test_stopping_ends_every_child_by_itself() -> None:
    seen = Recorder()
    supervisor = Supervisor([group("wait_for_stop", count=2)], seen)
    seen.actions["ready"] = supervisor.stopping.set
    supervisor.run()
    assert len(seen.of("stopped")) == len(seen.of("ready"))


def test_a_stop_before_a_child_can_hear_it_is_heard_later() -> None:
    seen = Recorder()
    supervisor = Supervisor([group("wait_for_stop", count=2)], seen)
    seen.actions["started"] = supervisor.stopping.set  # Python has not begun to run in it yet
    supervisor.run()
    assert seen.kinds("wait_for_stop-0") == ["started", "ready", "stopped", "ended"]


def test_a_child_that_does_not_stop_is_killed_and_said_so() -> None:
    seen = Recorder()
    supervisor = Supervisor([group("ignore_stop")], seen, grace_s=0.5)
    seen.actions["ready"] = supervisor.stopping.set
    with pytest.raises(ChildFailed, match="killed by SIGKILL"):
        supervisor.run()
    assert seen.of("killed")


def test_an_error_while_stopping_is_not_success() -> None:
    seen = Recorder()
    supervisor = Supervisor([group("fail_on_stop")], seen)
    seen.actions["ready"] = supervisor.stopping.set
    with pytest.raises(ChildFailed, match="no space left for the checkpoint"):
        supervisor.run()


def test_a_killed_worker_is_restarted(tmp_path: Path) -> None:
    seen = Recorder()
    Supervisor([group("crash_times", restarts=2, marker=str(tmp_path / "marker"), times=2)], seen).run()
    assert [event["why"] for event in seen.of("restarting")] == ["killed by SIGKILL"] * 2
    assert [event["wait_s"] for event in seen.of("restarting")] == [1.0, 2.0]
    assert seen.of("survived")


def test_restarts_have_a_limit(tmp_path: Path) -> None:
    with pytest.raises(ChildFailed, match="after 1 restarts: killed by SIGKILL"):
        Supervisor([group("crash_times", restarts=1, marker=str(tmp_path / "marker"), times=99)], Recorder()).run()


def test_workers_that_fail_at_once_do_not_use_up_each_others_restarts(tmp_path: Path) -> None:
    seen = Recorder()
    groups = tuple(
        Child(f"worker-{n}", f"{STAGES}:crash_times", {"marker": str(tmp_path / str(n)), "times": 1}) for n in range(4)
    )
    Supervisor([Group("workers", lambda: groups, restarts=1)], seen).run()
    assert len(seen.of("survived")) == 4
    assert {event["wait_s"] for event in seen.of("restarting")} == {1.0}


def test_the_end_of_a_child_is_seen_though_something_it_started_lives_on() -> None:
    seen = Recorder()
    Supervisor([group("leave_behind")], seen).run()
    left = psutil.Process(seen.of("left")[0]["pid"])
    assert left.is_running()
    left.kill()


def test_ranks_are_restarted_together(tmp_path: Path) -> None:
    seen = Recorder()
    children = tuple(
        Child(f"rank-{n}", f"{STAGES}:crash_if_first", {"marker": str(tmp_path / "marker"), "crashes": n == 1})
        for n in range(2)
    )
    Supervisor([Group("ranks", lambda: children, restarts=1, together=True)], seen).run()
    assert seen.kinds("rank-0").count("started") == seen.kinds("rank-1").count("started") == 2


def test_a_deliberate_stop_is_not_tried_again() -> None:
    seen = Recorder()
    with pytest.raises(UsageError, match=r"tokens\.lanes says 8: set it to 4") as caught:
        Supervisor([group("refuse", restarts=5)], seen).run()
    assert caught.value.exit_code == TopicError.exit_code == 2
    assert not seen.of("restarting")


def test_a_service_that_stays_away_ends_with_try_again() -> None:
    with pytest.raises(TryAgain, match="nowhere:9092") as caught:
        Supervisor([group("broker_away", restarts=1)], Recorder()).run()
    assert caught.value.exit_code == 75


def test_the_traceback_of_a_bug_travels_up() -> None:
    with pytest.raises(ChildFailed, match=r"(?s)ZeroDivisionError: a bug.*Traceback.*stages\.py"):
        Supervisor([group("bug")], Recorder()).run()


def test_commands_reach_the_children() -> None:
    seen = Recorder()
    supervisor = Supervisor([group("obey")], seen)
    seen.actions["ready"] = lambda: supervisor.send("obey", {"end": True})
    supervisor.run()
    assert seen.of("obeyed") == [{"event": "obeyed", "command": {"end": True}}]


def test_the_end_of_an_essential_group_ends_the_others() -> None:
    seen = Recorder()
    finishing = group("finish", text="done")
    essential = Group("finish", finishing.children, 0, ends_all=True)
    Supervisor([group("wait_for_stop"), essential], seen).run()
    assert "ended" in seen.kinds("wait_for_stop-0")


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_killed_supervisor(kill: signal.Signals) -> None:
    code = (
        "from tests.unit.pipeline.test_supervise import *\n"
        "seen = Recorder()\n"
        "supervisor = Supervisor([group('wait_for_stop', count=2)], seen)\n"
        "signal.signal(signal.SIGTERM, lambda *_: supervisor.stopping.set())\n"
        "seen.actions['ready'] = lambda: print(seen.of('ready')[-1]['pid'], flush=True)\n"
        "supervisor.run()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    children = [psutil.Process(int(parent.stdout.readline())) for _ in range(2)]
    os.kill(parent.pid, kill)
    assert parent.wait() == (0 if kill == signal.SIGTERM else -signal.SIGKILL)
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive
