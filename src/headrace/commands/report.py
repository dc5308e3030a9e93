"""`headrace report`: a run as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.options import Given, configured, example

if TYPE_CHECKING:
    from headrace.config import Config


@click.command(
    "report",
    short_help="A run as one HTML page.",
    epilog=example("headrace report", "headrace report seed-7 --out seed-7.html"),
)
@click.argument("run", required=False)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    help="The page.  [default: NAME-RUN.html]",
)
@configured
def command(given: Given, run: str | None, out: Path | None) -> None:
    """Write one page about a run (default: that of the configuration) from its checkpoints, to read anywhere.

    Loss, accuracy, speed, freshness, padding and waiting by step; evaluations; what became of the records; checkpoints
    and configuration. The page fetches nothing. The run may go on meanwhile: the page ends with its newest checkpoint.
    """
    from dataclasses import replace

    from headrace.commands.ledger import open_ledger
    from headrace.trainer.report import gather, page

    if run is not None:
        given = Given(given.file, (*given.overrides, f"train.run={run}"))
    loaded = given.load()
    config = loaded.config
    report = gather(open_ledger(config), config.name, config.run)
    report = replace(report, configuration=loaded.shown(), dead_letters=_dead_letters(config))
    target = out or Path(f"{config.name}-{config.run}.html")
    target.write_text(page(report), encoding="utf-8")
    click.echo(str(target))


def _dead_letters(config: Config) -> dict[str, int]:
    """By reason; none, with a word, where the broker does not answer: the page needs only the checkpoints."""
    from collections import Counter
    from contextlib import closing

    from headrace.pipeline.broker import open_broker
    from headrace.pipeline.scan import messages
    from headrace.schemas.errors import TryAgain

    topic = config.ingest.dead_letters.topic
    try:
        with closing(open_broker(config.broker, config.kafka)) as broker:
            if broker.describe(topic) is None:
                return {}
            spans = {partition: (at.first, at.end) for partition, at in broker.ends(topic).items()}
            reasons = Counter(
                (message.header("reason") or b"unknown").decode(errors="replace")
                for fetched in messages(broker, topic, spans)
                for message in fetched
            )
            return dict(reasons)
    except TryAgain as error:
        click.echo(f"dead letters are left out: {error}", err=True)
        return {}
