"""The fixtures of the contract: every test that asks for one of them runs over the local store and over Kafka."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.pipeline.broker import open_broker
from headrace.pipeline.topics import Broker
from tests.contract.backends import Backend, Kafka, Local
from tests.contract.traffic import Names
from tests.services.fixtures import kafka

__all__ = ["kafka"]


@pytest.fixture(params=["local", "kafka"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    if request.param == "local":
        return Local(f"local:{tmp_path / 'topics'}")
    return Kafka(f"kafka://{request.getfixturevalue('kafka')}")


@pytest.fixture
def broker(backend: Backend) -> Iterator[Broker]:
    broker = open_broker(backend.address)
    yield broker
    broker.close()


@pytest.fixture
def names() -> Names:
    """Topic, group and writer names that no other test uses."""
    unique = uuid.uuid4().hex[:12]
    return Names(f"text-{unique}", f"tokens-{unique}", f"group-{unique}", f"writer-{unique}")
