"""SIGKILL at random moments, at every kind of process, on both brokers: nothing missing, nothing twice."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.deployment import ROLES, Deployment, configuration, kills_wanted, wait_until, write_orders

RECORDS = 12_000
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


def test_kills_lose_and_repeat_nothing(deployment: Deployment) -> None:
    """Every role in turn, the order shuffled; between kills the pipe must have moved, so that each hits work."""
    choose = random.Random(20)
    roles = list(itertools.islice(itertools.cycle(ROLES), kills_wanted(8)))
    choose.shuffle(roles)
    deployment.start("publisher")
    deployment.start("supervisor")
    for role in roles:
        if role == "publisher" and deployment.ended("publisher") is not None:
            role = choose.choice(ROLES[1:])
        before = deployment.moved()
        wait_until("the pipe to move", lambda before=before: deployment.moved()[1:] > before[1:])
        deployment.kill(role, choose)
    assert deployment.wait("publisher") == 0
    assert deployment.terminate("supervisor") == 0
    deployment.options = ("--set", "train.stop=end")
    deployment.start("supervisor")
    assert deployment.wait("supervisor") == 0
    counts = deployment.verify()
    assert counts["published"] == RECORDS, Counter(deployment.killed)
    assert counts["missing"] == counts["duplicated"] == counts["pending"] == 0
    assert counts["trained"] + counts["held_out"] == RECORDS
    assert counts["dead_lettered"] == counts["dropped"] == 0
