"""Open the broker that an address names. Implementations are imported here and nowhere else, when they are needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.pipeline.topics import Broker
from headrace.schemas.errors import UsageError


def open_broker(address: str, options: Mapping[str, Any] | None = None) -> Broker:
    """Return the broker behind `kafka://…` or `local:DIR`; `options` go to the Kafka client.

    Opening does not talk to the broker yet. Raises UsageError for an address of another form.
    """
    scheme, _, rest = address.partition(":")
    if scheme == "kafka" and rest.startswith("//"):
        from headrace.pipeline.kafka import KafkaBroker

        return KafkaBroker(rest.removeprefix("//"), options or {})
    if scheme == "local" and rest:
        from headrace.pipeline.local import LocalBroker

        return LocalBroker(rest)
    raise UsageError(f"broker: {address!r} is not a broker: write kafka://host:9092 or local:DIR")
