"""`headrace demo`: everything at once on this machine, with no broker and no GPU."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from headrace.options import as_json, debug, example
from headrace.schemas.errors import EXIT_FAILED, UsageError


@click.command(
    "demo",
    short_help="Everything at once on this machine: no broker, no GPU.",
    epilog=example("headrace demo", "headrace demo --json --keep demo | tail -1 | jq .accuracy"),
)
@click.option("--records", type=click.IntRange(min=100), default=20_000, show_default=True, help="Records to publish.")
@click.option("--rate", type=click.FloatRange(min=1), default=250.0, show_default=True, help="Records a second.")
@click.option("--ranks", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True, help="Ingest workers.")
@click.option(
    "--keep",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Keep everything there: topics, texts, configuration, log.",
)
@as_json
@debug
@click.pass_context
def command(
    context: click.Context, records: int, rate: float, ranks: int, workers: int, keep: Path | None, as_json: bool
) -> None:
    """Publish work orders at a fixed rate while ingest workers tokenize them and ranks train a small ERNIE on them.

    The texts are generated, the weights random, the topics lie in a temporary folder of which only the checkpoints stay
    (--keep DIR keeps all of it, to look around with the other verbs). It ends by itself and then checks, from
    ledger and topics, that every record was trained once.
    """
    from headrace import demo, demo_report, stages
    from headrace.demo_text import NEW_SENTENCES

    began = time.monotonic()
    scale = demo.Scale(records, rate, ranks, workers)
    with _folder(keep) as folder:
        config = demo.prepare(folder, scale)
        demo.run(config, folder, scale)
        report = demo_report.measure(config)
        with stages.apart(folder / demo.LOG_FILE):
            classes = demo_report.classify(report, NEW_SENTENCES)
    wall_s = time.monotonic() - began
    if as_json:
        click.echo(json.dumps(demo_report.as_json(report, ranks, classes, wall_s), ensure_ascii=False))
    else:
        sentences = dict(zip(NEW_SENTENCES, classes, strict=True))
        click.echo("\n".join(demo_report.lines(report, ranks, sentences, wall_s)))
    if not report.complete:
        context.exit(EXIT_FAILED)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """Where everything lies. Without `keep` only the checkpoints stay, in the system's folder for temporary files."""
    if keep is not None:
        if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
            raise UsageError(f"--keep: {keep} is there and not empty: name a new folder")
        yield keep
        return
    folder = Path(tempfile.mkdtemp(prefix="headrace-demo-"))
    try:
        yield folder
    except Exception:
        click.echo(f"headrace: the demo failed; its log and topics are in {folder}", err=True)
        raise
    except KeyboardInterrupt:
        shutil.rmtree(folder)
        raise
    for entry in folder.iterdir():
        if entry.is_file():
            entry.unlink()
        elif entry.name != "checkpoints":
            shutil.rmtree(entry)
