"""The kernel: the reference's tokens whatever the bytes, from any Arrow array, and nothing read beyond a text."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.ingest.tokenizers.base import Options
from headrace.ingest.tokenizers.wordpiece.tokenizer import make
from tests.unit.ingest.tokenizers.wordpiece import tools
from tests.unit.ingest.tokenizers.wordpiece.tools import tokenizer, tokens

CASES = st.sampled_from([(True, True), (False, False), (True, False), (False, True)])


@given(st.lists(tools.texts(), max_size=6), CASES, st.integers(4, 40))
@example(["中" * 40, "a" * 100, "a" * 101, "a" * 99 + "é", "\u1100" * 99 + "가"], (True, True), 40)
def test_every_text_has_the_tokens_of_the_reference(texts: list[str], case: tuple[bool, bool], most: int) -> None:
    ours = tokenizer(Options(most), lowercase=case[0], strip_accents=case[1])
    encoded = ours.encode(pa.array(texts, pa.string()), None)
    for text, ids, too_long in zip(texts, encoded.input_ids.to_pylist(), encoded.too_long.to_pylist(), strict=True):
        wanted = [number for number, _ in ours.reference.tokens(text)]
        assert ids == [ours.special_ids["cls"], *wanted[: most - 2], ours.special_ids["sep"]]
        assert too_long == (len(wanted) > most - 2)


@given(st.lists(st.binary(max_size=12), max_size=8), st.booleans())
@example([b"\xe4", b"\xe4\xb8", b"\xf0\x9f\x98", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80"], False)
@example([b"\xe0\x80\x80a", b"\xf0\x80\x80\x80b", b"\xe4a\xb8\xad", b"\xff\xe4\xb8\xad"], True)
def test_malformed_utf8_counts_as_replacement_characters(values: list[bytes], large: bool) -> None:
    """Failure 24: a bad byte costs itself, not the text, the batch or the process."""
    ours = tokenizer(Options(64))
    kind = pa.large_string() if large else pa.string()
    wanted = ours.encode(pa.array([value.decode(errors="replace") for value in values], pa.string()), None)
    assert ours.encode(tools.array(values, kind), None).input_ids.equals(wanted.input_ids)


@given(st.lists(st.one_of(st.none(), tools.texts(12)), min_size=1, max_size=8), st.data())
def test_slices_nulls_and_large_strings(texts: list[str | None], data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(texts)))
    end = data.draw(st.integers(begin, len(texts)))
    ours = tokenizer(Options(64))
    wanted = ours.encode(pa.array([text or "" for text in texts[begin:end]], pa.string()), None)
    for kind in (pa.string(), pa.large_string()):
        found = ours.encode(pa.array(texts, kind).slice(begin, end - begin), None)
        assert found.input_ids.equals(wanted.input_ids)
        found.input_ids.validate(full=True)


def test_an_empty_batch_and_empty_texts() -> None:
    ours = tokenizer(Options(8))
    assert tokens(ours.encode(pa.array([], pa.string()), None)) == []
    assert tokens(ours.encode(pa.array(["", " \n", None, "\x00"], pa.string()), None)) == [["[CLS]", "[SEP]"]] * 4


def test_ids_are_uint16_where_they_fit() -> None:
    assert tokenizer(Options(8)).encode(pa.array(["a"]), None).input_ids.type == pa.list_(pa.uint16())


def test_ids_are_int32_where_the_vocabulary_needs_it() -> None:
    large = {**tools.VOCABULARY, "far": 70_000}
    encoded = make(tools.spec(vocabulary=large), Options(8)).encode(pa.array(["far a"]), None)
    assert encoded.input_ids.type == pa.list_(pa.int32())
    assert encoded.input_ids.to_pylist() == [[1, 70_000, tools.VOCABULARY["a"], 2]]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("～￥①", ["～", "￥", "①"]),  # failure 25: symbols stand alone, as in PaddleNLP
        ("好[SEP]中", ["好", "[SEP]", "中"]),
        ("[sep]", ["[", "s", "##e", "##p", "]"]),
        ("unbreakable working", ["unbreak", "##able", "work", "##ing"]),
        ("Σς", ["[UNK]"]),
        ("ΑΣ", ["α", "##σ"]),  # a capital sigma becomes the same letter wherever it stands
        ("가", ["ᄀ", "##ᅡ"]),
        ("É", ["e"]),
    ],
)
def test_tokens_that_people_ask_about(text: str, wanted: list[str]) -> None:
    assert tokens(tokenizer(Options(64)).encode(pa.array([text]), None)) == [["[CLS]", *wanted, "[SEP]"]]


def test_literal_tokens_stay_text_where_producers_are_not_trusted() -> None:
    ours = tokenizer(Options(64, special_in_text=False))
    assert tokens(ours.encode(pa.array(["[SEP]", "a[MASK]"]), None)) == [
        ["[CLS]", "[", "s", "##e", "##p", "]", "[SEP]"],
        ["[CLS]", "a", "[", "m", "##a", "##s", "##k", "]", "[SEP]"],
    ]


@pytest.mark.parametrize(
    ("literal", "text", "wanted"),
    [
        (" foo", "中 foo", ["中", " foo"]),
        (" foo", " foo", [" foo"]),
        ("\ue000", "a\ue000b", ["a", "\ue000", "b"]),
        ("\u200b", "中\u200b国", ["中", "\u200b", "国"]),
        ("Kelvin", "kelvin Kelvin \u212aelvin", None),
    ],
)
def test_literal_tokens_of_any_characters(literal: str, text: str, wanted: list[str] | None) -> None:
    given = {**tools.spec().literal, literal: 500}
    ours = make(tools.spec(literal=given), Options(64))
    ids = ours.encode(pa.array([text]), None).input_ids[0].as_py()[1:-1]
    assert ids == [number for number, _ in ours.reference.tokens(text)]
    if wanted is not None:
        names = {500: literal}
        assert [names.get(number) or tools.TOKENS[number] for number in ids] == wanted


@pytest.mark.parametrize(
    ("lowercase", "mask", "text"),
    [(True, "<s>", "\u226es>"), (False, "<|m|a>", "<|m|a\0>"), (False, "[SÉP]", "[SE\u0301P]")],
)
def test_kept_words_however_they_come_about(lowercase: bool, mask: str, text: str) -> None:
    vocabulary = {**tools.VOCABULARY, mask: 500, "<": 501, "|": 502, ">": 503}
    special = {**tools.SPECIAL, "mask": mask}
    kept = tools.spec(
        vocabulary=vocabulary,
        special=special,
        literal={token: vocabulary[token] for token in special.values()},
        kept_words=frozenset(special.values()),
        lowercase=lowercase,
        strip_accents=lowercase,
    )
    for most in (4, 5, 64):
        ours = make(kept, Options(most))
        encoded = ours.encode(pa.array([text]), None)
        wanted = [number for number, _ in ours.reference.tokens(text)]
        assert encoded.input_ids[0].as_py()[1:-1] == wanted[: most - 2]
        assert encoded.too_long[0].as_py() == (len(wanted) > most - 2)


def test_other_arrays_are_refused() -> None:
    ours = tokenizer(Options(8))
    for array in (pa.array(["a"]).dictionary_encode(), pa.array([1]), pa.nulls(2)):
        with pytest.raises(TypeError, match="array of strings"):
            ours.encode(array, None)
    with pytest.raises(ValueError, match="1 texts and 2 pairs"):
        ours.encode(pa.array(["a"]), pa.array(["b", "c"]))


_GUARDED = """
import ctypes, mmap
import numpy as np, pyarrow as pa
from headrace.ingest.tokenizers.base import Options
from headrace.ingest.tokenizers.wordpiece.tokenizer import make
from tests.unit.ingest.tokenizers.wordpiece.tools import tokenizer

PAGE = mmap.PAGESIZE
memory = mmap.mmap(-1, 2 * PAGE)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mprotect(ctypes.c_void_p(address + PAGE), ctypes.c_size_t(PAGE), 0) == 0
for tail in (b"", b"a", b"[", b"[SEP", b"\\xe4", b"\\xe4\\xb8", b"\\xf0\\x9f\\x98", b"\\xc3", b"\\xe4\\xb8\\xad"):
    text = b"\\xe4\\xb8\\xad" + tail
    begin = PAGE - len(text)
    memory[begin:PAGE] = text
    data = pa.foreign_buffer(address + begin, len(text))
    ends = pa.py_buffer(np.array([0, len(text)], np.int32))
    texts = pa.Array.from_buffers(pa.string(), 1, [None, ends, data])
    for options in (Options(8), Options(8, split=True)):
        print(tail, tokenizer(options).encode(texts, texts).input_ids.to_pylist())
"""


def test_no_byte_behind_a_text_is_read() -> None:
    """The text ends where memory may not be read: one byte further, and the process is gone."""
    done = subprocess.run([sys.executable, "-c", _GUARDED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 18
