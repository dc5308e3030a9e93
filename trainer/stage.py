"""The trainer stage on one machine (`nodes`: on several): ranks as supervised children that find each other.

Ranks read the variables of Paddle's own launcher (`PADDLE_TRAINER_ID`, …), so the same program also runs under that
launcher. The group is restarted together, from the last checkpoint, with fresh ports every time.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence

from headrace.pipeline.supervise import Child, Group
from headrace.schemas.errors import UsageError
from headrace.trainer.config import RankPlan
from headrace.trainer.device import loopback_environment, rank_environment, trainer_environment, visible_gpus

AGREE_VARIABLE = "HEADRACE_AGREE"
KEY_VARIABLE = "HEADRACE_AGREE_KEY"
_HOST = "127.0.0.1"


def ranks_group(plan: RankPlan, ranks: int) -> Group:
    """The group that a supervisor runs. Raises UsageError when there are more ranks than lanes."""
    check_lanes_for(ranks, plan)

    def children() -> Sequence[Child]:
        return rank_children(plan, ranks)

    return Group("ranks", children, plan.train.restarts, together=True, ends_all=True)


def check_lanes_for(ranks: int, plan: RankPlan) -> None:
    """Raises UsageError when there are more ranks than lanes."""
    if ranks > plan.tokens.lanes:
        raise UsageError(
            f"{ranks} ranks need at least as many lanes, tokens.lanes is {plan.tokens.lanes}: start at most "
            f"{plan.tokens.lanes} ranks, or a new tokens topic with more lanes"
        )


def rank_children(plan: RankPlan, ranks: int) -> list[Child]:
    """One child per rank, with fresh ports and a fresh key."""
    ports = _free_ports(ranks + 1)
    endpoints = [f"{_HOST}:{port}" for port in ports[:ranks]]
    gpus = visible_gpus()
    shared = {
        **rank_environment(ranks),
        **loopback_environment(),
        AGREE_VARIABLE: f"{_HOST}:{ports[ranks]}",
        KEY_VARIABLE: secrets.token_hex(16),
    }
    args = plan.model_dump(mode="json")
    return [
        Child(f"rank-{rank}", "headrace.trainer.rank:work", args, shared | trainer_environment(rank, endpoints, gpus))
        for rank in range(ranks)
    ]


def _free_ports(count: int) -> list[int]:
    """Ports that are free now; one that is taken meanwhile fails the ranks' start, and they are started again."""
    servers = [socket.create_server((_HOST, 0)) for _ in range(count)]
    ports = [int(server.getsockname()[1]) for server in servers]
    for server in servers:
        server.close()
    return ports
