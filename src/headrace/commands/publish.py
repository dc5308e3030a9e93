"""`headrace publish`: files to the text topic."""

from __future__ import annotations

import click

from headrace.options import Given, configured, example


@click.command(
    "publish", epilog=example("headrace publish orders.jsonl", "zcat old/*.gz | headrace publish - --rate 500")
)
@click.argument("files", nargs=-1, metavar="[FILE...|-]")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="At most N records a second.")
@click.option("--again", is_flag=True, help="Publish from the beginning, also what was published before.")
@configured
def command(given: Given, files: tuple[str, ...], rate: float | None, again: bool) -> None:
    """Publish records from files (`-` is standard input) to the text topic; without FILE those in `text.files`.

    What was published of a file is remembered in the broker: a publish that was interrupted goes on where it was.
    """
    raise NotImplementedError
