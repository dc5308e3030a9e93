"""Publishing: every line once, through kills at every transaction; pace, refusals and pipes."""

from __future__ import annotations

import itertools
import os
import socket
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headrace.ingest import sending
from headrace.ingest.publish import publish_file, publish_pipe
from headrace.ingest.sending import Control, Progress, Published
from headrace.pipeline.local import LocalBroker
from headrace.schemas.errors import Fenced, TooLarge, TopicError, UsageError
from tests.unit.ingest.tools import read_topic


class Killed(BaseException):
    """The process is gone."""


@pytest.fixture
def topic(broker: LocalBroker) -> str:
    return broker.create("text", 3).name


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"line {number}\n" for number in range(1, 51)))
    return path


def texts(broker: LocalBroker) -> list[str]:
    return [message.value.decode() for message in read_topic(broker, "text")]


def dying(broker: LocalBroker, commit: int, *, after: bool) -> Any:
    """A broker whose writer dies at its n-th commit, before or after it took effect."""

    class Dying:
        def __getattr__(self, name: str) -> Any:
            return getattr(broker, name)

        def writer(self, name: str) -> Any:
            writer = broker.writer(name)
            real, count = writer.commit, iter(range(commit, -1, -1))

            def commit_or_die(*given: Any) -> None:
                last = next(count) == 0
                if last and not after:
                    raise Killed
                real(*given)
                if last:
                    raise Killed

            writer.commit = commit_or_die  # type: ignore[method-assign]
            return writer

    return Dying()


class TestFile:
    def test_every_line_over_all_partitions_in_turn(self, broker: LocalBroker, topic: str, file: Path) -> None:
        seen: list[Progress] = []
        done = publish_file(broker, topic, file, control=Control(progress=seen.append))
        assert done == Published(str(file), 50, 0, 0, True)
        messages = read_topic(broker, topic)
        assert Counter(message.partition for message in messages) == {0: 17, 1: 17, 2: 16}
        assert [m.value for m in messages if m.partition == 0][:2] == [b"line 1", b"line 4"]
        assert {message.header("content-type") for message in messages} == {b"text/plain"}
        assert seen[-1] == Progress(str(file), 50, 0, file.stat().st_size, file.stat().st_size)

    def test_json_lines_are_sent_as_they_are(self, broker: LocalBroker, topic: str, tmp_path: Path) -> None:
        (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "\xe4\xba\xa4" }\r\n\n  \n{broken\n')
        done = publish_file(broker, topic, tmp_path / "a.jsonl")
        assert (done.lines, done.empty) == (2, 2)
        messages = read_topic(broker, topic)
        assert [message.value for message in messages] == [b'{"text": "\xe4\xba\xa4" }', b"{broken"]
        assert {message.header("content-type") for message in messages} == {b"application/json"}

    def test_an_empty_file(self, broker: LocalBroker, topic: str, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_bytes(b"")
        assert publish_file(broker, topic, tmp_path / "a.txt").finished

    @pytest.mark.parametrize("after", [False, True])
    def test_killed_at_every_transaction_and_resumed_every_line_is_there_once(
        self, broker: LocalBroker, file: Path, after: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sending, "TRANSACTION_LINES", 7)
        broker.create("text", 3)
        for commit in range(8):
            again = commit > 0
            before = Counter(texts(broker))
            with pytest.raises(Killed):
                publish_file(dying(broker, commit, after=after), "text", file, again=again)
            done = publish_file(broker, "text", file)
            assert (done.finished, done.lines + done.earlier_lines) == (True, 50)
            assert done.earlier_lines == 7 * (commit + after) if commit < 7 else 49
            assert Counter(texts(broker)) - before == Counter(f"line {number}" for number in range(1, 51))

    def test_killed_at_every_single_resume(
        self, broker: LocalBroker, topic: str, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Kind 1: any number of kill and resume cycles."""
        monkeypatch.setattr(sending, "TRANSACTION_LINES", 3)
        for cycle in range(30):
            try:
                publish_file(dying(broker, 1, after=cycle % 2 == 0), topic, file)
            except Killed:
                continue
        assert sorted(texts(broker)) == sorted(f"line {number}" for number in range(1, 51))

    def test_a_finished_file_is_published_again_only_when_asked_for(
        self, broker: LocalBroker, topic: str, file: Path
    ) -> None:
        publish_file(broker, topic, file)
        assert publish_file(broker, topic, file) == Published(str(file), 0, 0, 50, True)
        assert publish_file(broker, topic, file, again=True).lines == 50
        assert len(texts(broker)) == 100

    def test_what_was_added_to_a_file_is_published(self, broker: LocalBroker, topic: str, file: Path) -> None:
        publish_file(broker, topic, file)
        with file.open("a") as more:
            more.write("line 51\n")
        assert publish_file(broker, topic, file) == Published(str(file), 1, 0, 50, True)

    @pytest.mark.parametrize("content", ["", "line 1\nline 2\n", "other\n" * 200])
    def test_another_file_of_the_same_name_is_noticed(
        self, broker: LocalBroker, topic: str, file: Path, content: str
    ) -> None:
        publish_file(broker, topic, file)
        file.write_text(content)
        with pytest.raises(UsageError, match=r"line 50.*--again"):
            publish_file(broker, topic, file)
        assert len(texts(broker)) == 50

    def test_a_change_just_before_the_position_is_noticed_in_a_large_file(
        self, broker: LocalBroker, topic: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "large.txt"
        path.write_bytes(b"".join(b"%0100d\n" % number for number in range(5000)))
        publish_file(broker, topic, path)
        with path.open("r+b") as changed:
            changed.seek(-50, os.SEEK_END)
            changed.write(b"x")
        with pytest.raises(UsageError, match="has changed"):
            publish_file(broker, topic, path)

    def test_a_last_line_that_grew_is_not_taken_for_a_new_one(
        self, broker: LocalBroker, topic: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "a.txt"
        path.write_text("one\ntwo")
        publish_file(broker, topic, path)
        path.write_text("one\ntwo\nthree\n")
        assert publish_file(broker, topic, path).lines == 1
        path.write_text("one\ntwo")
        publish_file(broker, topic, path, again=True)
        path.write_text("one\ntwo and more\n")
        with pytest.raises(UsageError, match="has grown"):
            publish_file(broker, topic, path)

    def test_a_second_publication_of_the_same_file_fences_the_first(
        self, broker: LocalBroker, topic: str, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sending, "TRANSACTION_LINES", 10)
        started: list[Published] = []

        def second(progress: Progress) -> None:
            if not started:
                monkeypatch.setattr(sending, "TRANSACTION_LINES", 1000)
                started.append(publish_file(broker, topic, file))

        with pytest.raises(Fenced):
            publish_file(broker, topic, file, control=Control(progress=second))
        assert sorted(texts(broker)) == sorted(f"line {number}" for number in range(1, 51))

    def test_stopped_it_commits_what_it_sent_and_goes_on_there(
        self, broker: LocalBroker, topic: str, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sending, "TRANSACTION_LINES", 10)
        stopping = threading.Event()
        control = Control(stopping=stopping, progress=lambda progress: stopping.set())
        assert publish_file(broker, topic, file, control=control) == Published(str(file), 10, 0, 0, False)
        assert publish_file(broker, topic, file) == Published(str(file), 40, 0, 10, True)


class TestRefused:
    @pytest.mark.parametrize(
        ("name", "cure"),
        [
            ("a.gz", "decompress"),
            ("a.jsonl.zst", "decompress"),
            ("a.csv", r"\.jsonl"),
            ("a.json", r"\.jsonl"),
            ("missing.txt", "no such file"),
            ("hdfs://nn:8020/a.txt", "copy it here"),
            ("", "folder"),
        ],
    )
    def test_what_cannot_be_read_says_what_can(
        self, broker: LocalBroker, topic: str, tmp_path: Path, name: str, cure: str
    ) -> None:
        path = Path(name) if "://" in name else tmp_path / name
        if name.startswith("a."):
            path.write_bytes(b"a")
        with pytest.raises(UsageError, match=cure):
            publish_file(broker, topic, path)

    def test_a_line_that_the_topic_does_not_take_is_named_before_it_is_sent(
        self, broker: LocalBroker, tmp_path: Path
    ) -> None:
        broker.create("text", 1, max_message_bytes=5000)
        (tmp_path / "a.txt").write_bytes(b"a\n" + b"x" * 4500 + b"\n")
        with pytest.raises(TooLarge, match=r"a\.txt:2: "):
            publish_file(broker, "text", tmp_path / "a.txt")
        assert texts(broker) == []

    def test_a_file_that_cannot_be_opened(
        self, broker: LocalBroker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)  # names of sockets must be short
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind("a.txt")  # a socket is there and cannot be opened, not even by root
            with pytest.raises(UsageError, match=r"a\.txt cannot be read"):
                publish_file(broker, topic, Path("a.txt"))

    def test_no_topic_names_the_command(self, broker: LocalBroker, file: Path) -> None:
        with pytest.raises(TopicError, match="headrace topics create"):
            publish_file(broker, "none", file)


class TestPace:
    def test_rate_is_kept_by_the_clock_that_is_given(self, broker: LocalBroker, topic: str, file: Path) -> None:
        now = [0.0]
        commits: list[tuple[float, int]] = []

        def wait(wait_s: float) -> None:
            now[0] += wait_s

        control = Control(
            rate=10.0,
            clock=lambda: now[0],
            wait=wait,
            progress=lambda progress: commits.append((now[0], progress.lines)),
        )
        publish_file(broker, topic, file, control=control)
        assert now[0] == pytest.approx(4.9)
        assert all(lines <= at * 10 + 1.01 for at, lines in commits)
        assert all(later - earlier <= 0.4 for (earlier, _), (later, _) in itertools.pairwise(commits))

    def test_a_high_rate_does_not_wait_for_every_line(self, broker: LocalBroker, topic: str, file: Path) -> None:
        now, waits = [0.0], []

        def wait(wait_s: float) -> None:
            waits.append(wait_s)
            now[0] += wait_s

        publish_file(broker, topic, file, control=Control(rate=1000.0, clock=lambda: now[0], wait=wait))
        assert len(waits) <= 10
        assert now[0] == pytest.approx(0.045, abs=0.01)


class TestPipe:
    def test_to_its_end(self, broker: LocalBroker, topic: str) -> None:
        out, into = os.pipe()
        os.write(into, b'{"text":"a"}\n\nb\nlast')
        os.close(into)
        done = publish_pipe(broker, topic, out)
        os.close(out)
        assert done == Published("standard input", 3, 1, 0, True)
        messages = read_topic(broker, topic)
        assert sorted(message.value for message in messages) == [b"b", b"last", b'{"text":"a"}']
        assert {message.header("content-type") for message in messages} == {None}

    def test_what_came_is_committed_while_the_pipe_is_quiet(self, broker: LocalBroker, topic: str) -> None:
        """An open transaction would hold back every reader until the next line."""
        out, into = os.pipe()
        os.write(into, b"first\n")
        seen: list[list[str]] = []

        def progress(_: Progress) -> None:
            with closing(LocalBroker(broker.address.removeprefix("local:"))) as other:
                seen.append(texts(other))
            if len(seen) == 1:
                os.write(into, b"second\n")
            else:
                os.close(into)

        publish_pipe(broker, topic, out, form="text", control=Control(progress=progress))
        os.close(out)
        assert list(map(sorted, seen)) == [["first"], ["first", "second"]]

    def test_stopping_ends_the_wait_for_more(self, broker: LocalBroker, topic: str) -> None:
        out, into = os.pipe()
        os.write(into, b"first\n")
        stopping = threading.Event()
        control = Control(stopping=stopping, progress=lambda progress: stopping.set())
        assert publish_pipe(broker, topic, out, control=control) == Published("standard input", 1, 0, 0, False)
        os.close(into)
        os.close(out)
