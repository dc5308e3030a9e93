"""A sample of `python -m tests.parity`, and whatever text Hypothesis thinks of."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.parity import alphabet, texts
from tests.parity.compare import Comparison, shrink
from tests.parity.sides import MAIN, SETTINGS, ours
from tests.parity.texts import KINDS, PAIR_LENGTHS, Row

ROWS = 1500
ROWS_OF_OTHERS = 200

_ATOMS = (
    *alphabet.SPACES, *alphabet.INVISIBLE, *alphabet.NOWHERE, *alphabet.MARKS, *alphabet.CASES, *alphabet.SYMBOLS,
    *alphabet.EMOJI, *alphabet.SPECIAL, *alphabet.MARKUP, *"aAbBeEzZ019中国가각", "x" * 99,
)  # fmt: skip
_ANY_CHARACTER = st.characters(exclude_categories=["Cs"])
TEXT = st.lists(st.one_of(st.sampled_from(_ATOMS), _ANY_CHARACTER, st.sampled_from(alphabet.words())), max_size=16).map(
    "".join
)

Compared = Callable[[str], Comparison]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """Both sides of a setting, made once."""
    made: dict[str, Comparison] = {}

    def find(name: str) -> Comparison:
        if name not in made:
            folder = tmp_path_factory.mktemp("parity") / "tokenizer"
            SETTINGS[name].write(folder)
            made[name] = Comparison(name, folder)
        return made[name]

    return find


def _assert_same(comparison: Comparison, kind: str, rows: list[tuple[int, Row]]) -> None:
    different, reports = comparison.run(kind, rows, most=3)
    assert different == 0, f"{different} of {len(rows)} rows differ:\n" + "\n".join(map(str, reports))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SETTINGS)
def test_a_sample_of_every_kind(compared: Compared, name: str, kind: str) -> None:
    count = ROWS if name in MAIN else ROWS_OF_OTHERS
    numbers = sorted(random.Random(f"{name} {kind}").sample(range(KINDS[kind].size()), count))
    _assert_same(compared(name), kind, [(number, KINDS[kind].row(number)) for number in numbers])


@pytest.mark.parametrize("name", MAIN)
@settings(deadline=None, max_examples=150)
@given(batch=st.lists(TEXT, min_size=1, max_size=4))
def test_any_text(compared: Compared, name: str, batch: list[str]) -> None:
    _assert_same(compared(name), "any text", [(number, Row(text)) for number, text in enumerate(batch)])


@pytest.mark.parametrize("name", MAIN)
@settings(deadline=None, max_examples=100)
@given(batch=st.lists(st.tuples(TEXT, st.none() | TEXT), min_size=1, max_size=4), length=st.sampled_from(PAIR_LENGTHS))
def test_any_pair(compared: Compared, name: str, batch: list[tuple[str, str | None]], length: int) -> None:
    rows = [(number, Row(text, pair, length)) for number, (text, pair) in enumerate(batch)]
    _assert_same(compared(name), "any pair", rows)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_special_tokens_have_the_same_ids(compared: Compared, name: str) -> None:
    comparison = compared(name)
    theirs, tokenizer = comparison.reference.inner, ours(comparison.folder)
    assert tokenizer.special_ids == {
        part: getattr(theirs, f"{part}_token_id") for part in ("cls", "sep", "pad", "mask", "unk")
    }
    assert tokenizer.vocab_size == max(theirs.get_vocab().values()) + 1


def test_a_difference_is_found_and_cut_down(compared: Compared) -> None:
    """BERT's tokenizer takes the word for a special token, ERNIE's does not."""
    ernie = compared("ernie, cased")
    mixed = Comparison("bert, cased", ernie.folder)
    different, (report,) = mixed.run("texts", [(0, Row("all the same 中国")), (1, Row("before [M\u200bASK] after"))])
    assert different == 1
    assert report.row.text == "[M\u200bASK]"
    assert report.wanted_tokens == ("[CLS]", "[MASK]", "[SEP]")
    assert "U+200B Cf 0 ZERO WIDTH SPACE" in str(report)


def test_shrinking_keeps_only_what_differs() -> None:
    assert shrink("abcdXefgYh", lambda text: "X" in text and "Y" in text) == "XY"
    assert shrink("", lambda text: True) == ""


def test_a_row_depends_on_nothing_but_its_number() -> None:
    for kind in KINDS.values():
        assert kind.row(7) == kind.row(7)
    assert texts.generated(7) != texts.generated(8)
