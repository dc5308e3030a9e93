"""Start stage processes, restart them, carry their errors up, pass signals on.

A `Group` is a set of processes with one restart rule: ingest workers are restarted one by one, ranks all together
(from the last checkpoint). What happens when a process ends:

    exit 0                        it is done; the group is done when all are
    a `Stop` error, bad usage     not restarted: the same thing would happen again. Everything is stopped, the error
                                  is raised here with the child's message
    anything else                 restarted after a back-off (1 s, 2 s, … 30 s), at most `restarts` times without
                                  `QUIET_S` of quiet in between; then ChildFailed with the last traceback

Setting `stopping` sends SIGTERM once to every process and waits; one that has not ended after `grace_s` is killed.
Children are spawned, never forked: broker clients and tokenizers do not survive a fork.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from headrace.pipeline.child import REPORT_FD_VARIABLE
from headrace.schemas.errors import EXIT_TRY_AGAIN, EXIT_USAGE, ChildFailed, HeadraceError, TryAgain, UsageError

QUIET_S = 600.0
MAX_BACKOFF_S = 30.0
_LOOK_S = 0.2  # how often the stop event and due restarts are looked at

OnEvent = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Child:
    """One process: `target` is `package.module:function`, called with `args` (JSON values) and a Channel."""

    name: str
    target: str
    args: Mapping[str, Any]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Group:
    """Processes with one restart rule. `children` is called before every (re)start, for fresh ports and the like."""

    name: str
    children: Callable[[], Sequence[Child]]
    restarts: int
    together: bool = False  # restart all when one fails
    ends_all: bool = False  # when it is done, everything else is stopped


@dataclass(slots=True)
class _Process:
    child: Child
    popen: subprocess.Popen[str]
    reports_fd: int
    unread: bytes = b""  # the beginning of a line whose end has not come yet
    failure: dict[str, Any] | None = None


@dataclass(slots=True)
class _Failures:
    """What is known of one restart rule's subject."""

    count: int = 0
    last_at: float = 0.0
    restart_at: float = 0.0


@dataclass(slots=True)
class _State:
    """A group while it runs."""

    group: Group
    running: dict[str, _Process] = field(default_factory=dict)
    waiting: dict[str, Child] = field(default_factory=dict)  # to be started again
    failures: dict[str, _Failures] = field(default_factory=dict)  # by child, or by group where all restart together
    finishing: bool = False  # being stopped together, before a restart

    def failures_of(self, child: str) -> _Failures:
        return self.failures.setdefault(self.group.name if self.group.together else child, _Failures())

    def due(self, now: float) -> list[Child]:
        """What is to be started again now."""
        if self.group.together and self.running:
            return []
        return [child for name, child in self.waiting.items() if now >= self.failures_of(name).restart_at]

    @property
    def done(self) -> bool:
        return not self.running and not self.waiting


class Supervisor:
    """Runs groups until all are done, one of them fails for good, or `stopping` is set."""

    def __init__(
        self,
        groups: Sequence[Group],
        on_event: OnEvent,
        *,
        grace_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stopping = threading.Event()
        self._states = [_State(group) for group in groups]
        self._on_event = on_event
        self._grace_s = grace_s
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._error: HeadraceError | None = None

    def send(self, group: str, command: Mapping[str, Any]) -> None:
        """Send a command to every running process of a group."""
        for state in self._states:
            if state.group.name == group:
                for process in state.running.values():
                    _write(process, command)

    def run(self) -> None:
        """Block until everything has ended. Raises the error of the child that ended it, if one did."""
        try:
            for state in self._states:
                self._start(state, state.group.children())
            while not self.stopping.is_set() and not all(state.done for state in self._states):
                self._look()
                if any(state.group.ends_all and state.done for state in self._states):
                    break
        except HeadraceError as error:
            self._error = error
        finally:
            self._stop_all()
            self._selector.close()
        if self._error is not None:
            raise self._error

    # -- one look at everything

    def _look(self) -> None:
        now = self._clock()
        for state in self._states:
            due = state.due(now)
            if not due:
                continue
            for child in due:
                del state.waiting[child.name]
            state.finishing = False
            self._start(state, state.group.children() if state.group.together else due)
        self._read_reports()

    def _read_reports(self) -> None:
        for key, _ in self._selector.select(_LOOK_S):
            state, process = key.data
            chunk = os.read(process.reports_fd, 65_536)
            if not chunk:  # the end of the pipe is the end of the process
                self._ended(state, process)
                continue
            *lines, process.unread = (process.unread + chunk).split(b"\n")
            for line in lines:
                event = json.loads(line)
                if event.get("event") == "failed":
                    process.failure = event
                else:
                    self._on_event(process.child.name, event)

    def _ended(self, state: _State, process: _Process) -> None:
        self._selector.unregister(process.reports_fd)
        os.close(process.reports_fd)
        code = process.popen.wait()
        _close_quietly(process.popen.stdin)
        del state.running[process.child.name]
        if state.finishing:
            state.waiting.setdefault(process.child.name, process.child)
        elif code == 0:
            self._on_event(process.child.name, {"event": "ended"})
        elif self.stopping.is_set():
            self._error = self._error or _given_up(process, code, "while stopping")
        else:
            self._failed(state, process, code)

    def _failed(self, state: _State, process: _Process, code: int) -> None:
        """Plan the restart of a process that failed, or raise."""
        _raise_if_final(process, code)
        now = self._clock()
        failures = state.failures_of(process.child.name)
        failures.count = 1 if now - failures.last_at > QUIET_S else failures.count + 1
        failures.last_at = now
        if failures.count > state.group.restarts:
            raise _given_up(process, code, f"after {state.group.restarts} restarts")
        wait_s = min(MAX_BACKOFF_S, 2.0 ** (failures.count - 1))
        failures.restart_at = now + wait_s
        state.waiting[process.child.name] = process.child
        self._on_event(
            process.child.name,
            {"event": "restarting", "why": _why(process, code), "wait_s": wait_s, "failures": failures.count},
        )
        if state.group.together:
            # The others cannot go on without it; they would wait in a collective for what never comes.
            state.finishing = True
            for other in state.running.values():
                other.popen.kill()

    # -- starting and stopping

    def _start(self, state: _State, children: Sequence[Child]) -> None:
        for child in children:
            process = _spawn(child)
            state.running[child.name] = process
            self._selector.register(process.reports_fd, selectors.EVENT_READ, (state, process))
            self._on_event(child.name, {"event": "started", "pid": process.popen.pid})

    def _stop_all(self) -> None:
        """SIGTERM once, then wait for the ends; kill what has not ended in time."""
        self.stopping.set()
        for state in self._states:
            state.waiting.clear()
            for process in state.running.values():
                process.popen.send_signal(signal.SIGTERM)
        deadline = self._clock() + self._grace_s
        killed = False
        while any(state.running for state in self._states):
            self._read_reports()
            if self._clock() >= deadline and not killed:
                killed = True
                for state in self._states:
                    for process in state.running.values():
                        self._on_event(process.child.name, {"event": "killed", "grace_s": self._grace_s})
                        process.popen.kill()


def _spawn(child: Child) -> _Process:
    read_fd, write_fd = os.pipe()
    environment = {**os.environ, **child.env, REPORT_FD_VARIABLE: str(write_fd)}
    # A child inherits what is blocked: a SIGTERM that comes before it has its handler waits until it has.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        popen = subprocess.Popen(
            [sys.executable, "-m", "headrace.pipeline.child"],
            stdin=subprocess.PIPE,
            pass_fds=(write_fd,),
            env=environment,
            text=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(write_fd)
    process = _Process(child, popen, read_fd)
    _write(process, {"target": child.target, "args": dict(child.args), "parent": os.getpid()})
    return process


def _write(process: _Process, command: Mapping[str, Any]) -> None:
    stdin = process.popen.stdin
    assert stdin is not None
    try:
        stdin.write(json.dumps(command) + "\n")
        stdin.flush()
    except BrokenPipeError:
        return  # it has ended already; the report pipe says how


def _close_quietly(stream: IO[str] | None) -> None:
    """Close our end of a dead child's input; what was not delivered has nobody to go to."""
    try:
        if stream is not None:
            stream.close()
    except BrokenPipeError:
        return


def _why(process: _Process, code: int) -> str:
    if process.failure is not None:
        return str(process.failure["message"])
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _raise_if_final(process: _Process, code: int) -> None:
    """A deliberate stop is not tried again."""
    failure = process.failure
    if failure is None or not failure["known"] or code == EXIT_TRY_AGAIN:
        return
    raise (UsageError if code == EXIT_USAGE else ChildFailed)(str(failure["message"]))


def _given_up(process: _Process, code: int, when: str) -> HeadraceError:
    kind = TryAgain if code == EXIT_TRY_AGAIN else ChildFailed
    trace = f"\n{process.failure['traceback']}" if process.failure and not process.failure["known"] else ""
    return kind(f"{process.child.name} failed {when}: {_why(process, code)}{trace}")
