"""`headrace bench`: what this machine can do with the configured lanes, beside the run and without touching it."""

from __future__ import annotations

import json
from typing import Any

import click

from headrace.options import Given, as_json, configured, example


@click.group("bench", short_help="Measure: feed.", epilog=example("headrace bench feed"))
def command() -> None:
    """Measure on this machine, over the configured lanes. No cursor and no checkpoint of a run is moved."""


@command.command("feed", epilog=example("headrace bench feed", "headrace bench feed --ranks 8 --need 250000"))
@click.option("--ranks", type=click.IntRange(min=1), default=1, show_default=True, help="Measure one rank of so many.")
@click.option("--seconds", type=click.FloatRange(min=0.1), default=20.0, show_default=True, help="Longest measurement.")
@click.option("--need", type=click.FloatRange(min=0), help="Tokens/s that one of your devices trains: is it fed?")
@as_json
@configured
def feed(given: Given, ranks: int, seconds: float, need: float | None, as_json: bool) -> None:
    """Lanes to batches without a model: what one rank is fed with. Will it feed your GPUs?"""
    from contextlib import closing

    from headrace import stages
    from headrace.pipeline.broker import open_broker
    from headrace.trainer.feed import feed as measure

    config = given.load().config
    stages.check_ranks(ranks, config.tokens.lanes)
    with closing(open_broker(config.broker, config.kafka)) as broker:
        fed = measure(stages.rank_plan(config), broker, ranks, seconds)
    enough = None if need is None else fed.tokens_per_s >= need
    if as_json:
        figures: dict[str, Any] = {
            "ranks": fed.ranks,
            "steps": fed.steps,
            "seconds": round(fed.seconds, 3),
            "rows_per_s": round(fed.rows_per_s, 1),
            "tokens_per_s": round(fed.tokens_per_s, 1),
            "padding_share": round(fed.padding_share, 4),
            "enough": enough,
        }
        click.echo(json.dumps(figures))
        return
    click.echo(
        f"one rank of {fed.ranks} is fed with {fed.rows_per_s:,.0f} rows/s, {fed.tokens_per_s:,.0f} tokens/s; "
        f"{fed.padding_share:.1%} of its batches is padding ({fed.steps} steps in {fed.seconds:.1f} s)"
    )
    if need is not None:
        word = "enough" if enough else "not enough"
        click.echo(
            f"{word} for a device that trains {need:,.0f} tokens/s: {fed.tokens_per_s / max(need, 1e-9):.1f} times"
        )
