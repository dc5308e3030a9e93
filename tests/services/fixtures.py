"""Fixtures that give tests a Kafka broker; a conftest imports those that its folder uses.

`kafka` is one broker for the whole session, its address a string: tests keep apart by topic and group names.
`kafka_broker` is a broker of the test's own, to be frozen, killed and restarted. `HEADRACE_KAFKA=host:port` takes a
broker that runs already for the first. A machine that cannot run a broker skips, except in CI (`CI=true`) and under
`HEADRACE_REQUIRE_SERVICES=1`, where that is a failure.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services import ServiceUnavailable
from tests.services.kafka_broker import KafkaBroker

_shared: list[KafkaBroker] = []


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The bootstrap address of the session's broker."""
    given = os.environ.get("HEADRACE_KAFKA")
    if given:
        yield given
        return
    # One broker even where several folders' conftests import this: pytest makes a fixture of its own of each import.
    if not _shared:
        _shared.append(started(tmp_path_factory.mktemp("kafka")))
    yield _shared[0].address
    _shared[0].stop()


@pytest.fixture
def kafka_broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    """A running broker that only this test uses."""
    broker = started(tmp_path / "kafka")
    yield broker
    broker.stop()


def started(folder: Path) -> KafkaBroker:
    """Start a broker over `folder`; skip or fail the test where that is not possible."""
    try:
        return KafkaBroker(folder).start()
    except ServiceUnavailable as missing:
        reason = f"no Kafka broker: {missing}"
        if services_required():
            pytest.fail(reason)
        pytest.skip(reason)


def services_required() -> bool:
    """Whether a missing service is a failure."""
    return os.environ.get("CI") == "true" or os.environ.get("HEADRACE_REQUIRE_SERVICES") == "1"
