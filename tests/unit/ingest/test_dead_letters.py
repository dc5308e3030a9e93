"""Dead letters: nothing of the record is lost, nothing blocks a transaction, and too many of them stop ingest."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.ingest.dead_letters import WINDOW_RECORDS, DeadLetter, Limit, decode, encode
from headrace.pipeline.topics import Message
from headrace.schemas.errors import BadRecord, Reason, Stop
from headrace.schemas.record import Origin

MAX_BYTES = 5_000


def letter(value: bytes = b"{", reason: Reason = Reason.INVALID_JSON, detail: str = "why") -> DeadLetter:
    return DeadLetter(Origin("text", 1, 2, 3), reason, detail, "application/json", value)


def through_a_topic(dead: DeadLetter, max_bytes: int = MAX_BYTES) -> DeadLetter:
    value, headers = encode(dead, max_bytes)
    assert len(value) + sum(len(name) + len(content) for name, content in headers) <= max_bytes
    return decode(Message(0, 0, 0, value, headers=tuple(headers)))


@given(st.binary(max_size=3000), st.text(max_size=50), st.sampled_from(list(Reason)))
def test_what_fits_comes_back_as_it_was(value: bytes, detail: str, reason: Reason) -> None:
    dead = letter(value, reason, detail)
    assert through_a_topic(dead) == dead


def test_what_is_too_large_for_the_topic_is_cut_with_length_and_hash() -> None:
    value = b"x" * 6_000_000
    back = through_a_topic(letter(value))
    assert back.truncated
    assert value.startswith(back.value)
    assert len(back.value) > MAX_BYTES // 2
    assert back.length == len(value)
    assert back.sha256 == hashlib.sha256(value).hexdigest()


def test_a_long_detail_does_not_take_the_room() -> None:
    assert through_a_topic(letter(detail="交" * 100_000)).detail == "交" * 300


def test_a_foreign_message_is_no_dead_letter() -> None:
    with pytest.raises(BadRecord, match="another program"):
        decode(Message(0, 0, 0, b"hello"))


class TestLimit:
    def test_stops_when_too_many_are_bad_naming_the_most_common_reason_and_the_cure(self) -> None:
        limit = Limit(0.5)
        bad = [letter(reason=Reason.MISSING_TEXT, detail="no field 'text'")] * 400 + [letter()] * 200
        with pytest.raises(
            Stop, match=r"600 of the last 1000.*missing-text.*text/1@2\+3.*max_share.*text\.fields\.text"
        ):
            limit.add(1000, bad)

    def test_a_few_records_say_nothing_yet(self) -> None:
        Limit(0.5).add(WINDOW_RECORDS - 1, [letter()] * (WINDOW_RECORDS - 1))

    def test_bad_records_at_the_end_of_a_run_are_not_taken_for_all_of_it(self) -> None:
        Limit(0.5).add(2000, [letter()] * 900)

    def test_old_runs_are_forgotten(self) -> None:
        limit = Limit(0.5)
        limit.add(999, [letter()] * 999)
        limit.add(2000, [])
        limit.add(1000, [letter()] * 400)
        with pytest.raises(Stop):
            limit.add(1000, [letter()] * 600)

    def test_one_by_one(self) -> None:
        limit = Limit(0.1)
        with pytest.raises(Stop, match="101 of the last 1000"):
            for number in range(5000):
                limit.add(1, [letter()] if number % 9 == 0 and number >= 3000 else [])

    def test_a_share_of_one_never_stops(self) -> None:
        limit = Limit(1.0)
        for _ in range(3):
            limit.add(1000, [letter()] * 1000)
