"""Files beside a vocabulary: what is read is what PaddleNLP's own class makes of the same folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.ingest.tokenizers import layout
from headrace.ingest.tokenizers.base import Options
from headrace.ingest.tokenizers.layout import Layout, read
from headrace.ingest.tokenizers.wordpiece import reference
from headrace.schemas.errors import UsageError

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = [
    *SPECIAL, "交", "通", "##通", "a", "b", "é", "e", "A", "##a", "##b", "foo", "Foo", "##oo", "f", "<", ">", "[", "]",
    "cls", "CLS", "～", "①", "😀", ",", "1", "x", "s", "<e>", "[M]",
]  # fmt: skip
TEXTS = [
    "交通 ab Foo foo", "[CLS] A é e\u0301 ab![MASK]", "[C\x00LS] FOO <\x00e>", "<e>ab ①～😀😀 交a <E>", "", " \t",
    "[cls] [MASK]foo", "Foo\u200bb xa,b 交通", "<e2> <E2>x <New>a <new>", "[M] [m] <s>a</s>",
]  # fmt: skip
OPTIONS = Options(max_tokens=64)


@pytest.fixture(scope="module")
def paddlenlp() -> Any:
    import paddlenlp.transformers

    return paddlenlp.transformers


def folder(path: Path, config: object = None, **files: object) -> Path:
    """A vocab.txt, and JSON files beside it by their names without the ending."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "vocab.txt").write_text("".join(f"{token}\n" for token in VOCABULARY), encoding="utf-8")
    for name, content in {"tokenizer_config": config, **files}.items():
        if content is not None:
            (path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return path / "vocab.txt"


def spec_of(path: Path, config: object = None, options: Options = OPTIONS, **files: object) -> Layout:
    return read(folder(path, config, **files), options)


def same_as(theirs: Any, ours: Layout, *texts: str) -> None:
    """Ids, special tokens, and what is cut out whole. Slow stands for compiled here: it is made at once."""
    spec = ours.spec
    tokenizer = reference.make(spec, spec.literal)
    every = {**spec.vocabulary, **spec.literal}
    special = {name: every[token] for name, token in spec.special.items()}
    assert special == {name: getattr(theirs, f"{name}_token_id") for name in ("cls", "sep", "pad", "mask", "unk")}
    assert dict(spec.literal) == {token: theirs.convert_tokens_to_ids(token) for token in theirs.unique_no_split_tokens}
    for text in (*TEXTS, *texts):
        assert theirs(text)["input_ids"] == [special["cls"], *ids(tokenizer, text), special["sep"]], text
    pair = [special["cls"], *ids(tokenizer, "ab"), special["sep"], *ids(tokenizer, "交通"), special["sep"]]
    assert theirs("ab", "交通")["input_ids"] == pair


def ids(tokenizer: reference.Reference, text: str) -> list[int]:
    return [number for number, _ in tokenizer.tokens(text)]


class TestAgainstPaddleNLP:
    """`from_pretrained` of the same folder."""

    CONFIGS: tuple[dict[str, Any], ...] = (
        {},
        {"do_lower_case": False},
        {"do_lower_case": False, "strip_accents": True},
        {"strip_accents": False},
        {"tokenize_chinese_chars": False},
        {"mask_token": "[M]"},
        {"mask_token": {"__type": "AddedToken", "content": "[M]", "lstrip": True}},
        {"bos_token": "<s>", "eos_token": "</s>", "additional_special_tokens": ["<e>", "<E2>"]},
        {"additional_special_tokens": None, "model_max_length": 512, "padding_side": "left"},
    )

    @pytest.mark.parametrize("config", CONFIGS, ids=str)
    @pytest.mark.parametrize("kind", ["ErnieTokenizer", "BertTokenizer", "RobertaChineseTokenizer"])
    def test_arguments(self, paddlenlp: Any, tmp_path: Path, kind: str, config: dict[str, Any]) -> None:
        ours = spec_of(tmp_path, {**config, "tokenizer_class": kind})
        assert ours.kind == kind
        same_as(getattr(paddlenlp, kind).from_pretrained(str(tmp_path)), ours)

    @pytest.mark.parametrize("lowercase", [True, False])
    @pytest.mark.parametrize("kind", ["ErnieTokenizer", "BertTokenizer"])
    def test_special_and_added_tokens(self, paddlenlp: Any, tmp_path: Path, kind: str, lowercase: bool) -> None:
        config = {"do_lower_case": lowercase, "tokenizer_class": kind, "additional_special_tokens": ["<e>"]}
        special = {"mask_token": {"content": "[M]"}, "additional_special_tokens": ["<E2>", {"content": "<e3>"}]}
        added = {"<New>": len(VOCABULARY), "<E2>": len(VOCABULARY) + 1, "<x2>": len(VOCABULARY) + 2}
        ours = spec_of(tmp_path, config, special_tokens_map=special, added_tokens=added)
        same_as(getattr(paddlenlp, kind).from_pretrained(str(tmp_path)), ours, "<x2>a<e3> <X2>")

    def test_what_paddlenlp_saved(self, paddlenlp: Any, tmp_path: Path) -> None:
        tokenizer = paddlenlp.ErnieTokenizer(str(folder(tmp_path / "first")), do_lower_case=False)
        tokenizer.add_special_tokens({"additional_special_tokens": ["<E2>"]})
        tokenizer.add_tokens(["<New>", "Foo"])
        tokenizer.save_pretrained(str(tmp_path / "second"))
        again = paddlenlp.ErnieTokenizer.from_pretrained(str(tmp_path / "second"))
        same_as(again, read(tmp_path / "second" / "vocab.txt", OPTIONS))

    def test_a_token_that_stands_twice(self, paddlenlp: Any, tmp_path: Path) -> None:
        file = folder(tmp_path, {"additional_special_tokens": ["<n>"], "tokenizer_class": "BertTokenizer"})
        with file.open("a", encoding="utf-8", newline="") as more:
            more.write("交\r\nfoo\n\nlast")
        ours = read(file, OPTIONS)
        same_as(paddlenlp.BertTokenizer.from_pretrained(str(tmp_path)), ours, "last <n>")
        assert ours.spec.vocabulary["交"] == len(VOCABULARY)

    @pytest.mark.parametrize("kind", sorted(layout.LIKE_ERNIE | layout.LIKE_BERT))
    def test_each_class_is_as_we_take_it(self, paddlenlp: Any, tmp_path: Path, kind: str) -> None:
        for config in ({}, {"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False}):
            ours = spec_of(tmp_path, {**config, "tokenizer_class": kind})
            same_as(getattr(paddlenlp, kind).from_pretrained(str(tmp_path)), ours)

    @given(content=st.text(st.sampled_from("ab\n\r\t\x0b\x1c\x85\u2028 交"), max_size=30))
    def test_lines_of_a_vocabulary(
        self, paddlenlp: Any, tmp_path_factory: pytest.TempPathFactory, content: str
    ) -> None:
        file = tmp_path_factory.mktemp("lines") / "vocab.txt"
        file.write_bytes(f"[UNK]\n{content}".encode())
        theirs = paddlenlp.PretrainedTokenizer.load_vocabulary(str(file), unk_token="[UNK]")
        assert layout.read_vocabulary(file.read_bytes(), "") == dict(theirs.token_to_idx)


def test_a_bare_vocabulary_is_ernies(tmp_path: Path) -> None:
    found = spec_of(tmp_path)
    assert (found.kind, found.spec.lowercase, found.spec.strip_accents) == ("ErnieTokenizer", True, True)
    assert found.spec.kept_words == frozenset()


def test_without_a_class_its_arguments_tell_it(tmp_path: Path) -> None:
    assert spec_of(tmp_path, {"do_lower_case": False}).kind == "ErnieTokenizer"
    assert spec_of(tmp_path, {"tokenize_chinese_chars": True}).kind == "BertTokenizer"


@pytest.mark.parametrize("name", ["BertTokenizerFast", "BertFastTokenizer"])
def test_fast_classes_are_read_as_the_others(tmp_path: Path, name: str) -> None:
    assert spec_of(tmp_path, {"tokenizer_class": name}).kind == "BertTokenizer"


def test_settings_win_over_files_and_the_difference_is_noted(tmp_path: Path) -> None:
    found = spec_of(tmp_path, {"do_lower_case": True}, Options(64, lowercase=False))
    assert (found.spec.lowercase, found.spec.strip_accents) == (False, False)
    assert found.notes == ("tokenizer.lowercase is false, the model's own setting is true",)
    accents = spec_of(tmp_path, None, Options(64, lowercase=True, strip_accents=False))
    assert (accents.spec.lowercase, accents.spec.strip_accents) == (True, False)
    assert "ErnieTokenizer does not know" in accents.notes[0]
    assert spec_of(tmp_path, {"tokenizer_class": "BertTokenizer"}, Options(64, strip_accents=False)).notes == ()


def test_tokens_that_paddlenlp_passes_over_are_noted(paddlenlp: Any, tmp_path: Path) -> None:
    added = {"0": {"content": "[PAD]"}, str(len(VOCABULARY)): {"content": "<E2>"}}
    ours = spec_of(tmp_path, {"tokenizer_class": "BertTokenizer", "added_tokens_decoder": added})
    same_as(paddlenlp.BertTokenizer.from_pretrained(str(tmp_path)), ours)
    assert ours.notes == (
        "tokenizer_config.json adds <E2>, which PaddleNLP does not read: put them into added_tokens.json",
    )


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"tokenizer_class": "ErnieDocTokenizer"}, r"ERNIE-Doc want \[CLS\] at the end"),
        ({"tokenizer_class": "RoFormerTokenizer"}, "RoFormerTokenizer, which is not offered"),
        ({"tokenizer_class": "BertTokenizer", "do_basic_tokenize": False}, "do_basic_tokenize"),
        ({"tokenizer_class": "BertTokenizer", "never_split": ["a"]}, "never_split"),
        ({"truncation_side": "left"}, "truncation_side"),
        ({"init_args": ["vocab.txt", True]}, "init_args"),
        ({"vocab_file": __file__}, "vocab_file"),
        ({"additional_special_tokens": "<e>"}, "additional_special_tokens"),
        ({"mask_token": None}, "lacks mask_token"),
        ({"mask_token": "[NONE]"}, r"lacks \[NONE\]"),
        ([], "no JSON object"),
    ],
    ids=str,
)
def test_what_would_not_be_the_same_is_refused_by_name(tmp_path: Path, config: object, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        spec_of(tmp_path, config)


def test_two_unknown_tokens(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="different unk_token"):
        spec_of(tmp_path, None, special_tokens_map={"unk_token": "a"})


@pytest.mark.parametrize(
    ("added", "named"), [({"<x>": 3}, f"{len(VOCABULARY)} comes next"), ({"<x>": "3"}, "must map tokens to ids")]
)
def test_added_tokens_with_wrong_ids(tmp_path: Path, added: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        spec_of(tmp_path, None, added_tokens=added)


def _drop_special(file: Path) -> None:
    file.write_text("[PAD]\n[UNK]\n[CLS]\na\n")


def _other_encoding(file: Path) -> None:
    file.write_bytes("交通".encode("gbk"))


def _empty(file: Path) -> None:
    file.write_text("")


def _not_json(file: Path) -> None:
    file.with_name("tokenizer_config.json").write_text("{")


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (_drop_special, r"lacks \[SEP\], \[MASK\]"),
        (_other_encoding, "not UTF-8"),
        (_empty, r"lacks \[CLS\]"),
        (_not_json, r"tokenizer_config\.json' is not JSON"),
    ],
)
def test_damaged_files(tmp_path: Path, damage: Callable[[Path], None], named: str) -> None:
    file = folder(tmp_path)
    damage(file)
    with pytest.raises(UsageError, match=named):
        read(file, OPTIONS)
