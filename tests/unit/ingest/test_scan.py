"""The scan says what orjson says, or nothing: compared over records, damaged records, and any bytes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.ingest import scan
from headrace.ingest.decode import Rules, decode
from headrace.pipeline.config import FieldNames
from headrace.schemas.record import TextFormat
from tests.unit.ingest.tools import message, rules

NAMES = FieldNames()
FORMS = [TextFormat.AUTO, TextFormat.JSON, TextFormat.TEXT]


def outcome(bodies: list[bytes], how: Rules) -> list[Any]:
    messages = [message(body, offset=offset) for offset, body in enumerate(bodies)]
    return [(piece.records, piece.bad, piece.next) for piece in decode(messages, how, {})]


def check_same(bodies: list[bytes], how: Rules) -> None:
    scanned = outcome(bodies, how)
    for records, _, _ in scanned:
        records.validate(full=True)
    nothing: Any = (None,) * 5
    with patch.object(scan, "scan", lambda bodies, bounds, forms, names: (nothing, np.ones(len(forms), np.bool_))):
        assert scanned == outcome(bodies, how)


def texts() -> st.SearchStrategy[str]:
    odd = st.sampled_from(
        ["", " ", "交通", "\u3000", '"\\/\b\f\n\r\t', "\x00", "😀", "\ufeffa", "ｆ", "\x7f\x80\u07ff"]
    )
    return odd | st.text(max_size=12)


def numbers() -> st.SearchStrategy[str]:
    """As written: JSON has no other way to tell 1 from 1.0."""
    odd = [
        "0",
        "-0",
        "-1",
        "01",
        "1.",
        ".5",
        "-",
        "1e5",
        "1E-7",
        "0.5",
        "-0.0",
        "9" * 18,
        "9" * 19,
        "1" * 30,
        "1.5e300",
    ]
    return st.sampled_from(odd) | st.integers().map(str) | st.floats(allow_nan=False).map(json.dumps)


def times() -> st.SearchStrategy[str]:
    moments = st.datetimes(
        timezones=st.none()
        | st.just(UTC)
        | st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
    )
    odd = [
        "",
        "2026-02-29T00:00:00",
        "2024-02-29 00:00:00Z",
        "2100-02-29T00:00:00",
        "0001-01-01T00:00:00+23:59",
        "2026-1-1T00:00:00",
        "2026-11-23",
        "20261123",
        "1700000000000",
        "2026-11-23T24:00:00",
        "2026-11-23T08:00:60",
        "2026-11-23T08:00:00,5",
        "2026-11-23T08:00:00.1",
        "2026-11-23T08:00:00.123+08:00",
        "2026-11-23t08:00:00z",
    ]
    return (
        st.sampled_from(odd)
        | moments.map(datetime.isoformat)
        | moments.map(lambda moment: moment.isoformat(" ", "milliseconds"))
    )


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    strings = st.builds(json.dumps, texts() | times(), ensure_ascii=st.booleans())
    scalars = (
        strings | numbers() | st.sampled_from(["null", "true", "false", "nul", "NaN", '"\\ud800"', '"\\u00"', '"\t"'])
    )
    lists = st.lists(strings | scalars, max_size=3).map(lambda items: "[" + " , ".join(items) + "]")
    value = st.one_of(strings, scalars, lists, st.just('{"a":{"b":[1]}}'), st.just(json.dumps(["x"] * 65)))
    keys = st.sampled_from(['"text"', '"pair"', '"label"', '"id"', '"timestamp"', '"other"', '"te\\u0078t"', '""'])
    space = st.sampled_from(["", "", "", " ", "\n\t\r "])
    pairs = [
        draw(space) + draw(keys) + draw(space) + ":" + draw(space) + draw(value) + draw(space)
        for _ in range(draw(st.integers(0, 5)))
    ]
    pairs.insert(draw(st.integers(0, len(pairs))), f'"text":{draw(strings)}')
    body = (draw(space) + "{" + ",".join(pairs) + "}" + draw(space)).encode(errors="surrogatepass")
    if draw(st.integers(0, 3)):
        return body
    at = draw(st.integers(0, len(body)))
    return body[:at] + draw(st.binary(max_size=3)) + body[at + draw(st.integers(0, 3)) :]


@settings(max_examples=500, deadline=None)
@given(st.lists(bodies() | st.binary(max_size=20), min_size=1, max_size=6), st.sampled_from(FORMS))
def test_scanned_and_one_by_one_are_the_same(found: list[bytes], form: TextFormat) -> None:
    check_same(found, rules(form, labels=["x", "1"], max_text_bytes=30))
    check_same(found, rules(form))


@settings(max_examples=200, deadline=None)
@given(times() | st.text(max_size=30))
def test_times_are_those_of_the_library(text: str) -> None:
    check_same([json.dumps({"text": "a", "timestamp": text}).encode()], rules())


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_utf8_is_what_python_takes_for_it(length: int) -> None:
    """Every first and second byte, between good ones, in JSON and in plain text."""
    rest = b"\x80" * max(0, length - 2)
    middles = [bytes([first, second])[:length] + rest for first in range(256) for second in (range(0, 256, 3))]
    check_same([b'{"text":"a' + middle + b'b","x":"' + middle + b'"}' for middle in middles], rules())
    check_same([b"a" + middle + b"b" for middle in middles], rules())
    check_same([b"a" + middle for middle in middles], rules())


USUAL = [
    '{"text":"交通拥堵","label":"a","id":"17"}',
    '{"id":17,"label":["a","b"],"text":"\\u4ea4\\n\\ud83d\\ude00","timestamp":1700000000000}',
    '{ "text" : "a" , "timestamp" : "2026-11-23T08:00:00.123+08:00" , "score" : -0.25, "seen": true, "who": null } ',
    "plain text",
]


def test_usual_records_are_not_left_open() -> None:
    forms = np.full(len(USUAL), scan.GUESS, np.uint8)
    bodies = [body.encode() for body in USUAL]
    bounds = np.cumsum([0, *map(len, bodies)])
    (text, pair, label, id_, timestamp), left_open = scan.scan(b"".join(bodies), bounds, forms, NAMES)
    assert not left_open.any()
    assert text.to_pylist() == ["交通拥堵", "交\n😀", "a", "plain text"]
    assert (pair, label.to_pylist()) == (None, [["a"], ["a", "b"], [], []])
    assert id_.to_pylist() == ["17", "17", None, None]
    assert timestamp.to_pylist() == [None, 1700000000000, 1795392000123, None]


@pytest.mark.parametrize("names", [{"text": "body.content"}, {"id": "label"}])
def test_names_that_are_no_keys_of_their_own_are_not_scanned(names: dict[str, str]) -> None:
    body = b'{"body":{"content":"a"},"text":"b","label":"c"}'
    how = rules(names=FieldNames(**names))
    assert not scan.can_scan(how.fields.names)
    ((records, bad, _),) = outcome([body], how)
    assert bad == []
    assert records.column("text").to_pylist() == (["a"] if "text" in names else ["b"])
    assert records.column("id").to_pylist() == [None if "text" in names else "c"]
