"""`headrace train`: the ranks of this machine."""

from __future__ import annotations

import click

from headrace.options import Given, configured, example
from headrace.schemas.errors import UsageError


@click.command(
    "train",
    short_help="The ranks of this machine.",
    epilog=example("headrace train --ranks 4", "headrace train --set train.run=seed-7 --set train.seed=7"),
)
@click.option("--ranks", type=click.IntRange(min=1), help="Ranks on this machine.  [default: visible devices; CPU: 1]")
@click.option("--run", "run_name", metavar="NAME", help="Same as --set train.run=NAME.")
@click.option(
    "--nnodes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Machines that train together: only 1 yet.",
)
@click.option("--master", metavar="HOST:PORT", help="Where the machines meet: not used yet.")
@configured
def command(given: Given, ranks: int | None, run_name: str | None, nnodes: int, master: str | None) -> None:
    """Train on the lanes, from the last checkpoint of the run; SIGTERM and Ctrl-C finish the step and save first."""
    from headrace import stages
    from headrace.config import TRAINER_SECTIONS, refuse_unsupported
    from headrace.trainer.stage import ranks_group

    if nnodes > 1 or master is not None:
        raise UsageError(
            "--nnodes: this version starts the ranks of one machine only: leave --nnodes and --master out, and raise "
            "--ranks up to tokens.lanes"
        )
    if run_name is not None:
        given = Given(given.file, (*given.overrides, f"train.run={run_name}"))
    config = given.load().config
    refuse_unsupported(config, TRAINER_SECTIONS)
    count = ranks or stages.default_ranks()
    warning = stages.check_ranks(count, config.tokens.lanes)
    stages.run(config, [ranks_group(stages.rank_plan(config), count)], news=warning)
