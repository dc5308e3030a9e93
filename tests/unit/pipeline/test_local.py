"""What the local broker promises beyond the contract: retention, time, bounds, and how it behaves when misused."""

from __future__ import annotations

import itertools
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline import local_reader
from headrace.pipeline.local import LocalBroker, LocalWorker, LocalWriter
from headrace.pipeline.local_writer import TRIM_MESSAGES
from headrace.pipeline.topics import Ends
from headrace.schemas.errors import Fenced, RecordsLost, TooLarge, TopicError
from headrace.schemas.position import Position
from tests.contract.waiting import started, until

HOUR_MS = 3_600_000


class Clock:
    """A clock that stands until it is turned."""

    def __init__(self) -> None:
        self.now_s = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def broker(tmp_path: Path, clock: Clock) -> LocalBroker:
    return LocalBroker(tmp_path / "topics", clock)


def write(writer: LocalWriter, topic: str, count: int, partition: int = 0) -> None:
    writer.begin()
    for n in range(count):
        writer.append(topic, b"%d" % n, partition=partition)
    writer.commit("", "", {})


def worker_of(broker: LocalBroker, name: str = "w", start: int = 0) -> LocalWorker:
    """A worker of group `g` on topic `t`, whose partition 0 starts at `start`."""
    broker.set_positions("g", "t", {0: Position(start)})
    return broker.worker(name, "g", "t")


def test_expired_messages_are_trimmed_in_bounded_bites(broker: LocalBroker, clock: Clock) -> None:
    broker.create("t", 1, retention_ms=HOUR_MS)
    writer = broker.writer("w")
    write(writer, "t", 1000)
    clock.now_s += 2 * 3600
    firsts = [broker.ends("t")[0].first]
    for _ in range(20):
        write(writer, "t", 1)
        firsts.append(broker.ends("t")[0].first)
    bites = [after - before for before, after in itertools.pairwise(firsts)]
    assert bites[:15] == [TRIM_MESSAGES + 2] * 15
    assert firsts[-1] == 1000
    assert broker.ends("t")[0] == Ends(1000, 1020)


def test_trimming_keeps_up_with_a_bulk_writer(broker: LocalBroker, clock: Clock) -> None:
    broker.create("t", 2, retention_ms=HOUR_MS)
    writer = broker.writer("w")
    for n in range(30):
        write(writer, "t", 500, partition=n % 2)
        clock.now_s += 600
    held = sum(ends.end - ends.first for ends in broker.ends("t").values())
    assert held <= 500 * 8


def test_only_topics_with_retention_are_trimmed_and_by_any_writer(broker: LocalBroker, clock: Clock) -> None:
    broker.create("short", 1, retention_ms=HOUR_MS)
    broker.create("for ever", 1)
    writer = broker.writer("w")
    write(writer, "short", 5)
    write(writer, "for ever", 5)
    clock.now_s += 2 * 3600
    write(writer, "for ever", 1)
    assert broker.ends("short")[0] == Ends(5, 5)
    assert broker.ends("for ever")[0] == Ends(0, 6)


def test_a_trimmed_partition_goes_on_counting(broker: LocalBroker, clock: Clock) -> None:
    broker.create("t", 1, retention_ms=HOUR_MS)
    writer = broker.writer("w")
    write(writer, "t", 5)
    clock.now_s += 2 * 3600
    write(writer, "t", 0)
    assert broker.ends("t")[0] == Ends(5, 5)
    write(writer, "t", 2)
    assert broker.ends("t")[0] == Ends(5, 7)
    assert [message.offset for message in broker.reader("t", {0: 5}).poll(9, 0).messages] == [5, 6]


def test_records_lost_names_partition_count_range_and_cure(broker: LocalBroker, clock: Clock) -> None:
    broker.create("t", 1, retention_ms=HOUR_MS)
    writer = broker.writer("w")
    write(writer, "t", 10)
    reader = broker.reader("t", {0: 0})
    assert len(reader.poll(4, 0).messages) == 4
    clock.now_s += 2 * 3600
    write(writer, "t", 1)
    for _ in range(2):  # and again: a reader never loses its place
        with pytest.raises(RecordsLost, match=r"6 messages of t\[0\].*offsets 4 to 9.*`train.start: latest`.*`run`"):
            reader.poll(4, 0)
    reader.seek(0, 10)
    assert [message.offset for message in reader.poll(4, 0).messages] == [10]


def test_records_lost_to_a_worker_name_the_setting_of_ingest(broker: LocalBroker, clock: Clock) -> None:
    broker.create("t", 1, retention_ms=HOUR_MS)
    worker = worker_of(broker)
    write(broker.writer("other"), "t", 3)
    clock.now_s += 2 * 3600
    write(broker.writer("other"), "t", 1)
    with pytest.raises(RecordsLost, match=r"3 messages of t\[0\].*`ingest.start`"):
        worker.poll(9, 0)


def test_starts_that_a_failed_poll_could_not_tell_are_told_by_the_next(broker: LocalBroker, clock: Clock) -> None:
    """A caller that was not told keeps buffers of before, and would commit them beside what it reads again."""
    broker.create("t", 1, retention_ms=HOUR_MS)
    worker = worker_of(broker)
    write(broker.writer("other"), "t", 3)
    clock.now_s += 2 * 3600
    write(broker.writer("other"), "t", 1)
    with pytest.raises(RecordsLost):
        worker.poll(9, 0)
    broker.set_positions("g", "t", {0: Position(3)})
    fetched = worker.poll(9, 0)
    assert fetched.starts == {0: Position(3)}
    assert [message.offset for message in fetched.messages] == [3]


def test_a_reader_beyond_the_end_is_told_that_the_topic_is_another(broker: LocalBroker) -> None:
    broker.create("t", 1)
    with pytest.raises(RecordsLost, match=r"t\[0\] ends at offset 0, before the offset 7"):
        broker.reader("t", {0: 7}).poll(1, 0)


def test_timestamps_never_fall_though_the_clock_does(broker: LocalBroker, clock: Clock) -> None:
    broker.create("t", 1)
    writer = broker.writer("w")
    times = []
    for step_s in (0, 5, -100, 1, 200):
        clock.now_s += step_s
        write(writer, "t", 2)
        times.append(broker.reader("t", {0: 0}).poll(99, 0).messages[-1].timestamp_ms)
    assert times == sorted(times)
    assert broker.offsets_at("t", times[0] + 1) == {0: 2}


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 90), st.integers(0, 50)), max_size=12), st.integers(0, 2000)
)
def test_offsets_and_retention_agree_with_a_list(commits: list[tuple[int, int, int]], probe_s: int) -> None:
    """Commits of (partition, messages, minutes later) against the same history kept in plain lists."""
    with TemporaryDirectory() as folder:
        clock = Clock()
        start_ms = int(clock.now_s * 1000)
        broker = LocalBroker(folder, clock)
        broker.create("t", 3, retention_ms=HOUR_MS)
        writer = broker.writer("w")
        published: list[list[int]] = [[], [], []]
        for partition, count, minutes in commits:
            clock.now_s += 60 * minutes
            write(writer, "t", count, partition)
            published[partition] += [int(clock.now_s * 1000)] * count
            keep_ms = int(clock.now_s * 1000) - HOUR_MS
            for number, ends in broker.ends("t").items():
                assert ends.end == len(published[number])
                assert all(time_ms < keep_ms for time_ms in published[number][: ends.first])
                reader = broker.reader("t", {number: ends.first})
                got = [(message.offset, message.timestamp_ms) for message in reader.poll(9999, 0).messages]
                assert got == list(enumerate(published[number]))[ends.first :]
                reader.close()
        probe_ms = start_ms + probe_s * 1000
        for number, offset in broker.offsets_at("t", probe_ms).items():
            ends = broker.ends("t")[number]
            later = [n for n in range(ends.first, ends.end) if published[number][n] >= probe_ms]
            assert offset == min(later, default=ends.end)
        writer.close()
        broker.close()


def test_a_poll_is_bounded_in_bytes(broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_reader, "MAX_POLL_BYTES", 2500)
    broker.create("t", 2)
    writer = broker.writer("w")
    writer.begin()
    for n in range(10):
        writer.append("t", bytes(1000), partition=n % 2)
    writer.append("t", bytes(9000), partition=0)
    writer.commit("", "", {})
    reader = broker.reader("t", {0: 0, 1: 0})
    polls = [reader.poll(100, 0).messages for _ in range(5)]
    assert [sum(map(len, (message.value for message in poll))) for poll in polls] <= [11_000] * 5
    assert sum(map(len, polls)) == 11
    assert all(poll for poll in polls[:4])


def test_a_key_chooses_the_partition_that_librdkafka_would(broker: LocalBroker) -> None:
    """Its partitioner is CRC-32 modulo partitions, so a topic can move between the brokers."""
    broker.create("t", 7)
    writer = broker.writer("w")
    writer.begin()
    for n in range(50):
        writer.append("t", b"", key=b"key-%d" % n)
    writer.commit("", "", {})
    for message in broker.reader("t", dict.fromkeys(range(7), 0)).poll(99, 0).messages:
        assert message.key is not None
        assert message.partition == zlib.crc32(message.key) % 7


def test_messages_without_key_are_spread_evenly(broker: LocalBroker) -> None:
    broker.create("t", 4)
    writer = broker.writer("w")
    writer.begin()
    for _ in range(40):
        writer.append("t", b"")
    writer.commit("", "", {})
    assert [ends.end for ends in broker.ends("t").values()] == [10] * 4


def test_a_writer_sees_a_grown_topic_in_its_next_transaction(broker: LocalBroker) -> None:
    broker.create("t", 1)
    writer = broker.writer("w")
    write(writer, "t", 1)
    broker.add_partitions("t", 2)
    write(writer, "t", 1, partition=1)
    assert broker.ends("t") == {0: Ends(0, 1), 1: Ends(0, 1)}


def test_a_worker_takes_up_a_partition_that_is_added_while_it_runs(broker: LocalBroker) -> None:
    broker.create("t", 1)
    worker = worker_of(broker)
    assert started(worker).starts == {0: Position(0)}
    broker.add_partitions("t", 2)
    write(broker.writer("other"), "t", 3, partition=1)
    assert started(worker).starts == {0: Position(0), 1: Position(0)}
    assert len(worker.poll(9, 1).messages) == 3


def test_positions_set_under_a_running_worker_fence_it_and_move_it(broker: LocalBroker) -> None:
    """Compare-and-swap goes by commits, not by offsets: also a position set to the same offset counts."""
    broker.create("t", 1)
    write(broker.writer("other"), "t", 5)
    worker = worker_of(broker)
    assert len(worker.poll(9, 1).messages) == 5
    broker.set_positions("g", "t", {0: Position(0)})
    worker.begin()
    worker.append("t", b"never", partition=0)
    with pytest.raises(Fenced, match="poll again"):
        worker.commit("g", "t", {0: Position(5)})
    again = worker.poll(9, 0)
    assert again.starts == {0: Position(0)}
    assert len(again.messages) == 5
    worker.begin()
    worker.commit("g", "t", {0: Position(5)})
    assert broker.positions("g", "t") == {0: Position(5)}


def test_only_one_of_two_that_read_the_same_partition_can_commit(tmp_path: Path, broker: LocalBroker) -> None:
    """The locks can be lost (somebody deletes the folder); compare-and-swap cannot."""
    broker.create("t", 1)
    write(broker.writer("other"), "t", 5)
    first = worker_of(broker, "w0")
    assert len(first.poll(9, 1).messages) == 5
    (tmp_path / "topics" / "groups").rename(tmp_path / "gone")
    second = broker.worker("w1", "g", "t")
    assert len(second.poll(9, 1).messages) == 5
    second.begin()
    second.commit("g", "t", {0: Position(5)})
    first.begin()
    with pytest.raises(Fenced):
        first.commit("g", "t", {0: Position(5)})


def test_a_worker_whose_name_was_taken_gives_its_partitions_up(broker: LocalBroker) -> None:
    broker.create("t", 2)
    first = worker_of(broker)
    broker.set_positions("g", "t", {1: Position(0)})
    started(first)
    second = broker.worker("w", "g", "t")
    assert second.idle(0).starts == {}  # the first holds on until it looks
    for _ in range(2):
        with pytest.raises(Fenced, match="different names"):
            first.poll(9, 0)
    assert first.assigned() == frozenset()
    until(lambda: second.idle(0.1) and second.assigned() == {0, 1}, "the second has everything")


def test_an_open_transaction_keeps_its_partitions(broker: LocalBroker) -> None:
    """A member that joins waits for the commit: nothing that was read is thrown away."""
    broker.create("t", 2)
    write(broker.writer("other"), "t", 2, partition=1)
    first = worker_of(broker, "w0")
    broker.set_positions("g", "t", {1: Position(0)})
    assert len(first.poll(9, 1).messages) == 2
    first.begin()
    second = broker.worker("w1", "g", "t")
    second.idle(0.1)
    assert first.poll(9, 0.1).starts == {}
    first.commit("g", "t", {1: Position(2)})
    assert first.poll(9, 0).starts == {0: Position(0)}
    assert second.idle(0).starts == {1: Position(2)}


def test_committing_another_groups_positions_is_not_compared(broker: LocalBroker) -> None:
    broker.create("t", 1)
    worker = worker_of(broker)
    started(worker)
    worker.begin()
    worker.commit("another", "t", {0: Position(9)})
    assert broker.positions("another", "t") == {0: Position(9)}


def test_a_refused_commit_can_be_made_anew(broker: LocalBroker) -> None:
    broker.create("t", 1)
    writer = broker.writer("w")
    writer.begin()
    writer.append("t", b"dropped", partition=0)
    with pytest.raises(TopicError, match="no partition 3"):
        writer.commit("g", "t", {3: Position(1)})
    write(writer, "t", 1)
    assert broker.ends("t")[0] == Ends(0, 1)


def test_appending_to_what_does_not_exist_is_an_error_at_once(broker: LocalBroker) -> None:
    broker.create("t", 2)
    writer = broker.writer("w")
    writer.begin()
    with pytest.raises(TopicError, match="headrace topics create"):
        writer.append("missing", b"")
    with pytest.raises(TopicError, match="no partition 2"):
        writer.append("t", b"", partition=2)
    with pytest.raises(TopicError, match="no partition -1"):
        writer.append("t", b"", partition=-1)


def test_reading_what_does_not_exist_is_an_error(broker: LocalBroker) -> None:
    broker.create("t", 1)
    with pytest.raises(TopicError, match="does not exist"):
        broker.reader("missing", {0: 0}).poll(1, 0)
    with pytest.raises(TopicError, match="no partition 1"):
        broker.reader("t", {1: 0}).poll(1, 0)


def test_headers_and_key_count_towards_the_size_of_a_message(broker: LocalBroker) -> None:
    broker.create("t", 1, max_message_bytes=100)
    writer = broker.writer("w")
    writer.begin()
    writer.append("t", bytes(100), partition=0)
    with pytest.raises(TooLarge):
        writer.append("t", bytes(60), partition=0, key=bytes(60))
    with pytest.raises(TooLarge):
        writer.append("t", bytes(60), partition=0, headers=[("h", b"x" * 60)])


def test_calls_out_of_order_are_bugs_and_say_so(broker: LocalBroker) -> None:
    broker.create("t", 1)
    writer = broker.writer("w")
    with pytest.raises(RuntimeError, match="begin"):
        writer.append("t", b"")
    with pytest.raises(RuntimeError, match="begin"):
        writer.commit("", "", {})
    writer.begin()
    with pytest.raises(RuntimeError, match="commit or abort"):
        writer.begin()


def test_a_topic_of_no_partitions_is_refused(broker: LocalBroker) -> None:
    with pytest.raises(TopicError, match="one or more"):
        broker.create("t", 0)


def test_the_default_limit_of_a_message_is_ten_mebibytes(broker: LocalBroker) -> None:
    assert broker.create("t", 1).max_message_bytes == 10 * 2**20
