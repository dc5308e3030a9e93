"""Chinese word boundaries: longest match over what nothing separates, WordPiece's own words elsewhere."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given

from headrace.ingest.tokenizers.base import Options
from headrace.ingest.tokenizers.wordpiece import marks, unicode, words
from headrace.schemas.errors import UsageError
from tests.unit.ingest.tokenizers.wordpiece import tools
from tests.unit.ingest.tokenizers.wordpiece.tools import tokenizer, tokens

WORDS = ["中国", "中国人", "人民", "大学", "大学生", "生活", "中国人民大学"]


@pytest.fixture(scope="module")
def dictionary(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("words") / "words.txt"
    file.write_text("".join(f"{word} 3 n\n" for word in [*WORDS, "hello", "好", "T恤"]), encoding="utf-8")
    return str(file)


def words_of(text: str, dictionary: str) -> list[str]:
    encoded = tokenizer(Options(64, words=dictionary)).encode(pa.array([text]), None)
    assert encoded.word_start is not None
    found: list[str] = []
    for token, start in zip(tokens(encoded)[0], encoded.word_start[0].as_py(), strict=True):
        if start:
            found.append(token)
        else:
            found[-1] += token
    return found[1:-1]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("中国人民大学生活", ["中国人民大学", "生活"]),
        ("中国人大学", ["中国人", "大学"]),
        ("中国好大学生", ["中国", "好", "大学生"]),
        ("中 国人民", ["中", "国", "人民"]),  # white space separates
        ("中\u200b国", ["中国"]),  # a character that is dropped does not
        ("中，国", ["中", "，", "国"]),
        ("working中国hello", ["work##ing", "中国", "hello"]),
        ("中[SEP]国", ["中", "[SEP]", "国"]),
    ],
)
def test_longest_match(text: str, wanted: list[str], dictionary: str) -> None:
    assert words_of(text, dictionary) == wanted


@given(tools.texts(60))
def test_the_same_as_a_plain_search(dictionary: str, text: str) -> None:
    ours = tokenizer(Options(64, words=dictionary))
    noted = list(ours.reference.tokens(text))[:62]
    wanted, at = [True], 0
    while at < len(noted):
        longest = 1
        if noted[at][1] & marks.CJK:
            for end in range(at + 1, len(noted) + 1):
                run = noted[at:end]
                if not all(note & marks.CJK for _, note in run) or any(note & marks.GAP for _, note in run[1:]):
                    break
                if "".join(chr(note & marks.CODE_POINT) for _, note in run) in WORDS:
                    longest = end - at
        wanted += [not noted[at][1] & marks.PIECE, *[False] * (longest - 1)]
        at += longest
    encoded = ours.encode(pa.array([text]), None)
    assert encoded.word_start is not None
    assert encoded.word_start[0].as_py() == [*wanted, True]
    assert encoded.input_ids.equals(tokenizer(Options(64)).encode(pa.array([text]), None).input_ids)


def test_pairs_have_boundaries_too(dictionary: str) -> None:
    encoded = tokenizer(Options(64, words=dictionary)).encode(pa.array(["中国", "好"]), pa.array(["人民", None]))
    assert encoded.word_start is not None
    assert encoded.word_start.to_pylist() == [[True, True, False, True, True, False, True], [True, True, True]]


def test_jiebas_dictionary_is_read() -> None:
    found = words.load("jieba")
    assert words.load("jieba").digest == found.digest
    assert "".join(words_of("北京大学在上海", "jieba")) == "北京大学在上海"
    assert words_of("北京大学", "jieba") == ["北京大学"]


@pytest.mark.parametrize("content", [b"hello\nworld\n", b"", b"\xff\xfe"])
def test_a_file_without_chinese_words_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "words.txt"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=r"tokenizer\.words"):
        words.load(str(file))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="jieba"):
        words.load(str(tmp_path / "none.txt"))


def test_words_of_the_dictionary_are_cjk(dictionary: str) -> None:
    assert all(unicode.is_cjk(char) for word in WORDS for char in word)
    assert words.load(dictionary).words.values.max() == 1
