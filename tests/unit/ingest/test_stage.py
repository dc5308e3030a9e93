"""The stage: what its arguments are, what the parent finds out once, and one worker from start to stop."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.ingest.config import IngestConfig, TokenizerConfig
from headrace.ingest.stage import StageArgs, prepare, work
from headrace.pipeline.child import Channel
from headrace.pipeline.config import BrokerConfig, TextConfig, TokensConfig
from headrace.pipeline.local import LocalBroker
from headrace.schemas.errors import Stop, TopicError, UsageError
from headrace.schemas.position import Position
from tests.unit.ingest.tools import emitted_rows

WITHIN_S = 60.0


@pytest.fixture
def args(broker: LocalBroker, vocabulary: Path, monkeypatch: pytest.MonkeyPatch) -> StageArgs:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    return StageArgs(
        broker=BrokerConfig(broker=broker.address),
        text=TextConfig(topic="text", partitions=2),
        tokens=TokensConfig(topic="tokens", lanes=3),
        tokenizer=TokenizerConfig(path=str(vocabulary), max_tokens=32),
        ingest=IngestConfig.model_validate({"commit_ms": 20, "dead_letters": {"topic": "text.dead"}}),
        name="orders",
        run="main",
        labels=("a", "b"),
    )


class Running:
    """`work` in a thread, with what it reports."""

    def __init__(self, args: StageArgs) -> None:
        self.reports = io.StringIO()
        self.channel = Channel(self.reports)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, args=(args.model_dump(mode="json"),))
        self._thread.start()

    def _work(self, given: dict[str, Any]) -> None:
        try:
            work(json.loads(json.dumps(given)), self.channel)
        except BaseException as error:  # noqa: BLE001 the test's own thread tells
            self.error = error

    def wait_until(self, holds: Any) -> None:
        deadline_s = time.monotonic() + WITHIN_S
        while not holds():
            assert time.monotonic() < deadline_s
            assert self.error is None
            self._thread.join(0.02)

    def stop(self) -> list[dict[str, Any]]:
        self.channel.stopping.set()
        self._thread.join(WITHIN_S)
        assert not self._thread.is_alive()
        return [json.loads(line) for line in self.reports.getvalue().splitlines()]


@pytest.fixture
def running(broker: LocalBroker, args: StageArgs) -> Iterator[Running]:
    prepare(broker, args)
    running = Running(args)
    yield running
    running.stop()


def test_arguments_survive_json(args: StageArgs) -> None:
    assert StageArgs.model_validate(json.loads(json.dumps(args.model_dump(mode="json")))) == args


def test_labels_are_known_only_where_there_are_some_and_they_are_checked(args: StageArgs) -> None:
    assert args.known_labels() == {"a", "b"}
    assert args.revised(labels=()).known_labels() is None
    assert args.revised(ingest=IngestConfig(labels="keep")).known_labels() is None


class TestPrepare:
    def test_makes_topics_and_resolves_the_start(self, broker: LocalBroker, args: StageArgs) -> None:
        prepare(broker, args)
        positions = broker.positions("orders.ingest", "text")
        assert {p: replace(at, notes={}) for p, at in positions.items()} == {0: Position(0), 1: Position(0)}
        assert {len(str(at.notes["fingerprint"])) for at in positions.values()} == {64}
        assert broker.describe("text.dead") is not None

    def test_other_lanes_than_the_topic_has(self, broker: LocalBroker, args: StageArgs) -> None:
        broker.create("tokens", 5)
        with pytest.raises(TopicError, match="5 partitions"):
            prepare(broker, args)

    def test_no_tokenizer_is_found_before_any_worker_is_started(self, broker: LocalBroker, args: StageArgs) -> None:
        with pytest.raises(UsageError, match=r"tokenizer\.path"):
            prepare(broker, args.revised(tokenizer=TokenizerConfig(path="nowhere")))

    def test_a_changed_tokenizer_is_found_before_any_worker_is_started(
        self, broker: LocalBroker, args: StageArgs
    ) -> None:
        prepare(broker, args)
        prepare(broker, args)
        changed = args.revised(tokenizer=args.tokenizer.revised(lowercase=False))
        with pytest.raises(UsageError, match=r"^tokenizer: .*orders\.ingest.*new `name`"):
            prepare(broker, changed)
        prepare(broker, changed.revised(name="others"))


class TestWork:
    def test_reads_until_told_to_stop_and_reports(self, broker: LocalBroker, running: Running) -> None:
        with closing(broker.writer("producer")) as writer:
            writer.begin()
            for value in (b'{"text":"a","label":"a"}', b'{"text":"b","label":"unknown"}', b"plain"):
                writer.append("text", value, partition=0)
            writer.commit("", "", {})
        running.wait_until(lambda: broker.positions("orders.ingest", "text")[0].offset == 3)
        last = running.stop()[-1]
        assert running.error is None
        assert (last["records"], last["dead_letters"]) == (3, {"unknown-label": 1})
        assert [row["labels"] for row in emitted_rows(broker, "tokens")] == [["a"], []]

    def test_the_library_runs_no_threads_of_its_own(self, running: Running, broker: LocalBroker) -> None:
        import os

        running.wait_until(lambda: os.environ["TOKENIZERS_PARALLELISM"] == "false")

    def test_of_the_same_worker_twice_on_one_machine_one_ends_for_good(
        self, broker: LocalBroker, running: Running, args: StageArgs
    ) -> None:
        both = [running, Running(args)]  # whichever came first ends
        deadline_s = time.monotonic() + WITHIN_S
        while not any(one.error for one in both):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        both[1].stop()
        running.stop()
        (error,) = [one.error for one in both if one.error is not None]
        assert isinstance(error, Stop)
        assert "another ingest of 'orders'" in str(error)
