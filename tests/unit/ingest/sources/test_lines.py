"""Lines: numbers and byte positions are right for every way to end a line, and in any chunks."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.ingest.sources.lines import Line, Place, file_chunks, lines, pipe_chunks
from headrace.schemas.errors import TooLarge, UsageError


def read(*chunks: bytes | None, max_bytes: int = 1000, start: Place = Place()) -> list[Line | None]:  # noqa: B008
    return list(lines("f.txt", iter(chunks), max_bytes, start))


def test_line_ends_and_the_byte_order_mark_are_left_out() -> None:
    assert read(b"\xef\xbb\xbfa\r\nb\n\nc\rd\re") == [
        Line(1, b"a", 6),
        Line(2, b"b", 8),
        Line(3, b"", 9),
        Line(4, b"c\rd\re", 14),
    ]


def test_nothing_yet_is_passed_on() -> None:
    assert read(b"a", None, b"b\n", None) == [None, Line(1, b"ab", 3), None]


def test_no_lines() -> None:
    assert read() == read(b"") == []


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=6), st.integers(0, 12))
def test_any_chunks_give_the_same_lines_and_reading_goes_on_at_any_of_them(
    content: bytes, cuts: list[int], done: int
) -> None:
    content = content.removeprefix(b"\xff\xfe").removeprefix(b"\xfe\xff")
    whole = read(content)
    edges = [0, *sorted(min(cut, len(content)) for cut in cuts), len(content)]
    assert read(*(content[a:b] for a, b in itertools.pairwise(edges))) == whole
    joined = b"".join(content[start:end] for start, end in _ranges(whole))
    assert joined == content
    if done < len(whole):
        line = whole[done]
        assert line is not None
        place = Place(line.number, line.end)
        assert read(content[line.end :], start=place) == whole[done + 1 :]


def _ranges(found: list[Line | None]) -> Iterator[tuple[int, int]]:
    start = 0
    for line in found:
        assert line is not None
        yield start, line.end
        start = line.end


def test_a_line_above_the_bound_is_refused_by_name() -> None:
    with pytest.raises(TooLarge, match=r"f\.txt:2: "):
        read(b"ok\n" + b"x" * 1001 + b"\n")
    assert read(b"x" * 1000 + b"\r\n") == [Line(1, b"x" * 1000, 1002)]


def test_a_line_without_an_end_is_refused_before_it_is_read_to_its_end() -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(5):
            yield b"x" * 500
        raise AssertionError("read on")

    with pytest.raises(TooLarge, match=r"f\.txt:1: "):
        list(lines("f.txt", endless(), 1000))


def test_utf16_is_told_by_its_mark() -> None:
    with pytest.raises(UsageError, match="iconv"):
        read("交通\n".encode("utf-16"))


def test_a_file_from_the_middle(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"a\nbb\nc")
    with (tmp_path / "f").open("rb") as file:
        assert list(lines("f", file_chunks(file, 2), 10, Place(1, 2))) == [Line(2, b"bb", 5), Line(3, b"c", 6)]


def test_a_pipe_says_when_nothing_comes() -> None:
    out, into = os.pipe()
    os.write(into, b"a\nb")
    found = lines("pipe", pipe_chunks(out, 0.01), 100)
    assert [next(found), next(found)] == [Line(1, b"a", 2), None]
    os.write(into, b"b\n")
    os.close(into)
    assert [line for line in found if line is not None] == [Line(2, b"bb", 5)]
    os.close(out)
