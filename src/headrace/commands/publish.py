"""`headrace publish`: files to the text topic."""

from __future__ import annotations

from contextlib import closing

import click

from headrace.options import Given, configured, example
from headrace.schemas.errors import TryAgain


@click.command(
    "publish",
    short_help="Files or standard input to the text topic.",
    epilog=example("headrace publish orders.jsonl", "zcat old/*.gz | headrace publish - --rate 500"),
)
@click.argument("files", nargs=-1, metavar="[FILE...|-]")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="At most N records a second.")
@click.option("--again", is_flag=True, help="Publish from the beginning, also what was published before.")
@configured
def command(given: Given, files: tuple[str, ...], rate: float | None, again: bool) -> None:
    """Publish records from files (`-` is standard input) to the text topic; without FILE those in `text.files`.

    What was published of a file is remembered in the broker: a publish that was interrupted goes on where it was.
    """
    from rich.console import Console

    from headrace import publishing
    from headrace.config import refuse_unsupported
    from headrace.pipeline.broker import open_broker

    config = given.load().config
    if not files:
        refuse_unsupported(config, {"text"})
    order = publishing.Order(publishing.sources_of(config.text, files), rate, again)
    finished = 0
    with closing(open_broker(config.broker, config.kafka)) as broker:
        publishing.make_local_topic(broker, config.text)
        for done in publishing.publish_all(broker, config.text, order, Console(stderr=True)):
            earlier = f", {done.earlier_lines} lines were done before" if done.earlier_lines else ""
            empty = f", {done.empty} empty lines left out" if done.empty else ""
            stopped = "" if done.finished else ", stopped before the end"
            click.echo(f"{done.source}: {done.lines} records published{earlier}{empty}{stopped}")
            finished += done.finished
    if finished < len(order.sources):
        raise TryAgain("publish was stopped before the end: the same command goes on from there")
