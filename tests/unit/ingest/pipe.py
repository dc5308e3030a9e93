"""A whole ingest in one process: topics, workers that can be killed at any call, and the proof of exactly once."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from headrace.ingest import dead_letters
from headrace.ingest.backlog import Backlog, BacklogGroups
from headrace.ingest.decode import Rules
from headrace.ingest.numbers import Numbers
from headrace.ingest.start import Beginning, resolve_start
from headrace.ingest.tokenizers import Tokenizer
from headrace.ingest.worker import IngestWorker, Work
from headrace.pipeline.shape import Shape, TopicPlan, ensure_topics
from headrace.pipeline.topics import Broker, Fetched, Headers, Worker
from headrace.schemas.position import Position
from headrace.schemas.record import Origin
from headrace.schemas.tokens import TokensMeta
from tests.unit.ingest.tools import emitted_rows, read_topic, rules

EVER = 10**12  # tokens of backlog that never fill


class Killed(BaseException):
    """The process is gone. No `except HeadraceError` sees it."""


def die() -> None:
    raise Killed


class Calls:
    """A worker's protocol calls, one by one: struck before or after a chosen one, and tells when all is read.

    A call is chosen by its number, or by its name for the first of that name.
    """

    def __init__(
        self,
        inner: Worker,
        *,
        die_at: int | str | None = None,
        after: bool = False,
        strike: Callable[[], None] = die,
        longest_wait_s: float = 0.02,
    ) -> None:
        self.inner = inner
        self._strike = strike
        self._longest_wait_s = longest_wait_s
        self.done: list[str] = []
        self.stopping = threading.Event()
        self.on_poll: Callable[[], None] = lambda: None
        self._die_at = die_at
        self._after = after

    def _call(self, name: str, call: Callable[[], Any]) -> Any:
        struck = self._die_at in (len(self.done), name)
        self._die_at = None if struck else self._die_at
        self.done.append(name)
        if struck and not self._after:
            self._strike()
        result = call()
        if struck and self._after:
            self._strike()
        return result

    def poll(self, max_messages: int, wait_s: float) -> Fetched:
        self.on_poll()
        fetched: Fetched = self._call("poll", lambda: self.inner.poll(max_messages, min(wait_s, self._longest_wait_s)))
        assigned = self.inner.assigned()
        if not fetched.messages and not fetched.starts and assigned and fetched.at_end.keys() == assigned:
            self.stopping.set()
        return fetched

    def idle(self, wait_s: float) -> Fetched:
        fetched: Fetched = self._call("idle", lambda: self.inner.idle(min(wait_s, self._longest_wait_s)))
        return fetched

    def assigned(self) -> frozenset[int]:
        return self.inner.assigned()

    def begin(self) -> None:
        self._call("begin", self.inner.begin)

    def append(
        self, topic: str, value: bytes, *, partition: int | None = None, key: bytes | None = None, headers: Headers = ()
    ) -> None:
        self._call("append", lambda: self.inner.append(topic, value, partition=partition, key=key, headers=headers))

    def commit(self, group: str, topic: str, positions: Mapping[int, Position]) -> None:
        self._call("commit", lambda: self.inner.commit(group, topic, positions))

    def abort(self) -> None:
        self._call("abort", self.inner.abort)

    def close(self) -> None:
        self.inner.close()


@dataclass
class Pipe:
    """Topics of one test with what was published to them."""

    broker: Broker
    tokenizer: Tokenizer
    name: str = "test"
    partitions: int = 2
    lanes: int = 3
    how: Rules = field(default_factory=rules)
    batch_tokens: int = 256
    backlog_tokens: int = EVER
    published: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    shape: Shape = field(init=False)

    def __post_init__(self) -> None:
        plan = TopicPlan(self.name, self.partitions, f"{self.name}.tokens", self.lanes, 1.0, f"{self.name}.dead")
        self.shape = ensure_topics(self.broker, plan, create=True)
        self.how = Rules(self.name, self.how.format, self.how.fields)
        self.group = f"{self.name}.ingest"
        self.trained_group = f"{self.name}.main.trained"

    def start(self) -> None:
        beginning = Beginning("earliest", self.tokenizer.fingerprint)
        resolve_start(self.broker, self.group, self.name, self.shape.tokens.name, beginning)

    def publish(self, values: Iterable[bytes | str], *, headers: Headers = (), in_transactions_of: int = 10**9) -> None:
        """Messages to the partitions in turn."""
        pending = [value if isinstance(value, bytes) else value.encode() for value in values]
        with closing(self.broker.writer(f"{self.name}.producer")) as writer:
            for start in range(0, len(pending), in_transactions_of):
                writer.begin()
                for value in pending[start : start + in_transactions_of]:
                    writer.append(self.name, value, partition=self.published % self.partitions, headers=headers)
                    self.published += 1
                writer.commit("", "", {})

    def work(self, name: str = "worker", **changes: Any) -> Work:
        work: dict[str, Any] = {
            "name": f"{self.name}.{name}",
            "group": self.group,
            "rules": self.how,
            "tokenizer": self.tokenizer,
            "tokens": self.shape.tokens,
            "dead_letters": self.shape.dead_letters,
            "meta": TokensMeta(self.tokenizer.fingerprint, self.tokenizer.vocab_size, self.tokenizer.special_ids),
            "batch_tokens": self.batch_tokens,
            "poll_messages": 20,
            "commit_s": 0.0,
            "max_bad_share": 1.0,
        }
        return Work(**{**work, **changes})

    def member(self, name: str = "worker", **options: Any) -> Calls:
        return Calls(self.broker.worker(f"{self.name}.{name}", self.group, self.name), **options)

    def backlog(self) -> Backlog:
        """Reads the groups at every look: its clock is a second later each time."""
        groups = BacklogGroups(self.name, self.group, self.shape.tokens.name, self.trained_group)
        return Backlog(self.broker, groups, self.backlog_tokens, clock=itertools.count().__next__)

    def loop(self, member: Worker, **changes: Any) -> IngestWorker:
        numbers = Numbers(self.events.append, time.monotonic)
        return IngestWorker(member, self.work(**changes), self.backlog(), numbers)

    def drain(self, name: str = "worker", **changes: Any) -> Calls:
        """Work until everything is read; `changes` are those of `Work`."""
        with closing(self.member(name)) as member:
            self.loop(member, name=f"{self.name}.{name}", **changes).run(member.stopping)
        return member

    # -- proof

    def rows(self) -> list[dict[str, Any]]:
        return emitted_rows(self.broker, self.shape.tokens.name)

    def letters(self) -> list[dead_letters.DeadLetter]:
        return [dead_letters.decode(message) for message in read_topic(self.broker, self.shape.dead_letters.name)]

    def origins(self) -> Counter[Origin]:
        rows = [Origin(row["topic"], row["partition"], row["offset"], row["row"]) for row in self.rows()]
        return Counter(rows + [letter.origin for letter in self.letters()])

    def check_exactly_once(self, records: int | None = None) -> None:
        """Every message that lies in the text topic is a row or a dead letter, once; positions and counters agree."""
        origins = self.origins()
        assert sum(origins.values()) == (self.published if records is None else records)
        assert max(origins.values(), default=1) == 1
        messages = {(message.partition, message.offset) for message in read_topic(self.broker, self.name)}
        assert {(origin.partition, origin.offset) for origin in origins} == messages
        positions = self.broker.positions(self.group, self.name)
        assert {p: position.offset for p, position in positions.items()} == {
            p: ends.end for p, ends in self.broker.ends(self.name).items()
        }
        tokens = Counter[int]()
        for row in self.rows():
            tokens[row["partition"]] += len(row["input_ids"])
        assert {p: position.tokens for p, position in positions.items() if position.tokens} == dict(tokens)
