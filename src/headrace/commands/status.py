"""`headrace status`: where the pipe stands, from the broker alone."""

from __future__ import annotations

import json
import threading
import time

import click

from headrace.options import Given, as_json, configured, example


@click.command(
    "status",
    short_help="Where the pipe stands: positions, backlog, rates, figures.",
    epilog=example("headrace status --watch", "headrace status --json | jq .backlog_tokens"),
)
@click.option("--watch", is_flag=True, help="Look again every second until Ctrl-C.")
@as_json
@configured
def command(given: Given, watch: bool, as_json: bool) -> None:
    """Show what is published, read, trained and in a checkpoint, the backlog, the rates and the trainer's figures.

    Everything is read from the broker: no stage is asked, none needs to run. With --json --watch: one document a line.
    """
    from rich.console import Console

    from headrace import view
    from headrace import watch as watching
    from headrace.pipeline.broker import open_broker
    from headrace.pipeline.status import StatusReader, rates

    config = given.load().config
    broker = open_broker(config.broker, config.kafka)
    reader = StatusReader(broker, watching.watched(config))
    try:
        before = reader.look()
        if watch and not as_json:
            with watching.display(Console()) as shown:
                watching.follow(reader, shown, threading.Event(), shown.every_s)
        while True:
            time.sleep(watching.LOOK_S)  # rates need two looks
            status = reader.look()
            if as_json:
                click.echo(json.dumps(view.document(status, rates(before, status)), ensure_ascii=False))
            else:
                Console().print(view.panel(status, rates(before, status)))
            if not watch:
                return
            before = status
    finally:
        reader.close()
        broker.close()
