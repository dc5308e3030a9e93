"""A vocabulary: the words are the tokenizer's, the same texts give the same tokens, and what cannot be is said."""

from __future__ import annotations

import random
import string
import sys
import unicodedata
from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.ingest.vocabulary import SPECIAL_TOKENS, Limits, Vocabulary, Words, build, splitter
from headrace.schemas.errors import UsageError

LINES = ["交通拥堵严重，希望尽快解决！", "2号线 low lower lowest", "New newer NEWEST, Café ＡＢ＋ｃ", "low new 号 2"]


def words(texts: Iterable[str], *, cased: bool = False, max_words: int = 1000) -> Words:
    found = Words(splitter(cased=cased), max_words)
    found.add(texts)
    return found


def learned(texts: Iterable[str], size: int, *, cased: bool = False, **limits: int) -> Vocabulary:
    return build(words(texts, cased=cased), Limits(size, **limits))


def pieces(vocabulary: Vocabulary) -> tuple[str, ...]:
    return vocabulary.tokens[len(vocabulary.tokens) - vocabulary.pieces :]


def random_words(seed: int, count: int) -> list[str]:
    """Many words that occur equally often, so that joining meets ties everywhere."""
    pick = random.Random(seed)
    return ["".join(pick.choices(string.ascii_lowercase[:8], k=pick.randint(2, 6))) for _ in range(count)]


def test_words_as_the_tokenizer_sees_them() -> None:
    split = splitter(cased=False)
    assert split("Café號\u0000 b2+①\u200b（x）\u2028ΑΣ") == [
        "cafe", "號", "b2", "+", "①", "（", "x", "）", "ασ",
    ]  # fmt: skip
    assert splitter(cased=True)("Café NEW") == ["Café", "NEW"]


def test_the_order_of_the_tokens() -> None:
    made = learned(LINES, 200)
    assert made.tokens[:5] == SPECIAL_TOKENS
    alphabet = made.tokens[5 : 5 + made.characters]
    assert len(set(made.tokens)) == len(made.tokens)
    assert all(len(token) == 1 for token in alphabet) and alphabet[0] == "e"
    inside = made.tokens[5 + made.characters : 5 + made.characters + made.inside]
    assert set(inside) == {f"##{char}" for char in alphabet if (char.isascii() and char.isalnum()) or char in "ａｂｃ"}
    assert "##w" in inside and "##号" not in inside and "##，" not in inside
    assert "low" in pieces(made) and "new" in pieces(made)
    assert len(made.tokens) == 5 + made.characters + made.inside + made.pieces


def test_the_same_words_give_the_same_vocabulary() -> None:
    """In another order, and again: the library alone gives another one nearly every time."""
    texts = random_words(1, 3000)
    first = learned(texts, 250)
    assert first.pieces == 250 - 5 - 16
    assert all(learned(texts, 250).tokens == first.tokens for _ in range(3))
    assert learned([" ".join(sorted(texts))], 250).tokens == first.tokens


def test_the_size_is_kept_or_nothing_more_occurs_often_enough() -> None:
    texts = random_words(2, 500)
    assert len(learned(texts, 120).tokens) == 120
    often = learned(["abab abab abab cdcd"], 120, min_frequency=3)
    assert pieces(often)[-1] == "abab" and "cdcd" not in pieces(often) and len(often.tokens) < 120
    assert "cdcd" in pieces(learned(["abab abab abab cdcd"], 120, min_frequency=1))


def test_the_most_frequent_characters_are_kept_ties_by_code_point() -> None:
    texts = ["好好好天天路", "abc abc ab"]  # a, b and 好 three times, 天 and c twice, 路 once
    made = learned(texts, 100, characters=4)
    assert made.tokens[5:9] == ("a", "b", "好", "c")
    assert made.character_share == pytest.approx(11 / 14)
    assert made.word_share == pytest.approx(6 / 9)


def test_a_character_that_is_not_kept_does_not_join_its_neighbours() -> None:
    made = learned(["axb axb axb", "a a a a b b b b"], 20, characters=2)
    assert made.tokens == (*SPECIAL_TOKENS, "a", "b", "##a", "##b")


def test_too_small_a_size_says_the_smallest() -> None:
    with pytest.raises(UsageError, match=r"--size 10 is too small.* set --size to 13 or more.*--limit-characters"):
        learned(["好天abc"], 10)
    smallest = learned(["好天abc abc"], 5 + 5 + 3)
    assert smallest.pieces == 0 and smallest.character_share == smallest.word_share == 1


@pytest.mark.parametrize("texts", [[], ["\u200b\u0000"], [" "]])
def test_no_text_at_all(texts: list[str]) -> None:
    with pytest.raises(UsageError, match="no text"):
        learned(texts, 100)


def test_chinese_alone_needs_no_pieces() -> None:
    made = learned(["交通拥堵", "交通"], 100)
    assert made.tokens == (*SPECIAL_TOKENS, "交", "通", "堵", "拥")


def test_a_word_that_is_too_long_is_unknown_and_teaches_nothing() -> None:
    made = learned(["ab" * 51, "ab cd"], 100)
    assert "abab" not in pieces(made) and made.word_share == pytest.approx(2 / 3) and made.character_share == 1


def test_rare_words_make_room_and_their_characters_still_count() -> None:
    texts = [f"often {word}" for word in random_words(3, 300)]
    bounded, free = words(texts, max_words=50), words(texts)
    for text in texts:
        bounded.add([text])
    free.add(texts)
    assert len(bounded.counts) <= 51 and bounded.forgotten > 0 and bounded.counts["often"] == 600
    assert bounded.characters() == free.characters()


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=20))
@example(["\u0130 ΑΣ e\u0301\u0327 \uf900 한국"])
def test_a_word_of_the_alphabet_is_known(texts: list[str]) -> None:
    """Greedy longest match over the tokens leaves no word of at most 100 characters unknown."""
    if not any(splitter(cased=False)(text) for text in texts):
        return
    made = learned(texts, 5000)
    assert made.character_share == 1
    known = set(made.tokens)
    for text in texts:
        for word in splitter(cased=False)(text):
            assert word[0] in known and all(f"##{char}" in known for char in word[1:])


def test_every_character_is_divided_as_paddlenlp_divides_it() -> None:
    from paddlenlp.transformers import BasicTokenizer

    chars = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) not in ("Cn", "Co")]
    for cased in (False, True):
        split, theirs = splitter(cased=cased), BasicTokenizer(do_lower_case=not cased)
        wrong = [
            char
            for char in chars
            if split(f"x{char}y{char}")
            != theirs.tokenize("".join(map(str.lower, f"x{char}y{char}")) if not cased else f"x{char}y{char}")
        ]
        assert wrong == []
        moving = "x\u302e\U00016ff0\u0301y 号\u0327\u302fé"  # two marks that are kept, and change places
        assert split(moving) == theirs.tokenize(moving)
