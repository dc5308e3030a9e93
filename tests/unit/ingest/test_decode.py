"""Decoding: every message gives rows or dead letters, the same each time, and never an exception."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.ingest import decode as decode_module
from headrace.ingest.decode import BULK_ROWS, decode
from headrace.pipeline.config import FieldNames
from headrace.schemas.errors import Reason, UsageError
from headrace.schemas.position import Position
from headrace.schemas.record import ARROW_TYPE, JSON_TYPE, RECORDS, SPLIT_TYPE, TEXT_TYPE, TextFormat
from tests.unit.ingest.tools import PUBLISHED_MS, arrow_stream, bulk, decode_all, message, rules

NESTED = FieldNames(text="body.content", label="meta.tags.topic", id="key")


def row(value: object, **options: object) -> dict[str, object]:
    decoded = decode_all([message(value)], rules(**options))  # type: ignore[arg-type]
    assert decoded.bad == []
    return decoded.records.to_pylist()[0]  # type: ignore[no-any-return]


def refused(value: object, **options: object) -> tuple[Reason, str]:
    decoded = decode_all([message(value)], rules(**options))  # type: ignore[arg-type]
    assert decoded.records.num_rows == 0
    (letter,) = decoded.bad
    return letter.reason, letter.detail


class TestFormat:
    def test_first_byte_tells_json_from_text(self) -> None:
        decoded = decode_all([message('{"text":"a"}', offset=0), message("[1]", offset=1)], rules())
        assert decoded.records.column("text").to_pylist() == ["a", "[1]"]

    def test_a_body_that_begins_as_json_and_is_none_is_a_dead_letter_not_a_text(self) -> None:
        assert refused("{not json")[0] is Reason.INVALID_JSON

    def test_content_type_wins_over_first_byte(self) -> None:
        decoded = decode_all([message("{smile}", kind="text/plain; charset=utf-8")], rules())
        assert decoded.records.column("text").to_pylist() == ["{smile}"]

    def test_unknown_content_type_falls_back_to_first_byte(self) -> None:
        decoded = decode_all([message('{"text":"a"}', kind="application/octet-stream")], rules())
        assert decoded.records.column("text").to_pylist() == ["a"]

    def test_configured_format_wins_over_content_type(self) -> None:
        decoded = decode_all([message('{"text":"a"}', kind=JSON_TYPE)], rules(TextFormat.TEXT))
        assert decoded.records.column("text").to_pylist() == ['{"text":"a"}']

    def test_a_byte_order_mark_is_no_part_of_the_text(self) -> None:
        marked = [message(b'\xef\xbb\xbf{"text":"a"}', offset=0), message(b"\xef\xbb\xbfb", offset=1)]
        assert decode_all(marked, rules()).records.column("text").to_pylist() == ["a", "b"]

    def test_a_split_is_a_dead_letter_that_says_what_to_do_and_the_run_goes_on(self) -> None:
        run = [message("a", offset=0), message('{"path":"x"}', offset=1, kind=SPLIT_TYPE), message("b", offset=2)]
        decoded = decode_all(run, rules())
        assert decoded.records.column("text").to_pylist() == ["a", "b"]
        (letter,) = decoded.bad
        assert (letter.reason, letter.value, letter.content_type) == (
            Reason.INVALID_SPLIT,
            b'{"path":"x"}',
            SPLIT_TYPE,
        )
        assert "nothing reads splits yet" in letter.detail and "headrace publish" in letter.detail
        assert decoded.next == {0: (3, 0)}


class TestJson:
    def test_every_column(self) -> None:
        value = {"text": "交通", "pair": "拥堵", "label": ["a", 2], "id": 17, "timestamp": "2026-11-23T08:00+08:00"}
        found = row(value)
        assert found == {
            "text": "交通",
            "pair": "拥堵",
            "labels": ["a", "2"],
            "id": "17",
            "timestamp": datetime(2026, 11, 23),
            "published": datetime.fromtimestamp(PUBLISHED_MS / 1000, UTC).replace(tzinfo=None),
            "partition": 0,
            "offset": 0,
            "row": 0,
        }

    @pytest.mark.parametrize(
        ("written", "labels"),
        [
            ("null", []),
            ("[]", []),
            ("[null]", []),
            ('"a"', ["a"]),
            ('["a", "b"]', ["a", "b"]),
            ("3", ["3"]),
            ("-0.25", ["-0.25"]),
            ("5.0", ["5.0"]),
            ("1e-7", ["0.0000001"]),
            ("123456789012345678901234567890", ["123456789012345678901234567890"]),
            ("[true, false]", ["true", "false"]),
        ],
    )
    def test_labels_none_one_several_and_scalars_as_text(self, written: str, labels: list[str]) -> None:
        assert row(f'{{"text":"a","label":{written}}}')["labels"] == labels

    def test_a_long_id_keeps_every_digit(self) -> None:
        assert row('{"text":"a","id":98765432109876543210987}')["id"] == "98765432109876543210987"

    def test_an_empty_id_is_none_because_it_would_put_all_such_records_into_one_bucket(self) -> None:
        assert row({"text": "a", "id": ""})["id"] is None

    @pytest.mark.parametrize(
        "written", [1_700_000_000_000, "1700000000000", 1.7e12, "2023-11-14T22:13:20Z", "2023-11-14T22:13:20"]
    )
    def test_timestamps_iso_or_milliseconds(self, written: object) -> None:
        assert row({"text": "a", "timestamp": written})["timestamp"] == datetime(2023, 11, 14, 22, 13, 20)

    @pytest.mark.parametrize("written", ["soon", True, [1], {"a": 1}, 1e300, -(10**17), "9" * 30])
    def test_a_timestamp_that_is_none_is_an_invalid_field(self, written: object) -> None:
        reason, detail = refused({"text": "a", "timestamp": written})
        assert reason is Reason.INVALID_FIELD
        assert "'timestamp'" in detail

    def test_dotted_names_reach_into_objects(self) -> None:
        value = {"body": {"content": "a"}, "meta": {"tags": {"topic": ["x"]}}, "key": "k"}
        assert row(value, names=NESTED)["labels"] == ["x"]

    @pytest.mark.parametrize("value", [{}, {"body": None}, {"body": "a"}, {"body": {"content": None}}])
    def test_what_a_dotted_name_does_not_reach_is_missing(self, value: object) -> None:
        reason, detail = refused(value, names=NESTED)
        assert reason is Reason.MISSING_TEXT
        assert "body.content" in detail

    @pytest.mark.parametrize("field", ["text", "pair", "id", "label"])
    def test_a_nested_object_where_a_scalar_should_be_is_an_invalid_field(self, field: str) -> None:
        reason, detail = refused({"text": "a", field: {"zh": "b"}})
        assert (reason, repr(field) in detail) == (Reason.INVALID_FIELD, True)

    def test_a_number_is_text_too(self) -> None:
        assert row({"text": 12})["text"] == "12"

    @pytest.mark.parametrize("value", ["[1]", "12", '"text"', "null", "", "{", '{"text":NaN}', '{"text":"\\ud800"}'])
    def test_not_a_json_object(self, value: str) -> None:
        assert refused(value, form=TextFormat.JSON)[0] is Reason.INVALID_JSON

    def test_deep_nesting_is_a_dead_letter(self) -> None:
        assert refused('{"a":' * 5000 + "1" + "}" * 5000)[0] is Reason.INVALID_JSON

    def test_an_exponent_that_would_fill_the_memory_is_a_dead_letter(self) -> None:
        value = '{"text":"a","label":99999999999999999999,"id":1e-99999999}'
        assert refused(value)[0] is Reason.INVALID_FIELD


class TestReasons:
    def test_invalid_utf8_is_told_from_invalid_json(self) -> None:
        assert refused(b'{"text":"\xff"}')[0] is Reason.INVALID_UTF8
        assert refused(b"\xd6\xd0\xce\xc4")[0] is Reason.INVALID_UTF8  # GBK

    @pytest.mark.parametrize("text", ["", " ", "\n\t", "\u3000"])
    def test_empty_text(self, text: str) -> None:
        assert refused({"text": text})[0] is Reason.EMPTY_TEXT
        assert refused(text)[0] is Reason.EMPTY_TEXT

    def test_missing_text_names_the_setting(self) -> None:
        assert refused({"content": "a"}) == (Reason.MISSING_TEXT, "there is no field 'text' (text.fields.text)")

    def test_too_long_counts_bytes(self) -> None:
        assert row({"text": "中" * 10}, max_text_bytes=30)["text"] == "中" * 10
        assert refused({"text": "中" * 11}, max_text_bytes=30)[0] is Reason.TEXT_TOO_LONG
        assert refused("中" * 11, max_text_bytes=30)[0] is Reason.TEXT_TOO_LONG
        assert refused({"text": "a", "pair": "中" * 11}, max_text_bytes=30)[0] is Reason.TEXT_TOO_LONG

    def test_unknown_label_only_where_labels_are_known(self) -> None:
        assert row({"text": "a", "label": "x"})["labels"] == ["x"]
        assert row({"text": "a", "label": ["y", "z"]}, labels=["y", "z"])["labels"] == ["y", "z"]
        assert refused({"text": "a", "label": "x"}, labels=["y"])[0] is Reason.UNKNOWN_LABEL
        assert refused({"text": "a", "label": ["y", "x"]}, labels=["y"])[0] is Reason.UNKNOWN_LABEL

    def test_long_ids_and_labels_are_refused_because_a_row_must_fit_a_message(self) -> None:
        assert refused({"text": "a", "id": "x" * 2000})[0] is Reason.INVALID_FIELD
        assert refused({"text": "a", "label": "x" * 2000})[0] is Reason.INVALID_FIELD
        assert refused({"text": "a", "label": ["x"] * 100})[0] is Reason.INVALID_FIELD

    def test_a_dead_letter_has_its_origin_and_bytes(self) -> None:
        decoded = decode_all([message("{", partition=3, offset=9)], rules())
        (letter,) = decoded.bad
        assert str(letter.origin) == "text/3@9"
        assert (letter.value, letter.content_type) == (b"{", JSON_TYPE)


class TestRuns:
    def test_a_run_is_one_batch_with_the_next_position_of_each_partition(self) -> None:
        messages = [message("a", partition=p, offset=o) for p, o in [(0, 5), (1, 7), (0, 6), (1, 9)]]
        decoded = decode_all([*messages, message("{", partition=2, offset=4)], rules())
        assert decoded.records.schema == RECORDS
        assert decoded.records.column("offset").to_pylist() == [5, 7, 6, 9]
        assert decoded.next == {0: (7, 0), 1: (10, 0), 2: (5, 0)}
        assert decoded.count == 5

    def test_a_run_of_large_messages_is_decoded_piece_by_piece(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(decode_module, "RUN_BYTES", 100)
        pieces = list(decode([message("x" * 60, offset=o) for o in range(5)], rules(), {}))
        assert [piece.next for piece in pieces] == [{0: (2, 0)}, {0: (4, 0)}, {0: (5, 0)}]

    def test_five_megabytes_in_one_text(self) -> None:
        text = "交通" * 1_000_000
        assert row(text, max_text_bytes=10_000_000)["text"] == text
        assert refused(text)[0] is Reason.TEXT_TOO_LONG


class TestBulk:
    def test_rows_are_numbered_over_all_batches_and_bad_ones_are_dead_letters(self) -> None:
        first = pa.record_batch({"text": ["a", None], "label": ["x", "y"]})
        second = pa.record_batch({"text": ["", "d"], "label": [None, "z"]})
        decoded = decode_all([message(arrow_stream(first, second), offset=4, kind=ARROW_TYPE)], rules())
        assert decoded.records.column("row").to_pylist() == [0, 3]
        assert decoded.records.column("labels").to_pylist() == [["x"], ["z"]]
        assert [(letter.origin.row, letter.reason) for letter in decoded.bad] == [
            (1, Reason.MISSING_TEXT),
            (2, Reason.EMPTY_TEXT),
        ]
        assert json.loads(decoded.bad[0].value) == {"text": None, "label": "y"}
        assert decoded.bad[0].content_type == JSON_TYPE
        assert decoded.next == {0: (5, 0)}

    @pytest.mark.parametrize(
        ("column", "text"),
        [
            (pa.array(["a"], pa.large_string()), "a"),
            (pa.array(["a"], pa.string_view()), "a"),
            (pa.array(["a"]).dictionary_encode(), "a"),
            (pa.array([b"a"], pa.binary()), "a"),
            (pa.array([7], pa.int16()), "7"),
            (pa.array([True]), "true"),
            (pa.array([0.5]), "0.5"),
            (pa.array([1e20]), "100000000000000000000"),
            (pa.array([Decimal("1.50")]), "1.50"),
            (pa.array([datetime(2026, 1, 2).date()]), "2026-01-02"),
        ],
    )
    def test_column_types_of_a_scalar(self, column: pa.Array, text: str) -> None:
        found = decode_all([bulk({"text": ["t"], "id": column, "label": column})], rules()).records.to_pylist()[0]
        assert (found["id"], found["labels"]) == (text, [text])

    @pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
    def test_timestamps_of_every_unit(self, unit: str) -> None:
        moment = datetime(2023, 11, 14, 22, 13, 20)
        column = pa.array([moment, None], pa.timestamp(unit, "Asia/Shanghai"))
        found = decode_all([bulk({"text": ["a", "b"], "timestamp": column})], rules()).records
        assert found.column("timestamp").to_pylist() == [moment, None]

    def test_a_timestamp_beyond_all_years_is_one_bad_row(self) -> None:
        column = pa.array([2**62, 0], pa.timestamp("s"))
        decoded = decode_all([bulk({"text": ["a", "b"], "timestamp": column})], rules())
        assert [letter.reason for letter in decoded.bad] == [Reason.INVALID_FIELD]
        assert json.loads(decoded.bad[0].value)["text"] == "a"

    @pytest.mark.parametrize(
        "column",
        [
            pa.array([1], pa.timestamp("ns")),
            pa.array([1], pa.timestamp("ns", "UTC")),
            pa.array([1], pa.time64("ns")),
            pa.array([1], pa.duration("s")),
            pa.array([Decimal("1.5")]),
            pa.array([b"\xff"]),
            pa.array([2**64 - 1], pa.uint64()),
            pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8())),
        ],
    )
    def test_a_bad_row_has_a_json_form_whatever_its_columns(self, column: pa.Array) -> None:
        (letter,) = decode_all([bulk({"text": pa.array([None], pa.string()), "other": column})], rules()).bad
        assert json.loads(letter.value).keys() == {"text", "other"}

    def test_nan_is_absent(self) -> None:
        assert (
            decode_all([bulk({"text": ["a"], "label": [float("nan")]})], rules()).records.to_pylist()[0]["labels"] == []
        )

    def test_lists_and_structs(self) -> None:
        columns = {"body": [{"content": "a"}], "meta": [{"tags": {"topic": ["x", "y"]}}]}
        assert decode_all([bulk(columns)], rules(names=NESTED)).records.column("labels").to_pylist() == [["x", "y"]]
        assert decode_all([bulk({"text": [{"zh": "a"}]})], rules()).bad[0].reason is Reason.INVALID_FIELD

    def test_a_missing_column_is_one_dead_letter_that_names_the_setting(self) -> None:
        (letter,) = decode_all([bulk({"content": ["a", "b"]})], rules()).bad
        assert letter.reason is Reason.MISSING_TEXT
        assert "text.fields.text" in letter.detail

    def test_no_rows_is_a_dead_letter_never_nothing(self) -> None:
        (letter,) = decode_all([bulk({"text": pa.array([], pa.string())})], rules()).bad
        assert letter.reason is Reason.INVALID_ARROW

    def test_two_columns_of_one_name_are_refused(self) -> None:
        batch = pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
        (letter,) = decode_all([message(arrow_stream(batch), kind=ARROW_TYPE)], rules()).bad
        assert letter.reason is Reason.INVALID_ARROW

    def test_truncated_anywhere_is_one_dead_letter_with_all_bytes(self) -> None:
        batch = pa.record_batch({"text": ["a", "b"]})
        whole = arrow_stream(batch, batch)
        for length in range(len(whole)):
            decoded = decode_all([message(whole[:length], kind=ARROW_TYPE)], rules())
            (letter,) = decoded.bad
            assert decoded.records.num_rows == 0
            assert (letter.reason, letter.value) == (Reason.INVALID_ARROW, whole[:length])

    def test_something_behind_the_stream_is_refused(self) -> None:
        whole = arrow_stream(pa.record_batch({"text": ["a"]}))
        assert decode_all([message(whole + whole, kind=ARROW_TYPE)], rules()).bad[0].reason is Reason.INVALID_ARROW

    def test_invalid_utf8_and_wild_offsets_are_found_before_a_row_is_used(self) -> None:
        broken = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
        value = arrow_stream(pa.RecordBatch.from_arrays([broken], names=["text"]))
        good = arrow_stream(pa.record_batch({"text": ["abcdefgh"]}))
        wild = good.replace(b"\0\0\0\0\x08\0\0\0abcdefgh"[:8], b"\0\0\0\0\xff\xff\0\0")
        assert wild != good
        for damaged in (value, wild):
            assert decode_all([message(damaged, kind=ARROW_TYPE)], rules()).bad[0].reason is Reason.INVALID_ARROW

    def test_small_messages_before_and_after_keep_their_order(self) -> None:
        run = [message("a", offset=0), bulk({"text": ["b", "c"]}, offset=1), message("d", offset=2)]
        pieces = list(decode(run, rules(), {}))
        assert [text for piece in pieces for text in piece.records.column("text").to_pylist()] == ["a", "b", "c", "d"]
        assert [piece.next for piece in pieces] == [{0: (1, 0)}, {0: (2, 0)}, {0: (3, 0)}]

    def test_bulk_messages_are_put_together_and_each_row_knows_its_own(self) -> None:
        run = [
            bulk({"text": ["a", None, "b"]}, offset=4, partition=1),
            bulk({"text": ["c"], "id": ["x"]}, offset=7),
            bulk({"body": ["d"]}, offset=8),
            bulk({"text": ["e", "f"], "other": [1, 2]}, offset=6, partition=1),
        ]
        (piece,) = decode(run, rules(), {1: Position(4, 1)})
        records = piece.records.to_pydict()
        assert records["text"] == ["b", "c", "e", "f"]
        assert records["id"] == [None, "x", None, None]
        assert list(zip(records["partition"], records["offset"], records["row"], strict=True)) == [
            (1, 4, 2), (0, 7, 0), (1, 6, 0), (1, 6, 1)
        ]  # fmt: skip
        assert [(letter.reason, letter.origin.offset, letter.origin.row) for letter in piece.bad] == [
            (Reason.MISSING_TEXT, 4, 1), (Reason.MISSING_TEXT, 8, 0)
        ]  # fmt: skip
        assert piece.next == {0: (9, 0), 1: (7, 0)}
        letter = piece.dead_letter(3, Reason.TEXT_TOO_LONG, "")
        assert (str(letter.origin), json.loads(letter.value)) == ("text/1@6+1", {"text": "f", "other": 2})

    def test_bulk_messages_are_put_together_up_to_a_bound(self) -> None:
        run = [bulk({"text": ["a" * decode_module.RUN_BYTES]}, offset=offset) for offset in range(3)]
        pieces = list(decode(run, rules(max_text_bytes=2 * decode_module.RUN_BYTES), {}))
        assert [piece.next for piece in pieces] == [{0: (1, 0)}, {0: (2, 0)}, {0: (3, 0)}]


class TestResume:
    COUNT = 2 * BULK_ROWS + 10

    def big(self) -> list[decode_module.Message]:
        texts = [f"text {number}" if number % 100 else None for number in range(self.COUNT)]
        return [bulk({"text": texts}, offset=3), message("after", offset=4)]

    def test_from_every_position_that_was_given_the_rest_follows_exactly_once(self) -> None:
        pieces = list(decode(self.big(), rules(), {}))
        assert [piece.next[0] for piece in pieces] == [(3, BULK_ROWS), (3, 2 * BULK_ROWS), (4, 0), (5, 0)]
        for done, piece in enumerate(pieces[:-2], start=1):
            offset, row = piece.next[0]
            again = list(decode(self.big(), rules(), {0: Position(offset, row)}))
            rest = pieces[done:]
            assert [a.records.to_pylist() for a in again] == [p.records.to_pylist() for p in rest]
            assert [a.bad for a in again] == [p.bad for p in rest]

    def test_a_row_number_counts_for_its_own_message_only(self) -> None:
        (decoded, *_) = decode([bulk({"text": ["a", "b"]}, offset=5)], rules(), {0: Position(4, 1)})
        assert decoded.records.num_rows == 2

    def test_a_message_that_lost_the_row_means_a_changed_setting(self) -> None:
        for broken in (message("a", offset=3), bulk({"text": ["a"]}, offset=3), bulk({"body": ["a"]}, offset=3)):
            with pytest.raises(UsageError, match=r"text\.format"):
                list(decode([broken], rules(), {0: Position(3, 5)}))


def anything() -> st.SearchStrategy[bytes]:
    scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    values = st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
    )
    names = st.sampled_from(["text", "pair", "label", "id", "timestamp", "other"])
    records = st.dictionaries(names, values, max_size=6).map(lambda record: json.dumps(record).encode())
    damaged = st.builds(lambda a, b, c: a[:c] + b + a[c:], records, st.binary(max_size=3), st.integers(0, 50))
    return st.binary(max_size=60) | records | damaged


@given(
    st.lists(
        st.tuples(anything(), st.sampled_from(["", JSON_TYPE, TEXT_TYPE, ARROW_TYPE, "application/zip"])), max_size=8
    ),
    st.sampled_from(list(TextFormat)),
)
def test_any_bytes_give_a_row_or_a_dead_letter_each_and_no_exception(
    bodies: list[tuple[bytes, str]], form: TextFormat
) -> None:
    messages = [message(body, offset=offset, kind=kind) for offset, (body, kind) in enumerate(bodies)]
    pieces = list(decode(messages, rules(form, labels=["a", "1"]), {}))
    good = [offset for piece in pieces for offset in piece.records.column("offset").to_pylist()]
    bad = [letter.origin.offset for piece in pieces for letter in piece.bad]
    assert sorted(good + bad) == list(range(len(bodies)))
    for piece in pieces:
        piece.records.validate(full=True)
    again = list(decode(messages, rules(form, labels=["a", "1"]), {}))
    assert [(p.records, p.bad, p.next) for p in pieces] == [(p.records, p.bad, p.next) for p in again]


@given(st.data())
def test_a_damaged_arrow_stream_gives_all_rows_or_one_dead_letter(data: st.DataObject) -> None:
    whole = bytearray(arrow_stream(pa.record_batch({"text": ["交通", "拥堵", "b"], "label": [["x"], [], None]})))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    pieces = list(decode([message(bytes(whole), kind=ARROW_TYPE)], rules(), {}))
    assert sum(piece.count for piece in pieces) >= 1
    assert pieces[-1].next == {0: (1, 0)}
