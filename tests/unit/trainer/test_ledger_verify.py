"""Verify finds every record that is lost or doubled, and nothing else; on a real local broker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.schemas.record import ARROW_TYPE, Origin
from headrace.trainer.ledger_verify import EXAMPLES, Verification
from tests.unit.trainer.ledger_run import PLAN, TOPICS, Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def nonzero(result: Verification) -> dict[str, int]:
    return {name: value for name in result.__slots__ if isinstance(value := getattr(result, name), int) and value}


def assert_adds_up(result: Verification) -> None:
    names = ("trained", "held_out", "dropped", "skipped", "dead_lettered", "pending", "before_start", "missing")
    assert result.published == sum(getattr(result, name) for name in names)


def test_every_record_has_one_outcome(tmp_path: Path) -> None:
    run = Run(tmp_path, plan=replace(PLAN, hold_out_share=4 / 2**16), drop=frozenset({20, 21}))
    records = run.publish(40) + run.publish(30, partition=1) + run.publish_bulk(7)
    bad = [records[30], records[-2]]
    run.bury(bad[0])
    run.bury(bad[1])
    run.ingest([origin for origin in records if origin not in bad])
    assert run.train(1000) > 3
    result = run.verify()
    assert nonzero(result) == {"published": 77, "trained": 63, "held_out": 8, "dropped": 4, "dead_lettered": 2}
    assert result.ok
    assert_adds_up(result)


def test_published_is_what_lies_before_the_position(run: Run) -> None:
    run.ingest(run.publish(20) + run.publish(10, partition=1))
    run.publish(5)  # nobody has read these yet
    run.train(1000)
    assert nonzero(run.verify()) == {"published": 30, "trained": 30}
    assert nonzero(run.verify(upto={0: 12, 1: 1000})) == {"published": 22, "trained": 22}
    assert nonzero(run.verify(since={0: 15})) == {"published": 15, "trained": 15, "expired": 15}


def test_what_waits_in_a_lane_is_pending_and_not_missing(run: Run) -> None:
    run.ingest(run.publish(100) + run.publish(50, partition=1))
    waiting = 150
    for _ in range(4):
        run.train(2)
        result = run.verify()
        assert result.ok
        assert_adds_up(result)
        assert 0 < result.pending < waiting
        waiting = result.pending
    run.train(1000)
    assert nonzero(run.verify()) == {"published": 150, "trained": 150}


def test_planted_missing_record_is_reported(run: Run) -> None:
    records = run.publish(30)
    run.ingest(records[:11] + records[12:])
    run.train(1000)
    result = run.verify()
    assert not result.ok
    assert nonzero(result) == {"published": 30, "trained": 29, "missing": 1}
    assert result.missing_origins == [Origin("orders", 0, 11)]


def test_planted_missing_row_of_a_bulk_message_is_reported(run: Run) -> None:
    records = run.publish(3) + run.publish_bulk(6) + run.publish(2)
    run.ingest([origin for origin in records if origin.row != 4])
    run.train(1000)
    assert run.verify().missing_origins == [Origin("orders", 0, 3, 4)]


def test_planted_duplicate_is_reported_when_trained_and_while_it_waits(run: Run) -> None:
    records = run.publish(30)
    run.ingest([*records, records[7]])
    run.train(1000)
    result = run.verify()
    assert not result.ok
    assert nonzero(result) == {"published": 30, "trained": 30, "duplicated": 1}
    assert result.duplicated_origins == [Origin("orders", 0, 7)]
    assert len(run.ledger().find(Origin("orders", 0, 7))) == 2
    run.ingest([records[9]])
    assert sorted(run.verify().duplicated_origins) == [Origin("orders", 0, 7), Origin("orders", 0, 9)]


def test_a_record_that_is_trained_and_dead_lettered_is_duplicated(run: Run) -> None:
    records = run.publish(10)
    run.bury(records[4])
    run.ingest(records)
    run.train(1000)
    assert run.verify().duplicated_origins == [records[4]]


def test_a_record_that_is_dead_lettered_twice_is_duplicated(run: Run) -> None:
    records = run.publish(10)
    run.bury(records[4])
    run.bury(records[4])
    run.ingest(records[:4] + records[5:])
    run.train(1000)
    result = run.verify()
    assert nonzero(result) == {"published": 10, "trained": 9, "dead_lettered": 1, "duplicated": 1}


def test_a_long_text_counts_once_and_its_parts_are_checked(run: Run) -> None:
    records = run.publish(4)

    def parts(record: Origin, *numbers: int) -> list[Origin]:
        return [replace(record, part=number) for number in numbers]

    run.ingest([*parts(records[0], 0, 1, 2), records[1], *parts(records[2], 0, 2), *parts(records[3], 0, 1, 1)])
    run.train(1000)
    result = run.verify()
    assert nonzero(result) == {"published": 4, "trained": 3, "missing": 1, "duplicated": 1}
    assert result.missing_origins == [replace(records[2], part=1)]
    assert result.duplicated_origins == [replace(records[3], part=1)]


def test_a_bulk_message_that_is_one_dead_letter_is_one_record(run: Run) -> None:
    records = run.publish(2) + run.publish_bulk(6)
    run.bury(records[2], ARROW_TYPE)
    run.ingest(records[:2])
    run.train(1000)
    assert nonzero(run.verify()) == {"published": 3, "trained": 2, "dead_lettered": 1}


def test_ledger_rows_that_no_message_stands_behind_are_unknown(run: Run) -> None:
    records = run.publish(5)
    run.ingest([*records, Origin("orders", 0, 2, row=9)])
    run.train(1000)
    result = run.verify()
    assert not result.ok
    assert nonzero(result) == {"published": 5, "trained": 5, "unknown": 1}


def test_records_before_the_start_of_the_run_are_not_missing(run: Run) -> None:
    run.ingest(run.publish(30))
    starts = {lane: end.end for lane, end in run.broker.ends(TOPICS.tokens).items()}
    run.ingest(run.publish(20))
    run.train(1000, starts=starts)
    assert nonzero(run.verify()) == {"published": 50, "trained": 20, "before_start": 30}


def test_what_retention_took_from_the_text_topic_is_not_compared(tmp_path: Path) -> None:
    run = Run(tmp_path, retention_ms=60_000)
    run.ingest(run.publish(30))
    run.train(1000)
    run.now_s += 3600
    run.ingest(run.publish(20))
    run.train(1000)
    result = run.verify()
    assert result.ok
    assert result.expired > 0
    assert result.expired + result.published == 50
    assert result.trained == result.published
    assert len(run.ledger().find(Origin("orders", 0, 3))) == 1


def test_partitions_compared_one_at_a_time_give_the_same_counts(run: Run) -> None:
    records = run.publish(20) + run.publish(30, partition=1)
    run.ingest(records[1:] + records[-1:])
    run.train(5)
    assert run.verify(group_records=1) == run.verify()


def test_only_some_examples_are_listed(run: Run) -> None:
    run.publish(100)
    run.ingest(run.publish(1, partition=1))
    run.train(1000)
    result = run.verify()
    assert result.missing == 100
    assert len(result.missing_origins) == EXAMPLES


def test_before_anything_is_published_everything_is_well(run: Run) -> None:
    run.train(1)
    assert nonzero(run.verify()) == {}
    assert run.verify().ok


def test_many_resume_cycles_train_every_record_once_and_the_same_batches(tmp_path: Path) -> None:
    """Kill and resume after every step or two, at another number of ranks each time."""
    hashes = []
    for name, lives in (("whole", [1000]), ("often", [1, 2] * 100), ("every", [1] * 100)):
        run = Run(tmp_path / name)
        run.ingest(run.publish(120) + run.publish(80, partition=1))
        trained = [run.train(steps, ranks=1 + life % 3) for life, steps in enumerate(lives)]
        assert trained[-1] in {0, sum(trained)}
        assert nonzero(run.verify()) == {"published": 200, "trained": 200}
        ledger = run.ledger()
        assert len(ledger.chain) == (1 if name == "whole" else len([life for life in trained if life]))
        hashes.append(ledger.hash())
    assert len(set(hashes)) == 1
