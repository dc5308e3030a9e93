"""Integration tests run against real services; see `tests/services/fixtures.py` for what happens without them."""

from tests.services.fixtures import kafka, kafka_broker

__all__ = ["kafka", "kafka_broker"]
