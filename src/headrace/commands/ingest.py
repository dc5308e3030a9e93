"""`headrace ingest`: the workers of this machine."""

from __future__ import annotations

import click

from headrace.options import Given, configured, example


@click.command(
    "ingest",
    short_help="The ingest workers of this machine.",
    epilog=example("headrace ingest", "headrace ingest --workers 8"),
)
@click.option("--workers", type=click.IntRange(min=1), help="Same as --set ingest.workers=N.")
@configured
def command(given: Given, workers: int | None) -> None:
    """Tokenize the text topic into the lanes, until SIGTERM or Ctrl-C: workers commit what they have read, then end.

    Start it on as many machines as you like: the workers of all of them share the partitions out.
    """
    from headrace import stages
    from headrace.config import INGEST_SECTIONS, refuse_unsupported

    if workers is not None:
        given = Given(given.file, (*given.overrides, f"ingest.workers={workers}"))
    config = given.load().config
    refuse_unsupported(config, INGEST_SECTIONS)
    stages.run(config, [stages.ingest_group(config)])
