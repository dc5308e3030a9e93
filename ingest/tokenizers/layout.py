"""The files around a vocabulary, read as PaddleNLP's `from_pretrained` reads them.

    vocab.txt                 one token a line, the line number its id
    tokenizer_config.json     tokenizer class and its arguments
    special_tokens_map.json   special tokens, over those of the class's arguments
    added_tokens.json         tokens behind the vocabulary

Hugging Face writes the same files. Special tokens that the vocabulary lacks get the ids behind it, in the order in
which PaddleNLP adds them. What the compiled tokenizer would not do as the class does it is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.ingest.tokenizers.base import Options
from headrace.ingest.tokenizers.wordpiece.spec import WordPieceSpec
from headrace.schemas.errors import UsageError

CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
ADDED_TOKENS = "added_tokens.json"

# PaddleNLP's classes with [CLS] A [SEP] B [SEP] over its BasicTokenizer and WordpieceTokenizer. Those like
# ErnieTokenizer take no argument but `do_lower_case`; those like BertTokenizer take more, and match special tokens as
# whole words too.
LIKE_ERNIE = frozenset({"ErnieTokenizer", "ErnieGramTokenizer", "ErnieViLTokenizer"})
LIKE_BERT = frozenset(
    {
        "BertTokenizer", "RobertaChineseTokenizer", "ConvBertTokenizer", "DistilBertTokenizer", "ElectraTokenizer",
        "MegatronBertTokenizer", "MobileBertTokenizer", "NystromformerTokenizer", "PPMiniLMTokenizer",
        "TinyBertTokenizer",
    }
)  # fmt: skip

#: Name of a special token here -> in the class's arguments.
SPECIAL = {"cls": "cls_token", "sep": "sep_token", "pad": "pad_token", "mask": "mask_token", "unk": "unk_token"}
_DEFAULT = {
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "mask_token": "[MASK]",
    "unk_token": "[UNK]",
}
# In the order in which PaddleNLP adds those that the vocabulary lacks.
_ATTRIBUTES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_MORE = "additional_special_tokens"
_ONLY_BERT = ("do_basic_tokenize", "never_split", "strip_accents", "tokenize_chinese_chars")


@dataclass(frozen=True, slots=True)
class Layout:
    """What the files say."""

    kind: str  # PaddleNLP's class
    spec: WordPieceSpec
    notes: tuple[str, ...] = ()  # where settings and files differ


def tokenizer_class(config: Mapping[str, Any]) -> str:
    """The class that a tokenizer_config.json names, without "Fast"; empty where it names none."""
    return str(config.get("init_class") or config.get("tokenizer_class") or "").replace("Fast", "")


def is_wordpiece(kind: str) -> bool:
    return not kind or kind in LIKE_ERNIE or kind in LIKE_BERT


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file, empty where there is no file. Raises UsageError for anything else."""
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_bytes())
    except ValueError as error:
        raise UsageError(f"tokenizer.path: {str(file)!r} is not JSON: {error}: repair or remove it") from error
    if not isinstance(content, dict):
        raise UsageError(f"tokenizer.path: {str(file)!r} holds no JSON object: repair or remove it")
    return content


def read(file: Path, options: Options) -> Layout:
    """The tokenizer of a vocab.txt and the files beside it. Raises UsageError when it would not be PaddleNLP's."""
    config = read_json(file.with_name(CONFIG))
    kind = tokenizer_class(config)
    if not kind:
        kind = "BertTokenizer" if any(key in config for key in _ONLY_BERT) else "ErnieTokenizer"
    _refuse(file, kind, config)
    special, more = _special(config, read_json(file.with_name(SPECIAL_TOKENS)), file)
    return _layout(file, kind, config, special, more, options)


def read_builtin(file: Path, kind: str, *, lowercase: bool, options: Options) -> Layout:
    """The tokenizer of a built-in name: PaddleNLP reads no other file than its vocabulary."""
    return _layout(file, kind, {"do_lower_case": lowercase}, _DEFAULT, [], options)


def check_builtin(content: bytes, where: str) -> None:
    """Raise UsageError for content that is no vocabulary with all five special tokens."""
    _require_special(read_vocabulary(content, where), _DEFAULT, where)


def read_vocabulary(content: bytes, where: str) -> dict[str, int]:
    """Token -> id; of a token that stands twice the last counts, as in PaddleNLP. Raises UsageError if not UTF-8."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"tokenizer.path: the vocabulary {where!r} is not UTF-8: {error}") from error
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if not lines[-1]:
        lines.pop()
    return {token: number for number, token in enumerate(lines)}


def token_names(fields: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by argument name. Both `"[CLS]"` and `{"content": "[CLS]", ...}` are written; null is none."""
    named = {key: _content(fields[key]) for key in _ATTRIBUTES if key in fields}
    return {key: token for key, token in named.items() if token is not None}


def added_tokens(file: Path) -> dict[str, int]:
    """Token -> id of the added_tokens.json beside a file."""
    stated = read_json(file.with_name(ADDED_TOKENS))
    if not all(isinstance(number, int) for number in stated.values()) or not all(map(_is_token, stated)):
        raise UsageError(f"tokenizer.path: {ADDED_TOKENS} beside {str(file)!r} must map tokens to ids: correct it")
    return stated


def _is_token(text: str) -> bool:
    """Not empty, and something that UTF-8 can hold."""
    return bool(text) and text.encode(errors="replace").decode() == text


def refuse_compiled_only(options: Options, what: str) -> None:
    """Raise UsageError for settings that only the compiled tokenizer offers."""
    for key, asked in (
        ("long_text: split", options.split),
        ("words", bool(options.words)),
        ("strip_accents", options.strip_accents is not None),
    ):
        if asked:
            raise UsageError(f"tokenizer.{key} is not available with {what}: only with a vocab.txt; remove the setting")


def _layout(
    file: Path, kind: str, config: Mapping[str, Any], special: Mapping[str, str], more: list[str], options: Options
) -> Layout:
    vocabulary = read_vocabulary(file.read_bytes(), str(file))
    _require_special(vocabulary, special, str(file))
    like_bert = kind in LIKE_BERT
    stated = bool(config.get("do_lower_case", True))
    lowercase = stated if options.lowercase is None else options.lowercase
    accents = options.strip_accents
    if accents is None:
        accents = config.get("strip_accents") if like_bert else None
    kept = [special[key] for key in _ATTRIBUTES if key in special] + more
    added = [
        (token.lower() if lowercase and token not in kept else token, number)
        for token, number in sorted(added_tokens(file).items(), key=lambda item: item[1])
    ]
    spec = WordPieceSpec(
        vocabulary=vocabulary,
        special={name: special[key] for name, key in SPECIAL.items()},
        lowercase=lowercase,
        strip_accents=lowercase if accents is None else bool(accents),
        split_cjk=bool(config.get("tokenize_chinese_chars", True)) if like_bert else True,
        literal=_literal(file, vocabulary, special["unk_token"], kept, added),
        kept_words=frozenset(kept) if like_bert else frozenset(),
    )
    return Layout(kind, spec, tuple(_notes(kind, stated, options, _unread(config, spec))))


def _special(config: Mapping[str, Any], overriding: Mapping[str, Any], file: Path) -> tuple[dict[str, str], list[str]]:
    """Special tokens by argument name, and the additional ones."""
    given = {key: _content(config[key]) for key in _ATTRIBUTES if key in config}
    named = {**_DEFAULT, **given, **{key: _content(overriding[key]) for key in _ATTRIBUTES if key in overriding}}
    if named["unk_token"] != given.get("unk_token", _DEFAULT["unk_token"]):
        raise UsageError(
            f"tokenizer.path: {SPECIAL_TOKENS} and {CONFIG} beside {str(file)!r} name different unk_tokens: correct one"
        )
    found = overriding.get(_MORE, config.get(_MORE)) or []
    if not isinstance(found, list):
        raise UsageError(f"tokenizer.path: {_MORE} beside {str(file)!r} is no list: correct it")
    more = [token for token in map(_content, found) if token is not None]
    return {key: token for key, token in named.items() if token is not None}, more


def _content(token: object) -> str | None:
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) and content else None


def _require_special(vocabulary: Mapping[str, int], special: Mapping[str, str], where: str) -> None:
    missing = [special.get(key, key) for key in SPECIAL.values() if special.get(key) not in vocabulary]
    if missing:
        raise UsageError(
            f"tokenizer.path: the vocabulary {where!r} lacks {', '.join(missing)}: one token a line is expected, "
            "these among them"
        )


def _literal(
    file: Path, vocabulary: Mapping[str, int], unk: str, special: list[str], added: list[tuple[str, int]]
) -> dict[str, int]:
    """Tokens that are cut out of a text as they stand. New ones get the ids behind the vocabulary's tokens.

    As in PaddleNLP that is behind their *number*: where a token stands twice, below the greatest id.
    """
    behind: dict[str, int] = {}

    def add(token: str) -> None:
        known = behind.get(token, vocabulary.get(token, vocabulary[unk]))
        if token != unk and known == vocabulary[unk]:
            behind[token] = len(vocabulary) + len(behind)

    for token, number in added:
        if number != len(vocabulary) + len(behind):
            raise UsageError(
                f"tokenizer.path: {ADDED_TOKENS} beside {str(file)!r} gives {token!r} the id {number}, "
                f"{len(vocabulary) + len(behind)} comes next: PaddleNLP refuses it too; correct it"
            )
        add(token)
    for token in special:
        add(token)
    literal = {token: vocabulary[token] for token in special if token in vocabulary}
    return {**literal, **behind}


def _refuse(file: Path, kind: str, config: Mapping[str, Any]) -> None:
    """What the compiled tokenizer would do in another way than the class."""
    beside = f"tokenizer.path: {CONFIG} beside {str(file)!r}"
    if kind == "ErnieDocTokenizer":
        raise UsageError(f"{beside} names {kind}: the models of ERNIE-Doc want [CLS] at the end, which is not offered")
    if not is_wordpiece(kind):
        known = ", ".join(sorted(LIKE_ERNIE | LIKE_BERT))
        raise UsageError(f"{beside} names {kind}, which is not offered over a vocab.txt; those that are: {known}")
    if config.get("truncation_side", "right") != "right":
        raise UsageError(f"{beside} sets truncation_side: long texts are cut at their end only; remove it")
    if config.get("init_args"):
        raise UsageError(f"{beside} holds init_args, which PaddleNLP 2.8.1 cannot read: name the arguments instead")
    other = config.get("vocab_file")
    if isinstance(other, str) and Path(other).is_file() and not Path(other).samefile(file):
        raise UsageError(f"{beside} sets vocab_file to {other!r}, which PaddleNLP would read: remove it there")
    if kind in LIKE_BERT:
        if not config.get("do_basic_tokenize", True):
            raise UsageError(f"{beside} sets do_basic_tokenize to false, which is not offered: remove it there")
        if config.get("never_split"):
            raise UsageError(f"{beside} sets never_split, which is not offered: remove it there")


def _unread(config: Mapping[str, Any], spec: WordPieceSpec) -> list[str]:
    """Tokens that newer files of Hugging Face add in tokenizer_config.json alone, which PaddleNLP 2.8.1 passes over."""
    tokens = map(_content, dict(config.get("added_tokens_decoder") or {}).values())
    return [token for token in tokens if token and token not in spec.vocabulary and token not in spec.literal]


def _notes(kind: str, stated: bool, options: Options, unread: list[str]) -> Iterator[str]:
    if options.lowercase not in (None, stated):
        yield f"tokenizer.lowercase is {options.lowercase}, the model's own setting is {stated}".lower()
    if options.strip_accents is not None and kind in LIKE_ERNIE:
        yield f"tokenizer.strip_accents is set, which PaddleNLP's {kind} does not know: ids differ from its own"
    if unread:
        yield f"{CONFIG} adds {', '.join(unread[:3])}, which PaddleNLP does not read: put them into {ADDED_TOKENS}"
