"""Tokenizers side by side: each a function without arguments over texts of its own, measured in alternating rounds.

All of them run in this thread. Slow ones get fewer texts, which changes no rate; fast ones run several times a round.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

MAX_TOKENS = 512
ROUND_S = 0.2
FEW = 1500
FEWER = 400


@dataclass(frozen=True, slots=True)
class Contestant:
    """`run` goes once over `texts` texts of `size` bytes in UTF-8."""

    name: str
    run: Callable[[], object]
    texts: int
    size: int


@dataclass(frozen=True, slots=True)
class Rate:
    """What a contestant did, and per round the seconds of one pass."""

    contestant: Contestant
    took_s: tuple[float, ...]

    @property
    def texts_s(self) -> float:
        return self.contestant.texts / statistics.median(self.took_s)

    @property
    def mb_s(self) -> float:
        return self.contestant.size / statistics.median(self.took_s) / 1e6

    def share_of(self, other: Rate) -> float:
        """Of the other's bytes a second, round by round, for a machine's speed drifts."""
        rounds = zip(self.took_s, other.took_s, strict=True)
        scale = self.contestant.size / other.contestant.size
        return statistics.median(scale * theirs / mine for mine, theirs in rounds)


def measure(contestants: list[Contestant], rounds: int) -> dict[str, Rate]:
    """By name. In each round every one has its turn; who begins changes from round to round."""
    passes = {one.name: _passes(one) for one in contestants}
    took_s: dict[str, list[float]] = {one.name: [] for one in contestants}
    for number in range(rounds):
        turn = number % len(contestants)
        for one in contestants[turn:] + contestants[:turn]:
            began = time.perf_counter()
            for _ in range(passes[one.name]):
                one.run()
            took_s[one.name].append((time.perf_counter() - began) / passes[one.name])
    return {one.name: Rate(one, tuple(took_s[one.name])) for one in contestants}


def _passes(one: Contestant) -> int:
    one.run()  # compiled, loaded, cached
    began = time.perf_counter()
    one.run()
    return max(1, round(ROUND_S / (time.perf_counter() - began)))


def _size(texts: list[str]) -> int:
    return sum(len(text.encode()) for text in texts)


def decoding(texts: list[str]) -> Iterator[Contestant]:
    """Python's own UTF-8 decoder: nothing that reads text as `str` is faster."""
    each = [text.encode() for text in texts]
    joined = b"".join(each)
    yield Contestant("bytes.decode(), joined", joined.decode, len(texts), len(joined))
    yield Contestant("bytes.decode(), each text", lambda: [part.decode() for part in each], len(texts), len(joined))


def ours(name: str, folder: Path, texts: list[str], **settings: Any) -> Contestant:
    """From Arrow strings to Arrow lists of ids."""
    from headrace.ingest.tokenizers import load

    tokenizer = load(str(folder), max_tokens=MAX_TOKENS, **settings)
    array = pa.array(texts, pa.string())
    return Contestant(name, lambda: tokenizer.encode(array, None), len(texts), _size(texts))


def others(folder: Path, texts: list[str]) -> Iterator[Contestant]:
    """Those that are installed; each as its own documents say that it is fastest."""
    if importlib.util.find_spec("flash_tokenizer"):
        yield _flash(folder, texts)
    if importlib.util.find_spec("blingfire"):
        yield _blingfire(texts[: 10 * FEW])
    yield _huggingface(folder, texts[:FEW])
    yield _paddlenlp(folder, texts[:FEWER])


def _flash(folder: Path, texts: list[str]) -> Contestant:
    from flash_tokenizer import BertTokenizerFlash

    inner = BertTokenizerFlash(str(folder / "vocab.txt"), do_lower_case=True, model_max_length=MAX_TOKENS).tokenizer
    return Contestant(
        "flash-tokenizer", lambda: inner.batch_encode(texts, "longest", MAX_TOKENS, False), len(texts), _size(texts)
    )


def _huggingface(folder: Path, texts: list[str]) -> Contestant:
    from tokenizers import BertWordPieceTokenizer

    inner = BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=True)._tokenizer
    inner.enable_truncation(MAX_TOKENS)
    return Contestant("Hugging Face tokenizers", lambda: inner.encode_batch_fast(texts), len(texts), _size(texts))


def _paddlenlp(folder: Path, texts: list[str]) -> Contestant:
    from paddlenlp.transformers import ErnieTokenizer

    inner = ErnieTokenizer.from_pretrained(str(folder))
    return Contestant(
        "PaddleNLP ErnieTokenizer",
        lambda: [inner(text, max_length=MAX_TOKENS, truncation=True)["input_ids"] for text in texts],
        len(texts),
        _size(texts),
    )


def _blingfire(texts: list[str]) -> Contestant:
    """With the vocabulary of BERT for Chinese that comes inside its package: it cannot take another."""
    import blingfire

    model = blingfire.load_model(str(Path(blingfire.__file__).with_name("bert_chinese.bin")))
    return Contestant(
        "BlingFire",
        lambda: [blingfire.text_to_ids(model, text, MAX_TOKENS, 100, True) for text in texts],
        len(texts),
        _size(texts),
    )


def jieba_cut(texts: list[str]) -> Contestant:
    import logging

    import jieba

    jieba.setLogLevel(logging.WARNING)
    sample = texts[:FEW]
    return Contestant("jieba.lcut", lambda: [jieba.lcut(text) for text in sample], len(sample), _size(sample))
