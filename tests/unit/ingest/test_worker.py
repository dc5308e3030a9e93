"""The worker on the local broker: exactly once through kills, fences and rebalances; bad input never stops it."""

from __future__ import annotations

import json
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.ingest import tokenizers
from headrace.ingest import worker as worker_module
from headrace.ingest.tokenizers import Tokenizer
from headrace.pipeline.local import LocalBroker
from headrace.pipeline.topics import Fetched
from headrace.schemas.errors import Fenced, Reason, Stop, UsageError
from headrace.schemas.position import Position
from headrace.schemas.record import ARROW_TYPE, SPLIT_TYPE
from tests.unit.ingest.pipe import Killed, Pipe
from tests.unit.ingest.tools import arrow_stream, read_topic, rules


@pytest.fixture
def pipe(broker: LocalBroker, tokenizer: Tokenizer) -> Pipe:
    return Pipe(broker, tokenizer)


def some_texts(count: int) -> list[str]:
    """Texts of several lengths, every seventh of them bad."""
    return [
        "{" if number % 7 == 3 else json.dumps({"text": "交通拥堵" * (1 + number % 5), "id": str(number)})
        for number in range(count)
    ]


def some_bulk(rows: int) -> bytes:
    return arrow_stream(pa.record_batch({"text": [None if n % 9 == 4 else f"text {n}" for n in range(rows)]}))


class TestOrder:
    def test_everything_once_in_order_over_all_lanes(self, pipe: Pipe) -> None:
        pipe.publish(some_texts(200))
        pipe.start()
        pipe.drain()
        pipe.check_exactly_once()
        assert {message.partition for message in read_topic(pipe.broker, pipe.shape.tokens.name)} == {0, 1, 2}

    def test_lanes_take_turns_and_workers_begin_at_different_ones(
        self, broker: LocalBroker, tokenizer: Tokenizer
    ) -> None:
        first = set()
        for number in range(6):
            pipe = Pipe(broker, tokenizer, name=f"test{number}", partitions=1, lanes=8, batch_tokens=1)
            pipe.publish(["交通"] * 4)
            pipe.start()
            pipe.drain()
            lanes = [message.partition for message in read_topic(broker, pipe.shape.tokens.name)]
            assert any(sorted((start + n) % 8 for n in range(4)) == lanes for start in range(8))
            first.add(tuple(lanes))
        assert len(first) > 1

    def test_a_transaction_is_committed_at_its_bound_on_bytes(
        self, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(worker_module, "COMMIT_BYTES", 10_000)
        pipe.publish(some_texts(2000))
        pipe.start()
        member = pipe.drain(commit_s=3600.0, poll_messages=100)
        assert member.done.count("commit") > 5
        pipe.check_exactly_once()

    def test_heavy_texts_are_tokenized_outside_a_transaction_that_a_broker_would_time_out(
        self, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(worker_module, "HEAVY_BYTES", 10_000)
        monkeypatch.setattr("headrace.ingest.decode.RUN_BYTES", 1000)
        pipe.publish(["交通" * 2000] * 6)
        pipe.start()
        member = pipe.drain(commit_s=3600.0, batch_tokens=1)
        assert [call for call in member.done if call != "poll"] == ["begin", "append", "commit"] * 6
        pipe.check_exactly_once()

    def test_no_commit_before_it_is_due_and_stopping_commits_what_is_read(self, pipe: Pipe) -> None:
        pipe.publish(some_texts(50))
        pipe.start()
        assert pipe.drain(commit_s=3600.0).done.count("commit") == 1
        pipe.check_exactly_once()

    def test_an_idle_topic_makes_no_transactions(self, pipe: Pipe) -> None:
        pipe.start()
        assert set(pipe.drain().done) == {"poll"}

    def test_numbers_are_those_of_what_was_committed(self, pipe: Pipe) -> None:
        pipe.publish(some_texts(70))
        pipe.start()
        pipe.drain()
        last = pipe.events[-1]
        assert last["event"] == "ingest"
        assert last["records"] == 70
        assert last["dead_letters"] == {"invalid-json": 10}
        assert last["tokens"] == sum(len(row["input_ids"]) for row in pipe.rows())
        assert last["commits"] > 0


class TestKilled:
    @pytest.mark.parametrize("commit_s", [0.0, 3600.0])
    @pytest.mark.parametrize("after", [False, True])
    def test_at_every_step_and_resumed_nothing_is_lost_or_doubled(
        self, broker: LocalBroker, tokenizer: Tokenizer, commit_s: float, after: bool
    ) -> None:
        steps = None
        for die_at in range(1000):
            pipe = Pipe(broker, tokenizer, name=f"test{die_at}", batch_tokens=100)
            pipe.publish(some_texts(30))
            pipe.start()
            try:
                with closing(pipe.member(die_at=die_at, after=after)) as member:
                    pipe.loop(member, commit_s=commit_s).run(member.stopping)
            except Killed:
                pipe.drain(commit_s=commit_s)
                pipe.check_exactly_once()
            else:
                steps = member.done
                break
        assert steps is not None
        assert {"poll", "begin", "append", "commit"} <= set(steps)

    def test_inside_a_bulk_message_and_resumed_at_its_row(
        self, broker: LocalBroker, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("headrace.ingest.decode.BULK_ROWS", 10)
        rows_seen = set()
        for die_at in range(1000):
            pipe = Pipe(broker, tokenizer, name=f"test{die_at}", partitions=1)
            pipe.publish([some_bulk(35), some_bulk(5)], headers=[("content-type", ARROW_TYPE.encode())])
            pipe.start()
            try:
                with closing(pipe.member(die_at=die_at)) as member:
                    pipe.loop(member).run(member.stopping)
            except Killed:
                rows_seen.add(broker.positions(pipe.group, pipe.name)[0].row)
                pipe.drain()
                pipe.check_exactly_once(records=40)
            else:
                break
        assert {0, 10, 20, 30} <= rows_seen

    def test_again_and_again(self, pipe: Pipe) -> None:
        """Kinds 1 and 21: any number of kill and resume cycles."""
        pipe.publish(some_texts(300))
        pipe.start()
        for cycle in range(60):
            try:
                with closing(pipe.member(die_at=3 + cycle % 11, after=cycle % 2 == 0)) as member:
                    pipe.loop(member, poll_messages=7).run(member.stopping)
            except Killed:
                continue
        pipe.drain()
        pipe.check_exactly_once()


class TestFenced:
    def test_a_frozen_worker_whose_name_was_taken_commits_nothing(self, pipe: Pipe) -> None:
        pipe.publish(some_texts(40))
        pipe.start()
        frozen = pipe.member()
        frozen.on_poll = lambda: taken.append(pipe.broker.worker("test.worker", pipe.group, pipe.name))
        taken: list[object] = []
        with closing(frozen), pytest.raises(Fenced, match="another writer"):
            pipe.loop(frozen).run(frozen.stopping)
        assert pipe.rows() == []
        pipe.drain()
        pipe.check_exactly_once()

    def test_a_position_moved_by_another_member_is_refused_and_the_worker_goes_on_from_it(self, pipe: Pipe) -> None:
        pipe.publish(["交通"] * 40)
        pipe.start()
        with closing(pipe.member()) as member:
            begin = member.begin

            def overtaken() -> None:
                begin()
                if member.done.count("begin") == 1:
                    moved = {0: Position(15, tokens=60), 1: Position(10, tokens=40)}
                    pipe.broker.set_positions(pipe.group, pipe.name, moved)

            member.begin = overtaken  # type: ignore[method-assign]
            pipe.loop(member, poll_messages=4).run(member.stopping)
        assert {(row["partition"], row["offset"]) for row in pipe.rows()} == {
            *((0, offset) for offset in range(15, 20)),
            *((1, offset) for offset in range(10, 20)),
        }
        notes = {"fingerprint": pipe.tokenizer.fingerprint}
        assert pipe.broker.positions(pipe.group, pipe.name) == {
            partition: Position(20, tokens=80, notes=notes) for partition in (0, 1)
        }

    def test_a_rebalance_aborts_the_open_transaction_and_where_to_start_comes_a_poll_later(self, pipe: Pipe) -> None:
        pipe.publish(["交通拥堵"] * 200)
        pipe.start()
        with closing(pipe.member()) as member:
            poll, inner_assigned, moving = member.poll, member.assigned, [False]

            def rebalanced(max_messages: int, wait_s: float) -> Fetched:
                moving[0] = member.done.count("poll") == 2 + 2 * member.done.count("rebalance") < 8
                if moving[0]:
                    member.done.append("rebalance")
                    member.inner.abort()
                    return Fetched()
                return poll(max_messages, wait_s)

            member.poll = rebalanced  # type: ignore[method-assign]
            member.assigned = lambda: frozenset() if moving[0] else inner_assigned()  # type: ignore[method-assign]
            pipe.loop(member, commit_s=3600.0, batch_tokens=1).run(member.stopping)
        assert "rebalance" in member.done
        assert member.done.index("append") < member.done.index("rebalance")
        pipe.check_exactly_once()


class TestGroup:
    def test_two_workers_share_the_partitions(self, pipe: Pipe) -> None:
        pipe.partitions = 2
        pipe.publish(some_texts(600), in_transactions_of=50)
        pipe.start()
        self.run_together(pipe, ["one", "two"])
        pipe.check_exactly_once()

    def test_workers_come_and_go_while_records_arrive(self, broker: LocalBroker, tokenizer: Tokenizer) -> None:
        pipe = Pipe(broker, tokenizer, partitions=4)
        pipe.start()
        feeding = threading.Thread(target=lambda: pipe.publish(some_texts(2000), in_transactions_of=20))
        feeding.start()
        for names in (["one"], ["one", "two", "three"], ["two", "four"]):
            self.run_together(pipe, names)
        feeding.join()
        pipe.drain()
        pipe.check_exactly_once()

    def test_more_workers_than_partitions_wait_and_do_no_harm(self, pipe: Pipe) -> None:
        pipe.publish(some_texts(50))
        pipe.start()
        with (
            closing(pipe.member("one")) as one,
            closing(pipe.member("two")) as two,
            closing(pipe.member("late")) as late,
        ):
            while not (one.assigned() and two.assigned()):
                one.poll(0, 0.01)
                two.poll(0, 0.01)
            stopping = threading.Event()
            late.on_poll = lambda: stopping.set() if len(late.done) > 3 else None
            pipe.loop(late).run(stopping)
            assert set(late.done) == {"poll"}
        pipe.drain()
        pipe.check_exactly_once()

    @staticmethod
    def run_together(pipe: Pipe, names: list[str]) -> None:
        """Run these workers until each has seen its partitions' ends."""
        failures: list[BaseException] = []

        def run(name: str) -> None:
            try:
                with closing(pipe.member(name)) as member:
                    pipe.loop(member, name=name).run(member.stopping)
            except BaseException as error:  # noqa: BLE001 the test's own thread tells
                failures.append(error)

        threads = [threading.Thread(target=run, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert failures == []


class TestBacklog:
    def test_waits_between_transactions_keeps_its_partitions_and_goes_on_when_trained(self, pipe: Pipe) -> None:
        pipe.publish(["交通拥堵"] * 100)  # 6 tokens each
        pipe.start()
        pipe.backlog_tokens = 60
        idle_polls = []
        with closing(pipe.member()) as member:
            idle = member.idle

            def watch(wait_s: float) -> object:
                fetched = idle(wait_s)
                emitted = sum(position.tokens for position in pipe.broker.positions(pipe.group, pipe.name).values())
                idle_polls.append(emitted)
                assert member.assigned() == {0, 1}
                if len(idle_polls) % 3 == 0:  # the trainer catches up
                    done = {0: Position(1, tokens=emitted - 6), 1: Position(1, notes={"skipped_tokens": 6})}
                    pipe.broker.set_positions(pipe.trained_group, pipe.shape.tokens.name, done)
                return fetched

            member.idle = watch  # type: ignore[assignment]
            pipe.loop(member).run(member.stopping)
        pipe.check_exactly_once()
        assert len(idle_polls) >= 9
        assert idle_polls[0] == idle_polls[1] == idle_polls[2] == 120  # one run above nothing, then nothing more
        assert pipe.events[-1]["backlog_wait_s"] > 0

    def test_stopping_ends_the_wait(self, pipe: Pipe) -> None:
        pipe.publish(["交通"] * 100)
        pipe.start()
        pipe.backlog_tokens = 1
        stopping = threading.Event()
        with closing(pipe.member()) as member:
            idle = member.idle
            member.idle = lambda wait_s: (stopping.set(), idle(wait_s))[1]  # type: ignore[method-assign]
            pipe.loop(member).run(stopping)
        assert len(pipe.rows()) == 20


class TestNotes:
    def test_fingerprint_and_start_move_with_the_positions_of_old_and_new_partitions(self, pipe: Pipe) -> None:
        pipe.publish(["交通"] * 10)
        pipe.start()
        pipe.drain()
        pipe.broker.add_partitions(pipe.name, 3)
        with closing(pipe.broker.writer("more")) as writer:
            writer.begin()
            for partition in range(3):
                writer.append(pipe.name, "拥堵".encode(), partition=partition)
            writer.commit("", "", {})
        pipe.drain()
        positions = pipe.broker.positions(pipe.group, pipe.name)
        fingerprint = pipe.tokenizer.fingerprint
        first = {"fingerprint": fingerprint, "start": 0}
        assert {p: (at.offset > 0, at.notes) for p, at in positions.items()} == {
            0: (True, first),
            1: (True, first),
            2: (True, {"fingerprint": fingerprint}),
        }
        assert all(len(position.metadata()) < 300 for position in positions.values())

    def test_a_worker_that_comes_back_with_another_tokenizer_writes_nothing(self, pipe: Pipe, vocabulary: Path) -> None:
        pipe.publish(["交通"] * 10)
        pipe.start()
        changed = tokenizers.load(str(vocabulary), lowercase=False, max_tokens=32)
        meta = replace(pipe.work().meta, fingerprint=changed.fingerprint)
        with pytest.raises(UsageError, match=rf"{changed.fingerprint[:12]}.*{pipe.tokenizer.fingerprint[:12]}"):
            pipe.drain(tokenizer=changed, meta=meta)
        assert pipe.rows() == []
        pipe.drain()
        pipe.check_exactly_once()


BAD = {
    Reason.INVALID_UTF8: b"\xff\xfe",
    Reason.INVALID_JSON: b"{",
    Reason.MISSING_TEXT: b'{"body":"a"}',
    Reason.EMPTY_TEXT: b"  ",
    Reason.TEXT_TOO_LONG: b"x" * 2000,
    Reason.INVALID_FIELD: b'{"text":{"a":1}}',
    Reason.UNKNOWN_LABEL: b'{"text":"a","label":"z"}',
}


class TestBadInput:
    def test_every_reason_goes_to_the_dead_letters_and_the_run_goes_on(
        self, broker: LocalBroker, tokenizer: Tokenizer
    ) -> None:
        """Kinds 18 and 24: one bad record kills or loops nothing."""
        pipe = Pipe(broker, tokenizer, how=rules(labels=["a"], max_text_bytes=1000))
        for value in BAD.values():
            pipe.publish([value, '{"text":"交通","label":"a"}'])
        pipe.publish([b"not arrow"], headers=[("content-type", ARROW_TYPE.encode())])
        pipe.publish([b"{}"], headers=[("content-type", SPLIT_TYPE.encode())])
        pipe.start()
        pipe.drain()
        pipe.check_exactly_once()
        found = {letter.reason: letter.value for letter in pipe.letters()}
        assert found == {**BAD, Reason.INVALID_ARROW: b"not arrow", Reason.INVALID_SPLIT: b"{}"}
        assert len(pipe.rows()) == len(BAD)

    def test_a_text_of_five_megabytes_is_cut_or_a_dead_letter_and_stalls_nothing(
        self, broker: LocalBroker, tokenizer: Tokenizer
    ) -> None:
        """Kind 17: oversized messages."""
        for size, rows in ((1_200_000, 3), (5_000_000, 2)):
            text = "交通" * (size // 6)
            pipe = Pipe(broker, tokenizer, name=f"of-{size}", how=rules(max_text_bytes=2_000_000))
            pipe.publish(["交通", text, "拥堵"])
            pipe.start()
            pipe.drain()
            pipe.check_exactly_once()
            assert len(pipe.rows()) == rows
            assert max(len(row["input_ids"]) for row in pipe.rows()) == (32 if rows == 3 else 4)
            assert [letter.value for letter in pipe.letters()] == ([text.encode()] if rows == 2 else [])

    def test_a_dead_letter_larger_than_its_topic_takes_is_cut_and_committed(
        self, broker: LocalBroker, tokenizer: Tokenizer
    ) -> None:
        broker.create("small.dead", 1, max_message_bytes=10_000)
        pipe = Pipe(broker, tokenizer, name="small")
        pipe.publish(["交通", b"\xff" * 1_000_000, "拥堵"])
        pipe.start()
        pipe.drain()
        pipe.check_exactly_once()
        (letter,) = pipe.letters()
        assert (letter.truncated, letter.length) == (True, 1_000_000)

    def test_too_many_bad_records_stop_ingest_before_they_are_drained(self, pipe: Pipe) -> None:
        pipe.publish(["{"] * 1500)
        pipe.start()
        with pytest.raises(Stop, match=r"invalid-json.*max_share"):
            pipe.drain(max_bad_share=0.5, poll_messages=500)
        assert len(pipe.letters()) < 1500


def test_batches_are_full_on_a_full_topic_and_commits_follow_the_clock(
    broker: LocalBroker, tokenizer: Tokenizer
) -> None:
    pipe = Pipe(broker, tokenizer, batch_tokens=600)
    pipe.publish(["交通拥堵"] * 1000)
    pipe.start()
    pipe.drain(commit_s=3600.0, poll_messages=333)
    sizes: dict[int, int] = {}
    for number, message in enumerate(read_topic(broker, pipe.shape.tokens.name)):
        sizes[number] = sum(len(ids) for ids in pa.ipc.open_stream(message.value).read_all()["input_ids"].to_pylist())
    assert sorted(sizes.values()) == [600] * 10


def test_a_wait_is_never_longer_than_the_commit_allows(pipe: Pipe) -> None:
    waits: list[float] = []
    pipe.publish(["交通"] * 5)
    pipe.start()
    now = [0.0]
    with closing(pipe.member()) as member:
        poll = member.poll

        def timed(max_messages: int, wait_s: float) -> object:
            waits.append(wait_s)
            now[0] += 0.1
            return poll(max_messages, 0.0)

        member.poll = timed  # type: ignore[assignment]
        stopping = threading.Event()
        numbers = worker_module.Numbers(pipe.events.append, lambda: now[0])
        loop = worker_module.IngestWorker(member, pipe.work(commit_s=0.25), pipe.backlog(), numbers, lambda: now[0])
        member.on_poll = lambda: stopping.set() if len(waits) > 6 else None
        loop.run(stopping)
    read = member.done.index("begin")
    assert member.done[:read].count("poll") == 4
    assert waits[:5] == pytest.approx([0.5, 0.25, 0.15, 0.05, 0.5])
