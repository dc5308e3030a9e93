from __future__ import annotations

import pytest
from pydantic import ValidationError

from headrace.schemas.errors import UsageError
from headrace.trainer.nodes import Node, node_children, node_group, node_of
from headrace.trainer.stage import AGREE_VARIABLE, KEY_VARIABLE
from tests.unit.trainer.little import World

LAUNCHED = {
    "PADDLE_TRAINER_ID": "3",
    "PADDLE_TRAINERS_NUM": "4",
    "PADDLE_TRAINER_ENDPOINTS": "10.0.0.1:6170,10.0.0.1:6171,10.0.0.2:6170,10.0.0.2:6171",
    "PADDLE_MASTER": "10.0.0.1:40000",
    "PADDLE_LOCAL_SIZE": "2",
}
POD = {
    "PADDLE_TRAINER_ID": "1",
    "PADDLE_TRAINERS_NUM": "2",
    "PADDLE_TRAINER_ENDPOINTS": "job-worker-0:2379,job-worker-1:2379",
}


def test_options_say_which_node_this_is() -> None:
    assert node_of(2, 1, "node-0:8090", 8, {}) == Node(2, 1, 8, "node-0", 8090)
    assert node_of(2, 0, "node-0:8090", 8, POD) == Node(2, 0, 8, "node-0", 8090)


def test_a_process_of_paddles_launcher_is_one_rank() -> None:
    assert node_of(None, None, None, 8, LAUNCHED) == Node(4, 3, 1, "10.0.0.1", 40000)


def test_a_pod_of_a_paddle_job_is_a_node() -> None:
    assert node_of(None, None, None, 8, POD) == Node(2, 1, 8, "job-worker-0", 2379)


@pytest.mark.parametrize("environment", [{}, {"PADDLE_TRAINERS_NUM": "1", "PADDLE_TRAINER_ID": "0"}])
def test_a_machine_alone_is_no_node(environment: dict[str, str]) -> None:
    assert node_of(None, None, None, 8, environment) is None
    assert node_of(1, None, None, 8, POD) is None


@pytest.mark.parametrize(
    ("number", "master", "named"),
    [(None, "a:1", "--node-rank"), (2, "a:1", "--node-rank"), (0, None, "--master"), (0, "a", "--master")],
)
def test_what_is_missing_is_named(number: int | None, master: str | None, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        node_of(2, number, master, 8, {})


def test_ranks_are_numbered_over_all_nodes_and_meet_at_the_master(tmp_path_factory: pytest.TempPathFactory) -> None:
    plan = World(tmp_path_factory.mktemp("world")).plan()
    nodes = [node_children(plan, Node(2, number, 3, "node-0", 8090)) for number in range(2)]
    children = [child for node in nodes for child in node]
    assert [child.env["PADDLE_TRAINER_ID"] for child in children] == [str(rank) for rank in range(6)]
    assert [child.env["PADDLE_RANK_IN_NODE"] for child in children] == ["0", "1", "2"] * 2
    for name, value in (
        ("PADDLE_TRAINERS_NUM", "6"),
        ("PADDLE_MASTER", "node-0:8090"),
        (AGREE_VARIABLE, "node-0:8091"),
        (KEY_VARIABLE, children[0].env[KEY_VARIABLE]),
    ):
        assert {child.env[name] for child in children} == {value}
    other = node_children(plan, Node(2, 1, 2, "node-0", 8090))
    assert other[0].env[KEY_VARIABLE] != children[0].env[KEY_VARIABLE]


def test_more_ranks_on_all_nodes_than_lanes_are_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(UsageError, match=r"tokens\.lanes is 6"):
        node_group(World(tmp_path_factory.mktemp("world")).plan(), Node(2, 0, 4, "node-0", 8090))


def test_a_model_that_is_cut_over_ranks_is_refused_by_name(tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(ValidationError, match="tensor_parallel_degree is 2"):
        World(tmp_path_factory.mktemp("world")).plan(model={"tensor_parallel_degree": 2})
