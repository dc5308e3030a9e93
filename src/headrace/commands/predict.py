"""`headrace predict`: texts to labels."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.options import Given, configured, example

if TYPE_CHECKING:
    from headrace.config import Config
    from headrace.ingest.formats import Rules
    from headrace.ingest.sending import Progress
    from headrace.pipeline.topics import Message
    from headrace.predicting import Prediction


@click.command(
    "predict",
    short_help="Texts to labels.",
    epilog=example(
        "headrace predict workorders-main-2000-onnx new.jsonl --json > labels.jsonl",
        "echo '路灯不亮' | headrace predict checkpoints/workorders/main",
    ),
)
@click.argument("model")
@click.argument("files", nargs=-1, metavar="[FILE...|-]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, with the probability of every class.")
@configured
def command(given: Given, model: str, files: tuple[str, ...], as_json: bool) -> None:
    """Name the class of every line: LABEL, its probability and the text, separated by tabs.

    MODEL is a folder that `headrace export` made, or the folder of a checkpoint or a run. FILE is .txt (a text a line)
    or .jsonl (an object a line, fields as text.fields says); `-`, or no file, is standard input. There is one line for
    every line of the input, in its order; one that holds no text has no label and says why.
    """
    from headrace import predicting
    from headrace.ingest.sending import Progress

    config = given.load_if_there()
    show = _as_json if as_json else _as_text
    errors = 0
    with ExitStack() as stack:
        inputs = [_input(name, config, stack) for name in dict.fromkeys(files or ("-",))]
        predictor = stack.enter_context(predicting.opened(model))
        show_progress = stack.enter_context(_progress())
        for each in inputs:
            for messages, done_bytes in each.runs:
                found = list(predictor.predict(messages, each.rules))
                errors += sum(prediction.error is not None for prediction in found)
                click.echo("\n".join(show(each.name, predictor.classes, prediction) for prediction in found))
                show_progress(Progress(each.name, messages[-1].offset, 0, done_bytes, each.size_bytes))
    if errors:
        click.echo(f"{errors} lines hold no text that can be used", err=True)


@dataclass(frozen=True, slots=True)
class Input:
    """One file, or standard input: its lines as messages, with the byte position behind each run of them."""

    name: str
    rules: Rules
    runs: Iterator[tuple[list[Message], int]]
    size_bytes: int | None


def _input(name: str, config: Config, stack: ExitStack) -> Input:
    from headrace.ingest.sources import files, lines, texts
    from headrace.predicting import rules_of
    from headrace.publishing import STANDARD_INPUT
    from headrace.schemas.record import TextFormat

    fields, most = config.text.fields, config.ingest.max_text_bytes
    if name == STANDARD_INPUT:
        form: TextFormat = TextFormat.AUTO if config.text.format is TextFormat.ARROW else config.text.format
        name = "standard input"
        read = lines.lines(name, lines.pipe_chunks(sys.stdin.fileno(), texts.PIPE_WAIT_S), texts.MAX_LINE_BYTES)
        return Input(name, rules_of(fields, form, most), texts.runs(name, read, blank=True), None)
    path = Path(name)
    form_of_file = TextFormat(files.file_format(path, "predict"))
    file = stack.enter_context(files.open_file(path))
    read = lines.lines(name, lines.file_chunks(file), texts.MAX_LINE_BYTES)
    return Input(name, rules_of(fields, form_of_file, most), texts.runs(name, read, blank=True), path.stat().st_size)


@contextmanager
def _progress() -> Iterator[Callable[[Progress], None]]:
    """A bar on standard error, unless the labels themselves go to the terminal."""
    from rich.console import Console

    from headrace import publishing

    if sys.stdout.isatty():
        yield lambda _: None
        return
    with publishing.shown(Console(stderr=True)) as show:
        yield show


def _as_text(_: str, classes: tuple[str, ...], found: Prediction) -> str:
    if found.error is not None:
        return f"\t\t{found.error}"
    best = max(found.probabilities)
    return f"{','.join(found.labels)}\t{best:.4f}\t{' '.join(found.text.split())}"


def _as_json(name: str, classes: tuple[str, ...], found: Prediction) -> str:
    fields: dict[str, object] = {"file": name, "line": found.line}
    if found.error is not None:
        fields["error"] = found.error
    else:
        named = dict(zip(classes, found.probabilities, strict=True))
        fields |= {"label": found.labels[0], "probabilities": named}
    return json.dumps(fields, ensure_ascii=False)
