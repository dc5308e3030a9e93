"""`headrace train`: the ranks of this machine, alone or with those of others."""

from __future__ import annotations

import click

from headrace.options import Given, configured, example


@click.command(
    "train",
    short_help="The ranks of this machine.",
    epilog=example(
        "headrace train --ranks 4",
        "headrace train --nnodes 2 --master node-0:8090 --node-rank 1",
        "headrace train --set train.run=seed-7 --set train.seed=7",
    ),
)
@click.option("--ranks", type=click.IntRange(min=1), help="Ranks on this machine.  [default: visible devices; CPU: 1]")
@click.option("--run", "run_name", metavar="NAME", help="Same as --set train.run=NAME.")
@click.option(
    "--nnodes",
    type=click.IntRange(min=1),
    help="Machines that train together, each with as many ranks.  [default: as PADDLE_TRAINERS_NUM says; 1]",
)
@click.option("--master", metavar="HOST:PORT", help="Machine of node 0; this port and the next are used there.")
@click.option("--node-rank", type=click.IntRange(min=0), help="Which of them this is.  [default: PADDLE_TRAINER_ID]")
@configured
def command(
    given: Given,
    ranks: int | None,
    run_name: str | None,
    nnodes: int | None,
    master: str | None,
    node_rank: int | None,
) -> None:
    """Train on the lanes, from the last checkpoint of the run; SIGTERM and Ctrl-C finish the step and save first."""
    from headrace import stages
    from headrace.config import TRAINER_SECTIONS, refuse_unsupported
    from headrace.trainer.nodes import group_of, node_of

    if run_name is not None:
        given = Given(given.file, (*given.overrides, f"train.run={run_name}"))
    config = given.load().config
    refuse_unsupported(config, TRAINER_SECTIONS)
    count = ranks or stages.default_ranks()
    node = node_of(nnodes, node_rank, master, count)
    warning = stages.check_ranks(node.world if node else count, config.tokens.lanes)
    stages.run(config, [group_of(stages.rank_plan(config), count, node)], news=warning)
