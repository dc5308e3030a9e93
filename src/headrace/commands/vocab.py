"""`headrace vocab`: a vocabulary of one's own texts."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.options import Given, configured, example
from headrace.schemas.errors import UsageError

if TYPE_CHECKING:
    from headrace.config import Config
    from headrace.ingest.formats import Rules
    from headrace.ingest.sources.texts import Texts
    from headrace.ingest.vocabulary import Vocabulary, Words
    from headrace.schemas.errors import Reason

TOPIC_RECORDS = 2_000_000

#: The library reserves memory for a whole vocabulary before it learns, and no tokenizer takes a larger one.
MAX_SIZE = 1_000_000

_COUNT = click.IntRange(min=1, max=10**12)  # more than there is, and less than compiled code can count


@click.group(
    "vocab",
    short_help="Train a vocabulary on your texts.",
    epilog=example("headrace vocab build orders.jsonl --size 8000"),
)
def command() -> None:
    """Vocabularies for ERNIE's tokenizer."""


@command.command(
    "build",
    epilog=example(
        "headrace vocab build 'texts/*.jsonl' --size 8000",
        "headrace vocab build -c orders.yaml --size 8000 --out orders-tokenizer",
    ),
)
@click.argument("texts", nargs=-1, metavar="[TEXT...|-]")
@click.option("--size", type=click.IntRange(1, MAX_SIZE), required=True, metavar="N", help="Tokens in the vocabulary.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default="tokenizer",
    show_default=True,
    metavar="FOLDER",
    help="Where vocab.txt and tokenizer_config.json are written.",
)
@click.option("--force", is_flag=True, help="Overwrite the vocabulary that is there.")
@click.option("--cased", is_flag=True, help="Keep capital letters and accents.")
@click.option(
    "--min-frequency",
    type=_COUNT,
    default=2,
    show_default=True,
    metavar="K",
    help="A piece of several characters occurs K times at least.",
)
@click.option(
    "--limit-characters",
    type=_COUNT,
    metavar="K",
    help="Keep the K most frequent characters.  [default: all]",
)
@click.option(
    "--records",
    type=_COUNT,
    metavar="N",
    help=f"Read N records at most.  [default: all of files, {TOPIC_RECORDS} of the topic]",
)
@configured
def build(
    given: Given,
    texts: tuple[str, ...],
    size: int,
    out: Path,
    force: bool,
    cased: bool,
    min_frequency: int,
    limit_characters: int | None,
    records: int | None,
) -> None:
    """Train a WordPiece vocabulary on files (.txt, .jsonl; `-` is standard input), or on the text topic without TEXT.

    The topic is read from its start to its present end, an equal share of each partition, beside whatever else reads
    it. Records that ingest would refuse are skipped. The same texts always give the same vocabulary.
    """
    from headrace.ingest import vocabulary, vocabulary_files

    vocabulary_files.check_folder(out, force=force)
    words = vocabulary.Words(vocabulary.splitter(cased=cased))
    config = given.load_if_there() if texts else given.load().config
    tally = Tally()
    for some in _shown(_read(config, texts, records)):
        words.add(some.texts)
        tally.add(some)
    if not tally.records:
        raise UsageError(f"there is no text in {_named(config, texts)}{tally.skipped_text()}: {_cure(texts)}")
    click.echo(f"{tally.records} records read, {len(words.counts)} different words: training", err=True)
    limits = vocabulary.Limits(size, min_frequency, limit_characters)
    made = _interruptible(lambda: vocabulary.build(words, limits))
    path = vocabulary_files.write(out, made.tokens, cased=cased, force=force)
    click.echo("\n".join([f"{path}: {len(made.tokens)} tokens", *_report(tally, words, made, size)]))


@dataclass(slots=True)
class Tally:
    """What was read."""

    records: int = 0
    texts: int = 0
    skipped: Counter[Reason] = field(default_factory=Counter)

    def add(self, some: Texts) -> None:
        self.records += some.records
        self.texts += len(some.texts)
        self.skipped.update(some.skipped)

    def skipped_text(self) -> str:
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.skipped.most_common())
        return f", {self.skipped.total()} records skipped ({reasons})" if reasons else ""


def _read(config: Config, given: Sequence[str], records: int | None) -> Iterator[Texts]:
    from headrace.ingest.fields import FieldRules
    from headrace.ingest.formats import Rules
    from headrace.ingest.sources import texts as sources
    from headrace.pipeline.broker import open_broker

    rules = Rules(config.text.topic, config.text.format, FieldRules(config.text.fields, config.ingest.max_text_bytes))
    if given:
        yield from _of_files(given, rules, records)
        return
    with closing(open_broker(config.broker, config.kafka)) as broker:
        yield from sources.of_topic(broker, rules, records or TOPIC_RECORDS)


def _of_files(given: Sequence[str], rules: Rules, records: int | None) -> Iterator[Texts]:
    from headrace import publishing
    from headrace.ingest.sources import texts as sources

    names: list[str] = []
    for name in given:
        pattern = any(char in name for char in "*?[") and not Path(name).exists()
        names += publishing.matches(name, "TEXT") if pattern else [name]
    for name in dict.fromkeys(names):
        if name == publishing.STANDARD_INPUT:
            read = sources.of_pipe(sys.stdin.fileno(), rules, records)
        else:
            read = sources.of_file(Path(name), rules, "vocab build", records)
        for some in read:
            yield some
            records = None if records is None else records - some.records
        if records == 0:
            return


def _shown(read: Iterator[Texts]) -> Iterator[Texts]:
    """What is read, with a bar or lines on standard error."""
    from rich.console import Console

    from headrace import publishing
    from headrace.ingest.sending import Progress

    records: Counter[str] = Counter()
    with publishing.shown(Console(stderr=True)) as show:
        for some in read:
            yield some
            records[some.source] += some.records
            show(Progress(some.source, records[some.source], 0, some.done_bytes, some.size_bytes))


def _interruptible(build: Callable[[], Vocabulary]) -> Vocabulary:
    """Ctrl-C ends the wait for the library, which looks for no signal while it joins pieces: up to a minute."""
    made: Future[Vocabulary] = Future()

    def run() -> None:
        try:
            made.set_result(build())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is waited for
            made.set_exception(error)

    threading.Thread(target=run, name="training", daemon=True).start()
    return made.result()


def _named(config: Config, given: Sequence[str]) -> str:
    return ", ".join(given) if given else f"topic {config.text.topic!r}"


def _cure(given: Sequence[str]) -> str:
    if given:
        return "name files with a text or a JSON object a line, and the object's field with --set text.fields.text=NAME"
    return "publish texts, or name files"


def _report(tally: Tally, words: Words, made: Vocabulary, size: int) -> Iterator[str]:
    from headrace.ingest.vocabulary import SPECIAL_TOKENS

    pairs = f", {tally.texts} texts" if tally.texts != tally.records else ""
    yield f"{tally.records} records read{pairs}{tally.skipped_text()}"
    seen = len(words.characters())
    yield (
        f"{len(SPECIAL_TOKENS)} special tokens, {made.characters} of {seen} characters, "
        f"{made.inside} of them also inside words, {made.pieces} pieces"
    )
    yield f"{_percent(made.character_share)} of the text's characters are known"
    yield f"{_percent(made.word_share)} of its words are not [UNK]"
    if words.forgotten:
        yield f"{words.forgotten} rare words were not counted, for want of memory"
    if len(made.tokens) < size:
        yield f"fewer than --size {size}: no other pieces occur as often as --min-frequency"


def _percent(share: float) -> str:
    """Rounded down: 100 % means all."""
    return f"{int(share * 10_000) / 100:.2f} %"
