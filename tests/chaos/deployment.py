"""headrace as people run it, to be killed: `publish` and `up` as processes that are started again when they end.

Victims are real processes below those two: the publisher, the supervisor (`up` itself), ingest workers, ranks. When to
kill is decided by what has happened since the last kill, never by the time.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import yaml

from headrace.demo_text import LABELS, vocabulary, work_orders
from headrace.pipeline import names
from headrace.pipeline.broker import open_broker

ROLES = ("publisher", "supervisor", "worker", "rank")
LOOK_S = 0.05

MODEL = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.0,
}


def configuration(broker: str, folder: Path, *, lanes: int = 4, **train: Any) -> dict[str, Any]:
    """A small classifier over `broker`, everything else in `folder`."""
    return {
        "name": "orders",
        "broker": broker,
        "text": {"topic": "orders", "partitions": 4},
        "tokenizer": {"path": str(folder / "vocab.txt"), "max_tokens": 64},
        "tokens": {"lanes": lanes, "batch_tokens": 4096},
        "ingest": {"workers": 2, "commit_ms": 200, "restarts": 1000},
        "train": {
            "model": MODEL,
            "task": {"type": "classification", "labels": list(LABELS)},
            "batch": {"tokens": 1024 * lanes, "flush_s": 0.5},
            "window_tokens": 8192,
            "optimizer": {"learning_rate": 3e-4, "schedule": "constant"},
            "restarts": 1000,
            **train,
        },
        "evaluate": {"hold_out_share": 0.05},
        "checkpoint": {"root": str(folder / "checkpoints"), "every_steps": 5},
    }


def wait_until(what: str, happened: Callable[[], bool], *, within_s: float = 240.0) -> None:
    """Look until it has happened; fails, saying what, when it does not."""
    deadline = time.monotonic() + within_s
    while not happened():
        assert time.monotonic() < deadline, f"waited {within_s:.0f} s in vain for: {what}"
        time.sleep(LOOK_S)


class Moved(NamedTuple):
    """How far the pipe has come: grows while it works."""

    published: int  # ends of the text topic, added up
    tokens: int  # emitted by ingest
    step: int


@dataclass
class Deployment:
    """Two commands over one configuration file."""

    folder: Path
    config: Mapping[str, Any]
    ranks: int = 2
    options: Sequence[str] = ()  # of all commands but the publisher
    publish_options: Sequence[str] = ("--rate", "200")
    run: str = "main"
    killed: list[str] = field(default_factory=list)
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def command(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a headrace command to its end."""
        done = subprocess.run(self._words(*words), cwd=self.folder, capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, f"headrace {' '.join(words)}: {done.stderr[-3000:]}"
        return done

    def write(self) -> None:
        (self.folder / "headrace.yaml").write_text(yaml.safe_dump(dict(self.config), allow_unicode=True))

    def start(self, role: str) -> None:
        """Start one of the commands: publisher, supervisor (`up`), ingest or trainer."""
        words = {
            "publisher": ("publish", "orders.jsonl", *self.publish_options),
            "supervisor": ("up", "--ranks", str(self.ranks), *self.options),
            "ingest": ("ingest", *self.options),
            "trainer": ("train", "--ranks", str(self.ranks), *self.options),
        }[role]
        log = (self.folder / f"{role}.log").open("ab")
        self._running[role] = subprocess.Popen(self._words(*words), cwd=self.folder, stdout=log, stderr=log)
        log.close()

    def ended(self, role: str) -> int | None:
        """The exit code of a command; None while it runs."""
        return self._running[role].poll()

    def victims(self, role: str) -> list[psutil.Process]:
        """Processes of a role that run now."""
        if role in self._running:
            popen = self._running[role]
            return [psutil.Process(popen.pid)] if popen.poll() is None else []
        found = []
        for process in [child for command in self._running for child in self._below(command)]:
            try:
                is_rank = "PADDLE_TRAINER_ID" in process.environ()
            except psutil.Error:
                continue  # it has ended meanwhile
            if is_rank == (role == "rank"):
                found.append(process)
        return found

    def kill(self, role: str, choose: random.Random) -> None:
        """SIGKILL one process of a role, and wait until its parent has noticed; a command is started again."""
        wait_until(f"a {role} to kill", lambda: bool(self.victims(role)))
        victim = choose.choice(self.victims(role))
        children = self._below(role) if role in self._running else []
        victim.send_signal(signal.SIGKILL)
        self.killed.append(role)
        if role not in self._running:
            victim.wait(timeout=60)
        else:
            self._running[role].wait()
            _, alive = psutil.wait_procs(children, timeout=60)
            assert not alive, f"processes that outlived the {role}: {alive}"
            self.start(role)

    def wait(self, role: str, *, within_s: float = 600.0) -> int:
        """Wait for the end of a command; returns its exit code."""
        wait_until(f"the end of the {role}", lambda: self.ended(role) is not None, within_s=within_s)
        code = self.ended(role)
        assert code is not None
        return code

    def terminate(self, role: str) -> int:
        """SIGTERM, then wait."""
        self._running[role].send_signal(signal.SIGTERM)
        return self.wait(role)

    def stop(self) -> None:
        """Kill what is left, for the end of a test."""
        for popen in self._running.values():
            if popen.poll() is None:
                popen.kill()
                popen.wait()

    # -- what has happened

    def moved(self) -> Moved:
        with closing(open_broker(self.config["broker"])) as broker:
            text = broker.ends("orders")
            read = broker.positions(names.ingest_group("orders"), "orders")
            trained = broker.positions(names.trained_group("orders", self.run), "orders.tokens")
        step = trained[0].notes.get("step", 0) if 0 in trained else 0
        published, tokens = sum(each.end for each in text.values()), sum(each.tokens for each in read.values())
        return Moved(published, tokens, int(str(step)))

    def all_read(self) -> bool:
        """Whether ingest has read all of the text topic."""
        with closing(open_broker(self.config["broker"])) as broker:
            read = broker.positions(names.ingest_group("orders"), "orders")
            return all(number in read and read[number].offset >= at.end for number, at in broker.ends("orders").items())

    def verify(self) -> dict[str, Any]:
        """The last line of `ledger verify --json`."""
        last = self.command("ledger", "verify", "--json", check=False).stdout.splitlines()[-1]
        counts: dict[str, Any] = json.loads(last)
        return counts

    def ledger_hash(self) -> str:
        return self.command("ledger", "hash").stdout.strip()

    def _below(self, role: str) -> list[psutil.Process]:
        try:
            return psutil.Process(self._running[role].pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    @staticmethod
    def _words(*words: str) -> list[str]:
        return [sys.executable, "-m", "headrace", *words]


def write_orders(folder: Path, count: int) -> None:
    """`orders.jsonl`, and a vocabulary of its characters."""
    orders = list(work_orders(count, seed=1))
    lines = [json.dumps(order.fields(), ensure_ascii=False) for order in orders]
    (folder / "orders.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "vocab.txt").write_text("\n".join(vocabulary(order.text for order in orders)) + "\n")


def kills_wanted(default: int) -> int:
    """How many kills a test does: `HEADRACE_KILLS` for a long run by hand."""
    return int(os.environ.get("HEADRACE_KILLS", default))
