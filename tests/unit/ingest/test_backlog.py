"""The backlog: exact from committed counters, read at most once a second."""

from __future__ import annotations

from headrace.ingest.backlog import Backlog, BacklogGroups, backlog_tokens
from headrace.pipeline.local import LocalBroker
from headrace.schemas.position import Position

GROUPS = BacklogGroups("text", "i", "tokens", "t")


def test_emitted_less_trained_less_skipped() -> None:
    emitted = {0: Position(5, tokens=1000), 3: Position(9, tokens=500)}
    trained = {0: Position(1, tokens=300, notes={"skipped_tokens": 50}), 1: Position(2, tokens=100)}
    assert backlog_tokens(emitted, trained) == 1050


def test_no_trainer_yet_is_nothing_trained() -> None:
    assert backlog_tokens({0: Position(5, tokens=70)}, {}) == 70
    assert backlog_tokens({}, {}) == 0


def test_a_note_of_another_shape_counts_nothing() -> None:
    assert backlog_tokens({0: Position(5, tokens=70)}, {0: Position(1, notes={"skipped_tokens": "many"})}) == 70


def test_is_full_at_the_limit_and_reads_once_a_second(broker: LocalBroker) -> None:
    broker.create("text", 1)
    broker.create("tokens", 1)
    now = [100.0]
    backlog = Backlog(broker, GROUPS, 10, clock=lambda: now[0])
    assert not backlog.full()
    broker.set_positions("i", "text", {0: Position(1, tokens=10)})
    now[0] += 0.9
    assert not backlog.full()
    now[0] += 0.1
    assert backlog.full()
    assert backlog.tokens == 10
    broker.set_positions("t", "tokens", {0: Position(1, tokens=1)})
    now[0] += 1.0
    assert not backlog.full()
