"""`headrace up`: ingest and training together on this machine."""

from __future__ import annotations

import click

from headrace.options import Given, configured, example


@click.command(
    "up",
    short_help="Ingest and train here, supervised, with a live view.",
    epilog=example("headrace up", "headrace up --ranks 2 --set train.stop=end"),
)
@click.option("--ranks", type=click.IntRange(min=1), help="Ranks on this machine.  [default: visible devices; CPU: 1]")
@configured
def command(given: Given, ranks: int | None) -> None:
    """Run ingest and training here, supervised, with a live view; ends when training ends.

    On a local broker, topics that are missing are made. SIGTERM and Ctrl-C finish what is under way and save first.
    """
    from headrace import development, stages
    from headrace.config import INGEST_SECTIONS, TRAINER_SECTIONS, refuse_unsupported
    from headrace.trainer.stage import ranks_group

    config = given.load().config
    refuse_unsupported(config, INGEST_SECTIONS | TRAINER_SECTIONS)
    count = ranks or stages.default_ranks()
    warning = stages.check_ranks(count, config.tokens.lanes)
    with development.tokenized(config) as tokens:
        plan = stages.rank_plan(config, development=tokens)
        stages.run(config, [stages.ingest_group(config), ranks_group(plan, count)], news=warning)
