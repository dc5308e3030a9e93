"""Ingest workers as real processes, killed and frozen at every step, on the local broker and on Kafka."""

from __future__ import annotations

import itertools
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.ingest import tokenizers
from headrace.ingest.config import IngestConfig, TokenizerConfig
from headrace.ingest.publish import publish_file
from headrace.ingest.stage import StageArgs, prepare
from headrace.pipeline.broker import open_broker
from headrace.pipeline.config import BrokerConfig, TextConfig, TokensConfig
from headrace.pipeline.topics import Broker
from tests.unit.ingest.pipe import Pipe
from tests.unit.ingest.tools import write_vocabulary

WITHIN_S = 120.0
QUICK = {"session.timeout.ms": 1500, "heartbeat.interval.ms": 300}  # a killed member is missed soon
_NAMES = (f"ingest-{number}" for number in itertools.count())


@pytest.fixture(params=["local", "kafka"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"local:{tmp_path / 'topics'}" if request.param == "local" else f"kafka://{request.getfixturevalue('kafka')}"


@pytest.fixture
def broker(address: str) -> Iterator[Broker]:
    broker = open_broker(address)
    yield broker
    broker.close()


@pytest.fixture
def pipe(broker: Broker, tmp_path: Path) -> Pipe:
    model = write_vocabulary(tmp_path / "model")
    tokenizer = tokenizers.load(str(model), lowercase=True, max_tokens=32)
    return Pipe(broker, tokenizer, name=next(_NAMES), partitions=2, lanes=3)


@pytest.fixture
def args(address: str, pipe: Pipe, tmp_path: Path) -> StageArgs:
    ingest = {"commit_ms": 50, "poll_messages": 30, "dead_letters": {"topic": f"{pipe.name}.dead", "max_share": 1.0}}
    return StageArgs(
        broker=BrokerConfig(broker=address, kafka=QUICK if address.startswith("kafka") else {}),
        text=TextConfig(topic=pipe.name, partitions=pipe.partitions),
        tokens=TokensConfig(topic=f"{pipe.name}.tokens", lanes=pipe.lanes, batch_tokens=256),
        tokenizer=TokenizerConfig(path=str(tmp_path / "model"), max_tokens=32),
        ingest=IngestConfig.model_validate(ingest),
        name=pipe.name,
        run="main",
    )


def some_texts(count: int) -> list[str]:
    return ["{" if number % 7 == 3 else "交通拥堵" * (1 + number % 5) for number in range(count)]


def until(holds: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline_s, f"waited {WITHIN_S} s in vain until {what}"
        time.sleep(0.02)


def all_read(pipe: Pipe) -> bool:
    positions, ends = pipe.broker.positions(pipe.group, pipe.name), pipe.broker.ends(pipe.name)
    return all(number in positions and positions[number].offset == end.end for number, end in ends.items())


def start(
    args: StageArgs, *, slot: int = 0, at: int | str | None = None, after: bool = False, by: str = "SIGKILL"
) -> Any:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.ingest_member"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    told = {"args": args.revised(slot=slot).model_dump(mode="json"), "at": at, "after": after, "signal": by}
    process.stdin.write(json.dumps(told) + "\n")
    process.stdin.flush()
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def finish(process: Any) -> None:
    """SIGTERM: commit what is read, leave, exit 0."""
    process.send_signal(signal.SIGTERM)
    assert process.wait(WITHIN_S) == 0
    close(process)


def close(process: Any) -> None:
    process.stdin.close()
    process.stdout.close()


@contextmanager
def running(args: StageArgs, slots: int = 1) -> Iterator[list[Any]]:
    processes = [start(args, slot=slot) for slot in range(slots)]
    yield processes
    for process in processes:
        finish(process)


def test_killed_before_and_after_every_call_of_the_protocol(pipe: Pipe, args: StageArgs) -> None:
    prepare(pipe.broker, args)
    for call, after in itertools.product(["poll", "begin", "append", "commit"], [False, True]):
        pipe.publish(some_texts(60), in_transactions_of=25)
        killed = start(args, at=call, after=after)
        assert killed.wait(WITHIN_S) == -signal.SIGKILL, (call, after)
        close(killed)
    with running(args):
        until(lambda: all_read(pipe), "everything is read")
    pipe.check_exactly_once()


@pytest.mark.parametrize("after", [False, True])
def test_frozen_inside_its_transaction_and_woken_it_commits_nothing_twice(
    pipe: Pipe, args: StageArgs, after: bool
) -> None:
    """Kind 14: the partitions are lost meanwhile; on the local broker a frozen member keeps them, and goes on."""
    pipe.publish(some_texts(200), in_transactions_of=50)
    prepare(pipe.broker, args)
    frozen = start(args, slot=1, at="append", after=after, by="SIGSTOP")
    until(lambda: Path(f"/proc/{frozen.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", "it is frozen")
    with running(args):
        if not args.broker.broker.startswith("local:"):
            until(lambda: all_read(pipe), "the other has read everything")
        frozen.send_signal(signal.SIGCONT)
        pipe.publish(some_texts(100), in_transactions_of=50)
        until(lambda: all_read(pipe), "everything is read")
        finish(frozen)
    pipe.check_exactly_once()


def test_two_workers_killed_at_random_while_records_arrive(pipe: Pipe, args: StageArgs) -> None:
    """Kind 21: a worker that dies takes nothing along."""
    chance = random.Random(7)
    prepare(pipe.broker, args)
    processes = {slot: start(args, slot=slot) for slot in range(2)}
    for _ in range(6):
        pipe.publish(some_texts(300), in_transactions_of=40)
        slot = chance.randrange(2)
        processes[slot].kill()
        processes[slot].wait(WITHIN_S)
        close(processes[slot])
        processes[slot] = start(args, slot=slot)
    until(lambda: all_read(pipe), "everything is read")
    for process in processes.values():
        finish(process)
    pipe.check_exactly_once()


def test_sigterm_while_reading_commits_what_is_read(pipe: Pipe, args: StageArgs) -> None:
    prepare(pipe.broker, args)
    for _ in range(3):
        pipe.publish(some_texts(500), in_transactions_of=100)
        with running(args):
            until(lambda: pipe.broker.positions(pipe.group, pipe.name)[0].tokens, "something is read")
    with running(args, slots=2):
        until(lambda: all_read(pipe), "everything is read")
    pipe.check_exactly_once()


def test_a_published_file_is_ingested_and_positions_pass_the_markers(
    pipe: Pipe, args: StageArgs, tmp_path: Path
) -> None:
    prepare(pipe.broker, args)
    (tmp_path / "a.txt").write_text("交通\n拥堵\n\n教育\n", encoding="utf-8")
    assert publish_file(pipe.broker, pipe.name, tmp_path / "a.txt").lines == 3
    pipe.published = 3
    with running(args):
        until(lambda: all_read(pipe), "positions are at the ends, markers included")
    pipe.check_exactly_once()
    assert publish_file(pipe.broker, pipe.name, tmp_path / "a.txt").lines == 0
