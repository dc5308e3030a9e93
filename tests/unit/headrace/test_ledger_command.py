"""`headrace ledger verify`: what it takes from ingest's positions."""

from __future__ import annotations

from pathlib import Path

from headrace.commands.ledger import starts_of
from headrace.ingest.start import Beginning, resolve_start
from tests.unit.trainer.ledger_run import TOPICS, Run


def test_text_before_the_start_of_ingest_was_never_asked_for_and_is_not_missing(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.publish(12)
    assert starts_of(run.broker, TOPICS) == {}
    resolve_start(run.broker, TOPICS.ingest_group, TOPICS.text, TOPICS.tokens, Beginning("latest", "f" * 64))
    since = starts_of(run.broker, TOPICS)
    assert since == {0: 12, 1: 0}
    run.ingest(run.publish(20) + run.publish(10, partition=1))
    run.train(1000)
    result = run.verify(since=since)
    assert (result.published, result.trained, result.missing) == (30, 30, 0)
    assert result.ok
    assert run.verify().missing == 12
