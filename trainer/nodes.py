"""Several machines: who this node is, and what its ranks are told. No Paddle.

Each node runs `headrace train`, which starts and supervises the ranks of that node. Every node starts as many, so
global ranks follow from the node's number: node k has ranks k * R .. k * R + R - 1. Two ports of the master, the
machine of node 0, are all that must be known:

    port        Paddle's store, where NCCL and Gloo meet; rank 0 opens it
    port + 1    the control plane; rank 0 opens it

Who this node is stands in the options or, without them, in the variables of Paddle's launcher or of a PaddleJob:

    started by Paddle's launcher    PADDLE_LOCAL_SIZE is set: this process stands for one global rank, PADDLE_TRAINER_ID
    a pod of a PaddleJob            PADDLE_TRAINERS_NUM pods, this one is PADDLE_TRAINER_ID; it starts `ranks`

**When a rank dies** its node restarts all of its ranks. The other nodes' ranks notice, since the control plane and the
sums break, end with RankLost, and are restarted by their own nodes; all meet again at the master, at the last
checkpoint. Every node counts the failure, so every node has the same back-off and the same limit.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.pipeline.supervise import Child, Group
from headrace.schemas.errors import UsageError
from headrace.trainer.config import RankPlan
from headrace.trainer.device import loopback_environment, rank_environment, trainer_environment, visible_gpus
from headrace.trainer.stage import AGREE_VARIABLE, KEY_VARIABLE, check_lanes_for, ranks_group

_LOOPBACK = ("127.", "localhost")


@dataclass(frozen=True, slots=True)
class Node:
    """This machine among those that train together."""

    nodes: int
    number: int
    ranks: int  # that it starts: as many as every other
    host: str  # of node 0
    port: int

    @property
    def world(self) -> int:
        return self.nodes * self.ranks


def node_of(
    nodes: int | None,
    number: int | None,
    master: str | None,
    ranks: int,
    environment: Mapping[str, str] = os.environ,
) -> Node | None:
    """From options, else from variables; None where this machine trains alone. Raises UsageError."""
    launched = "PADDLE_LOCAL_SIZE" in environment
    nodes = nodes if nodes is not None else int(environment.get("PADDLE_TRAINERS_NUM", "1"))
    if nodes == 1:
        return None
    number = number if number is not None else _number(environment)
    if not 0 <= number < nodes:
        raise UsageError(f"--node-rank: {number} of {nodes} nodes: they are counted from 0 to {nodes - 1}")
    first = environment.get("PADDLE_TRAINER_ENDPOINTS", "").split(",")[0]
    master = master or environment.get("PADDLE_MASTER") or first
    host, colon, port = master.rpartition(":")
    if not host or not colon or not port.isdigit():
        raise UsageError(
            f"--master: {master!r} is not HOST:PORT: name the machine of node 0 and a port that is free there, with "
            "the port behind it"
        )
    return Node(nodes, number, 1 if launched else ranks, host, int(port))


def _number(environment: Mapping[str, str]) -> int:
    number = environment.get("PADDLE_TRAINER_ID", "")
    if not number.isdigit():
        raise UsageError("--node-rank: say which node this is, from 0: --node-rank 0 on the master")
    return int(number)


def node_group(plan: RankPlan, node: Node) -> Group:
    """The ranks of this node, for a supervisor. Raises UsageError when all nodes have too many for the lanes."""
    check_lanes_for(node.world, plan)

    def children() -> Sequence[Child]:
        return node_children(plan, node)

    return Group("ranks", children, plan.train.restarts, together=True, ends_all=True)


def group_of(plan: RankPlan, ranks: int, node: Node | None) -> Group:
    """The ranks that this machine runs, alone or as one of several."""
    return ranks_group(plan, ranks) if node is None else node_group(plan, node)


def node_children(plan: RankPlan, node: Node) -> list[Child]:
    """One child per rank of this node. Ports and key are the same at every start, since nodes must agree on them."""
    hosts = [node.host, *(f"node-{number}" for number in range(1, node.nodes))]  # Paddle counts them only
    endpoints = [
        f"{hosts[number]}:{node.port + 2 + place}" for number in range(node.nodes) for place in range(node.ranks)
    ]
    shared = {
        **rank_environment(node.ranks),
        **(loopback_environment() if node.host.startswith(_LOOPBACK) else {}),
        AGREE_VARIABLE: f"{node.host}:{node.port + 1}",
        KEY_VARIABLE: _key(plan, node),
    }
    master = {"PADDLE_MASTER": f"{node.host}:{node.port}", "PADDLE_NNODES": str(node.nodes)}
    gpus = visible_gpus()
    args = plan.model_dump(mode="json")
    first = node.number * node.ranks
    return [
        Child(
            f"rank-{rank}",
            "headrace.trainer.rank:work",
            args,
            shared | trainer_environment(rank, endpoints, gpus) | master,
        )
        for rank in range(first, first + node.ranks)
    ]


def _key(plan: RankPlan, node: Node, environment: Mapping[str, str] = os.environ) -> str:
    """What tells this run's ranks from strangers: nodes that differ in any of it do not meet."""
    secret = environment.get(KEY_VARIABLE, "")
    what = f"{secret}/{plan.name}/{plan.train.run}/{node.nodes}/{node.ranks}/{node.host}:{node.port}"
    return hashlib.sha256(what.encode()).hexdigest()
