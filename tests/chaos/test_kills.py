"""SIGKILL at random moments, at every kind of process, on both brokers: nothing missing, nothing twice."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.deployment import ROLES, Deployment, Moved, configuration, kills_wanted, wait_until, write_orders

RECORDS = 8_000
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(params=["local", "kafka"])
def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    address = f"local:{tmp_path / 'data'}"
    if request.param == "kafka":
        address = f"kafka://{request.getfixturevalue('kafka_broker').address}"
    write_orders(tmp_path, RECORDS)
    made = Deployment(tmp_path, configuration(address, tmp_path))
    made.write()
    made.command("topics", "create")
    yield made
    made.stop()


def worked(deployment: Deployment, role: str, before: Moved) -> bool:
    """Whether processes of a role have done something since `before`."""
    now = deployment.moved()
    if role == "publisher":
        return now.published > before.published or deployment.ended("publisher") is not None
    return now.tokens > before.tokens if role == "worker" else now.step > before.step


def test_kills_lose_and_repeat_nothing(deployment: Deployment) -> None:
    """Every role in turn, the order shuffled; what a kill is to hit must have worked since the kill before it."""
    choose = random.Random(20)
    roles = list(itertools.islice(itertools.cycle(ROLES), kills_wanted(4)))
    choose.shuffle(roles)
    deployment.start("publisher")
    deployment.start("supervisor")
    for planned in roles:
        over = deployment.ended("publisher") is not None
        role = "rank" if over and planned in {"publisher", "worker"} else planned
        before = deployment.moved()
        wait_until(f"work of a {role}", lambda role=role, before=before: worked(deployment, role, before))
        deployment.kill(role, choose)
    assert deployment.wait("publisher") == 0
    wait_until("everybody to be up again", lambda: all(len(deployment.victims(role)) == 2 for role in ROLES[2:]))
    assert deployment.terminate("supervisor") == 0
    deployment.options = ("--set", "train.stop=end")
    deployment.start("supervisor")
    assert deployment.wait("supervisor") == 0
    counts = deployment.verify()
    assert counts["published"] == RECORDS, Counter(deployment.killed)
    assert counts["missing"] == counts["duplicated"] == counts["pending"] == 0
    assert counts["trained"] + counts["held_out"] == RECORDS
    assert counts["dead_lettered"] == counts["dropped"] == 0
