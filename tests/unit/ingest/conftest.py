"""Fixtures: a small tokenizer, and a local broker in the test's own folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from headrace.ingest import tokenizers
from headrace.pipeline.local import LocalBroker
from tests.unit.ingest.tools import write_vocabulary

# How long an example takes says nothing on a shared machine.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vocabulary(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def tokenizer(vocabulary: Path) -> tokenizers.Tokenizer:
    return tokenizers.load(str(vocabulary), lowercase=True, max_tokens=32)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    broker = LocalBroker(tmp_path / "broker")
    yield broker
    broker.close()
