"""Tokenizers by name, folder or file. `find` says which kind is used and why, `load` gives it.

    existing folder or file     what lies there, `vocab.txt` before `tokenizer.json` before `*.model`
    built-in name of PaddleNLP  its vocabulary, from PaddleNLP's cache on this machine, else downloaded into it
    other name                  a folder of PaddleNLP's cache

A vocabulary of PaddleNLP's WordPiece classes goes to the compiled tokenizer, anything else to the library that owns it.
Libraries are imported only by `load`, and only the one that is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.ingest.config import LongText, TokenizerConfig
from headrace.ingest.tokenizers import download, layout, names
from headrace.ingest.tokenizers.base import Encoded, Options, Tokenizer
from headrace.ingest.tokenizers.layout import Layout
from headrace.schemas.errors import UsageError

__all__ = ["Encoded", "Found", "Options", "Tokenizer", "find", "load", "options"]

_VOCABULARY = "vocab.txt"
_JSON = "tokenizer.json"
_EXPECTED = f"{_VOCABULARY}, {_JSON} or a SentencePiece *.model"


@dataclass(frozen=True, slots=True)
class Found:
    """A tokenizer that is not loaded yet."""

    kind: str  # what does the work: the compiled WordPiece, or a library
    file: Path
    why: str
    case: str  # "lower case", "cased", or that the file says it
    load: Callable[[], Tokenizer]
    notes: tuple[str, ...] = ()  # what may surprise: settings against files, files that are not used


def load(
    name_or_path: str,
    *,
    max_tokens: int,
    lowercase: bool | None = None,
    strip_accents: bool | None = None,
    special_in_text: bool = True,
    split: bool = False,
    words: str = "",
) -> Tokenizer:
    """Load the tokenizer of a name, folder or file; the settings are those of `Options`.

    Raises UsageError when there is none, when it is not offered or damaged, or when a setting is not available with it;
    StoreAway when its vocabulary cannot be downloaded now.
    """
    return find(name_or_path, Options(max_tokens, lowercase, strip_accents, special_in_text, split, words)).load()


def options(settings: TokenizerConfig) -> Options:
    """What the configuration decides."""
    return Options(
        max_tokens=settings.max_tokens,
        lowercase=settings.lowercase,
        strip_accents=settings.strip_accents,
        special_in_text=settings.special_in_text,
        split=settings.long_text is LongText.SPLIT,
        words=settings.words,
    )


def find(name_or_path: str, options: Options) -> Found:
    """Which tokenizer that is; downloads the vocabulary of a built-in name. Raises as `load`, but for damaged files."""
    if not name_or_path:
        raise UsageError(f"tokenizer.path (or train.model) is not set: name a model, or a folder with {_EXPECTED}")
    given = Path(name_or_path).expanduser()
    if given.is_file():
        return _of_file(given, options)
    if given.is_dir():
        return _of_folder(given, options)
    builtin = names.BUILTIN.get(name_or_path)
    if builtin is not None:
        return _of_name(name_or_path, builtin, options)
    cached = download.cache_folder() / name_or_path
    if cached.is_dir() and any(_candidates(cached)):
        return _of_folder(cached, options)
    meant = " or ".join(names.similar(name_or_path))
    raise UsageError(
        f"tokenizer.path: {name_or_path!r} is no folder, no file and no built-in name"
        f"{f' (did you mean {meant}?)' if meant else ''}: name a folder with {_EXPECTED}. PaddleNLP may have one: "
        f"python -c \"from paddlenlp.transformers import AutoTokenizer as T; T.from_pretrained('{name_or_path}')"
        ".save_pretrained('tokenizer')\", then set tokenizer.path to ./tokenizer"
    )


def _of_name(name: str, builtin: names.Builtin, options: Options) -> Found:
    file = download.fetched(name, builtin.path, lambda content: layout.check_builtin(content, builtin.path))
    read = layout.read_builtin(file, builtin.kind, lowercase=builtin.lowercase, options=options)
    return _wordpiece(file, read, options, f"{name} is a name of PaddleNLP's {builtin.kind}")


def _of_folder(folder: Path, options: Options) -> Found:
    file = next(_candidates(folder), None)
    if file is None:
        raise UsageError(f"tokenizer.path: the folder {str(folder)!r} holds no {_EXPECTED}: copy the model's there")
    if file.name != _VOCABULARY:
        return _of_file(file, options)
    kind = layout.tokenizer_class(layout.read_json(folder / layout.CONFIG))
    others = list(_candidates(folder))[1:]
    if others and not layout.is_wordpiece(kind):
        return _of_file(others[0], options, f"its {_VOCABULARY} is of {kind}, which the compiled tokenizer does not do")
    models = [other.name for other in others if other.suffix == ".model"]
    if models and not kind:
        raise UsageError(
            f"tokenizer.path: the folder {str(folder)!r} holds {_VOCABULARY} and {models[0]}, and no {layout.CONFIG} "
            "that names a tokenizer_class: set tokenizer.path to the file that is meant"
        )
    unused = tuple(f"{other.name} is not used: PaddleNLP does not read it for this class" for other in others)
    return _of_file(file, options, notes=unused)


def _candidates(folder: Path) -> Iterator[Path]:
    """Files that define a tokenizer, the first of them before the others."""
    yield from (folder / name for name in (_VOCABULARY, _JSON) if (folder / name).is_file())
    yield from sorted(folder.glob("*.model"))


def _of_file(file: Path, options: Options, why: str = "", notes: tuple[str, ...] = ()) -> Found:
    if file.suffix == ".json":
        why = why or f"there is a {file.name} only"
        why += ": through the library, because its pipeline can be any"
        return Found("tokenizers", file, why, "case as the file says", lambda: _huggingface(file, options), notes)
    if file.suffix == ".model":
        why = why or f"{file.name} is a SentencePiece model"
        case = "lower case" if options.lowercase else "case as the model says"
        return Found("sentencepiece", file, f"{why}: through its library", case, lambda: _model(file, options), notes)
    if file.suffix == ".txt":
        read = layout.read(file, options)
        return _wordpiece(file, read, options, f"{file.name} of {read.kind}", notes)
    raise UsageError(f"tokenizer.path: {str(file)!r} is not a tokenizer: {_EXPECTED} is expected")


def _wordpiece(file: Path, read: Layout, options: Options, why: str, notes: tuple[str, ...] = ()) -> Found:
    case = "lower case" if read.spec.lowercase else "cased"
    if read.spec.strip_accents != read.spec.lowercase:
        case += ", without accents" if read.spec.strip_accents else ", with accents"
    set_here = options.lowercase is not None or options.strip_accents is not None
    equal = "as PaddleNLP's, with your settings" if set_here and read.notes else "the ids of PaddleNLP's"
    return Found(
        "compiled WordPiece", file, f"{why}: {equal}", case, lambda: _compiled(read, options), (*read.notes, *notes)
    )


def _compiled(read: Layout, options: Options) -> Tokenizer:
    from headrace.ingest.tokenizers.wordpiece import tokenizer

    return tokenizer.make(read.spec, options)


def _huggingface(file: Path, options: Options) -> Tokenizer:
    from headrace.ingest.tokenizers import huggingface

    return huggingface.make(file, options)


def _model(file: Path, options: Options) -> Tokenizer:
    from headrace.ingest.tokenizers import sentencepiece

    return sentencepiece.make(file, options)
