"""`headrace train`: the ranks of this machine, alone or with those of others."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING

import click

from headrace.options import Given, configured, example

if TYPE_CHECKING:
    from headrace.trainer.config import RankPlan
    from headrace.trainer.mend import Mended


@click.command(
    "train",
    short_help="The ranks of this machine.",
    epilog=example(
        "headrace train --ranks 4",
        "headrace train --nnodes 2 --master node-0:8090 --node-rank 1",
        "headrace train --set train.run=seed-7 --set train.seed=7",
        "headrace train --from 1500 --skip orders/0@1200..1699",
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
@click.option(
    "--from",
    "from_step",
    type=click.IntRange(min=0),
    metavar="STEP",
    help="Go back to the checkpoint at this step; newer ones are set aside.",
)
@click.option(
    "--skip",
    multiple=True,
    metavar="TOPIC/PARTITION@FIRST..LAST",
    help="Go on without these records, both offsets included. Repeatable.",
)
@configured
def command(
    given: Given,
    ranks: int | None,
    run_name: str | None,
    nnodes: int | None,
    master: str | None,
    node_rank: int | None,
    from_step: int | None,
    skip: tuple[str, ...],
) -> None:
    """Train on the lanes, from the last checkpoint of the run; SIGTERM and Ctrl-C finish the step and save first.

    --from and --skip mend a run (docs/mending.md); of several machines, node 0 does.
    """
    from headrace import development, stages
    from headrace.config import TRAINER_SECTIONS, refuse_unsupported
    from headrace.trainer.nodes import group_of, node_of

    if run_name is not None:
        given = Given(given.file, (*given.overrides, f"train.run={run_name}"))
    config = given.load().config
    refuse_unsupported(config, TRAINER_SECTIONS)
    count = ranks or stages.default_ranks()
    node = node_of(nnodes, node_rank, master, count)
    warning = stages.check_ranks(node.world if node else count, config.tokens.lanes)
    with development.tokenized(config) as tokens:
        plan = stages.rank_plan(config, development=tokens)
        if (from_step is not None or skip) and (node is None or node.number == 0):
            click.echo(_mend(plan, from_step, skip), err=True)
        stages.run(config, [group_of(plan, count, node)], news=warning)


def _mend(plan: RankPlan, from_step: int | None, skip: tuple[str, ...]) -> Mended:
    """Before any rank starts: ranks that are restarted must not go back again."""
    from headrace.pipeline.broker import open_broker
    from headrace.schemas.exclusion import Exclusion
    from headrace.trainer.checkpoint_store import open_store
    from headrace.trainer.mend import mend

    exclusions = [Exclusion.parse(each) for each in skip]
    store = open_store(plan.checkpoint.root, plan.name, plan.train.run)
    with closing(open_broker(plan.broker.broker, plan.broker.kafka)) as broker:
        return mend(plan, broker, store, from_step, exclusions, time.time_ns() // 1_000_000)
