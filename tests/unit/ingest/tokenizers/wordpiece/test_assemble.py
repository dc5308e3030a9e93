"""Pairs cut longest first, and long texts cut into parts at sentence ends."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.ingest.tokenizers.base import Options
from tests.unit.ingest.tokenizers.wordpiece import tools
from tests.unit.ingest.tokenizers.wordpiece.tools import tokenizer, tokens


def longest_first(first: list[int], second: list[int], room: int) -> tuple[list[int], list[int]]:
    """One token at a time, from the longer, of two equal ones from the second."""
    while len(first) + len(second) > room:
        if len(first) > len(second):
            first = first[:-1]
        else:
            second = second[:-1]
    return first, second


@given(st.lists(st.tuples(tools.texts(), st.one_of(st.none(), tools.texts())), max_size=5), st.integers(4, 24))
def test_pairs_lose_tokens_of_the_longer_text_first(rows: list[tuple[str, str | None]], most: int) -> None:
    ours = tokenizer(Options(most))
    cls, sep = ours.special_ids["cls"], ours.special_ids["sep"]
    encoded = ours.encode(
        pa.array([text for text, _ in rows], pa.string()), pa.array([pair for _, pair in rows], pa.string())
    )
    assert encoded.pair_start is not None
    for number, (text, pair) in enumerate(rows):
        first = [token for token, _ in ours.reference.tokens(text)]
        if pair is None:
            wanted, start, most_here = [cls, *first[: most - 2], sep], None, most - 2
            total = len(first)
        else:
            second = [token for token, _ in ours.reference.tokens(pair)]
            kept, kept_second = longest_first(first, second, most - 3)
            wanted, start = [cls, *kept, sep, *kept_second, sep], len(kept) + 2
            total, most_here = len(first) + len(second), most - 3
        assert encoded.input_ids[number].as_py() == wanted
        assert encoded.pair_start[number].as_py() == start
        assert encoded.too_long[number].as_py() == (total > most_here)


@given(st.lists(tools.texts(60), max_size=4), st.integers(4, 16), st.sampled_from(["", "jieba"]))
def test_parts_hold_every_token_once_in_order(texts: list[str], most: int, words: str) -> None:
    ours = tokenizer(Options(most, split=True, words=words))
    encoded = ours.encode(pa.array(texts, pa.string()), None)
    rows = encoded.input_ids.to_pylist()
    assert encoded.text_of is not None and encoded.part is not None
    for number, text in enumerate(texts):
        mine = [row for row, of in zip(rows, encoded.text_of, strict=True) if of == number]
        assert [part for part, of in zip(encoded.part, encoded.text_of, strict=True) if of == number] == list(
            range(len(mine))
        )
        wanted = [token for token, _ in ours.reference.tokens(text)]
        assert [token for row in mine for token in row[1:-1]] == wanted
        assert all(len(row) <= most for row in mine)
        assert encoded.too_long[number].as_py() == (len(wanted) > most - 2) == (len(mine) > 1)


def parts(text: str, most: int, words: str = "", pair: str | None = None) -> list[str]:
    encoded = tokenizer(Options(most, split=True, words=words)).encode(
        pa.array([text]), None if pair is None else pa.array([pair])
    )
    return ["".join(row).removeprefix("[CLS]").removesuffix("[SEP]") for row in tokens(encoded)]


@pytest.mark.parametrize(
    ("text", "most", "wanted"),
    [
        ("今天好。中国人民好！大学生活", 9, ["今天好。", "中国人民好！", "大学生活"]),
        ("今天好。中国人民好！大学生活", 13, ["今天好。中国人民好！", "大学生活"]),
        ("“今天好。”中国人民", 9, ["“今天好。”", "中国人民"]),  # a closing quote stays with its sentence
        ("今天好！！中国人民", 6, ["今天", "好！！", "中国人民"]),  # nor are two marks parted
        ("hello a.b world. hello", 8, ["helloa.bworld.", "hello"]),  # a full stop ends one where space follows
        ("今天\n中国人民", 6, ["今天", "中国人民"]),
        ("今天中国人民", 6, ["今天中国", "人民"]),  # no sentence ends: at the bound
        ("world hello abcabc", 6, ["worldhello", "a##b##c##a", "##b##c"]),  # words stay whole where they can
        ("今天好中国，人民", 7, ["今天好中", "国，人民"]),  # no part begins with a comma
    ],
)
def test_long_texts_are_cut_at_sentence_ends(text: str, most: int, wanted: list[str]) -> None:
    assert parts(text, most) == wanted


def test_with_words_a_part_ends_at_a_word() -> None:
    assert parts("我在北京大学生活", 6, words="jieba") == ["[UNK]在", "北京大学", "生活"]


def test_the_longer_of_a_pair_is_split_and_the_other_goes_with_every_part() -> None:
    wanted = ["中国人", "民。", "大学生", "活。"]
    assert parts("今天好？", 11, pair="中国人民。大学生活。") == [f"今天好？[SEP]{part}" for part in wanted]
    assert parts("中国人民。大学生活。", 11, pair="今天好？") == [f"{part}[SEP]今天好？" for part in wanted]


def test_what_goes_with_every_part_takes_half_of_the_room_at_most() -> None:
    assert parts("中国人民大学。" * 2, 11, pair="今天好今天好？") == [
        f"{part}[SEP]今天好今" for part in ("中国人民", "大学。") * 2
    ]


def test_a_text_of_too_many_parts_gives_no_row() -> None:
    encoded = tokenizer(Options(4, split=True)).encode(pa.array(["好", "中" * 140_000, "国"]), None)
    assert encoded.text_of is not None
    assert encoded.text_of.tolist() == [0, 2]
    assert encoded.too_long.to_pylist() == [False, True, False]
