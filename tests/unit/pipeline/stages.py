"""Child targets that the supervisor's tests start."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from headrace.pipeline.child import Channel
from headrace.schemas.errors import BrokerAway, TopicError


def finish(args: dict[str, Any], channel: Channel) -> None:
    channel.report({"event": "said", "text": args["text"]})


def wait_for_stop(args: dict[str, Any], channel: Channel) -> None:
    channel.report({"event": "ready", "pid": os.getpid()})
    channel.stopping.wait()
    channel.report({"event": "stopped"})


def obey(args: dict[str, Any], channel: Channel) -> None:
    channel.report({"event": "ready"})
    channel.report({"event": "obeyed", "command": channel.commands.get()})


def ignore_stop(args: dict[str, Any], channel: Channel) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    channel.report({"event": "ready"})
    signal.pause()


def chatter(args: dict[str, Any], channel: Channel) -> None:
    for number in range(args["lines"]):
        channel.report({"event": "line", "number": number})


def crash_times(args: dict[str, Any], channel: Channel) -> None:
    """Die by SIGKILL until the marker file holds `times` lines."""
    marker = Path(args["marker"])
    with marker.open("a") as file:
        file.write("x\n")
    if len(marker.read_text().splitlines()) <= args["times"]:
        os.kill(os.getpid(), signal.SIGKILL)
    channel.report({"event": "survived"})


def crash_if_first(args: dict[str, Any], channel: Channel) -> None:
    """The one named by `crashes` dies once; the others wait for the end."""
    marker = Path(args["marker"])
    first = not marker.exists()
    channel.report({"event": "ready", "first": first})
    if first and args["crashes"]:
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if first:
        channel.stopping.wait()


def refuse(args: dict[str, Any], channel: Channel) -> None:
    raise TopicError("topic 'orders' has 4 lanes, tokens.lanes says 8: set it to 4")


def broker_away(args: dict[str, Any], channel: Channel) -> None:
    raise BrokerAway("no broker answers at nowhere:9092")


def bug(args: dict[str, Any], channel: Channel) -> None:
    raise ZeroDivisionError("a bug")


def fail_on_stop(args: dict[str, Any], channel: Channel) -> None:
    channel.report({"event": "ready"})
    channel.stopping.wait()
    raise OSError("no space left for the checkpoint")


def leave_behind(args: dict[str, Any], channel: Channel) -> None:
    """Start something that lives longer, with every file that is inherited."""
    left = subprocess.Popen(["sleep", "600"], close_fds=False, start_new_session=True)
    channel.report({"event": "left", "pid": left.pid})
