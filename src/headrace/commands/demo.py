"""`headrace demo`: everything at once on this machine, with no broker and no GPU."""

from __future__ import annotations

from pathlib import Path

import click

from headrace.options import as_json, debug, example


@click.command("demo", epilog=example("headrace demo", "headrace demo --json --keep demo | tail -1 | jq .accuracy"))
@click.option("--records", type=click.IntRange(min=100), default=20_000, show_default=True, help="Records to publish.")
@click.option("--rate", type=click.FloatRange(min=1), default=400.0, show_default=True, help="Records a second.")
@click.option("--ranks", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True, help="Ingest workers.")
@click.option(
    "--keep", type=click.Path(path_type=Path), metavar="DIR", help="Keep topics, checkpoints and files there."
)
@as_json
@debug
def command(records: int, rate: float, ranks: int, workers: int, keep: Path | None, as_json: bool) -> None:
    """Publish work orders at a fixed rate while ingest workers tokenize them and ranks train a small ERNIE on them.

    The texts are generated, the weights random, the topics lie in a folder. It ends by itself and then checks, from
    ledger and topics, that every record was trained once.
    """
    raise NotImplementedError
