"""Texts of files and pipes: as ingest decodes them, counted where it would refuse them, and no more than asked for."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from headrace.ingest.sources import texts
from headrace.ingest.sources.texts import Texts, of_file, of_pipe
from headrace.pipeline.config import FieldNames
from headrace.schemas.errors import Reason, UsageError
from headrace.schemas.record import TextFormat
from tests.unit.ingest.tools import rules


def all_of(found: list[Texts]) -> list[str]:
    return [text for some in found for text in some.texts]


def test_lines_of_a_text_file(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes("\ufeff一\r\n\n{二\n".encode() + b"\xff\n" + "三".encode())
    (found,) = of_file(file, rules(TextFormat.JSON), "vocab build")
    assert found.texts == ["一", "{二", "三"] and found.records == 3
    assert found.skipped == Counter({Reason.INVALID_UTF8: 1})
    assert found.done_bytes == found.size_bytes == file.stat().st_size


def test_objects_of_a_json_file_with_pairs_and_fields_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    records = [
        {"body": {"text": "一"}},
        {"body": {"text": "二"}, "other": "三"},
        {"text": "四"},
        {"body": {"text": " "}},
    ]
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records) + "{broken")
    how = rules(names=FieldNames(text="body.text", pair="other"))
    (found,) = of_file(file, how, "vocab build")
    assert sorted(found.texts) == ["一", "三", "二"] and found.records == 2
    assert found.skipped == Counter([Reason.MISSING_TEXT, Reason.EMPTY_TEXT, Reason.INVALID_JSON])


def test_a_long_file_comes_in_parts_and_is_left_when_enough_was_read(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("".join(f"{number}\n" for number in range(5000)))
    everything = list(of_file(file, rules(), "vocab build"))
    assert [some.records for some in everything] == [2000, 2000, 1000]
    assert all_of(everything) == [str(number) for number in range(5000)]
    assert all_of(list(of_file(file, rules(), "vocab build", 2500))) == [str(number) for number in range(2500)]


def test_a_pipe_tells_json_from_text_by_the_first_byte() -> None:
    read, write = os.pipe()
    with os.fdopen(write, "wb") as stream:
        stream.write('{"text": "一"}\n二\n'.encode())
    with os.fdopen(read, "rb") as given:
        assert all_of(list(of_pipe(given.fileno(), rules(TextFormat.ARROW)))) == ["一", "二"]


@pytest.mark.parametrize(
    ("name", "what"), [("a.gz", "decompress it"), ("a.csv", "of this kind"), ("none.txt", "no such")]
)
def test_files_that_are_not_read(name: str, what: str, tmp_path: Path) -> None:
    if not name.startswith("none"):
        (tmp_path / name).write_text("x")
    with pytest.raises(UsageError, match=what) as refused:
        next(of_file(tmp_path / name, rules(), "vocab build"))
    assert "headrace publish" not in str(refused.value)


def test_a_file_without_line_ends_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "MAX_LINE_BYTES", 100)
    (tmp_path / "a.txt").write_text("one\ntwo\n" + "x" * 200)
    with pytest.raises(UsageError, match=r"a\.txt:3: the line has more than 100 bytes"):
        list(of_file(tmp_path / "a.txt", rules(), "vocab build"))
