"""`python -m bench`: every ratio, one after the other, as JSON lines. Needs a quiet machine and a Kafka broker.

The broker is started here (as for the tests), or is the one that HEADRACE_KAFKA names.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import ingest_rate, step_rate


@contextmanager
def kafka() -> Iterator[str]:
    """Address of a broker."""
    given = os.environ.get("HEADRACE_KAFKA")
    if given:
        yield given
        return
    from tests.services.kafka_broker import KafkaBroker

    with tempfile.TemporaryDirectory() as data:
        broker = KafkaBroker(Path(data))
        broker.start()
        try:
            yield broker.address
        finally:
            broker.stop()


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        print(json.dumps({"bench": "steps", **step_rate.run(Path(scratch))}), flush=True)
    with tempfile.TemporaryDirectory() as scratch, kafka() as address:
        print(json.dumps({"bench": "ingest", **ingest_rate.run(address, Path(scratch))}), flush=True)


if __name__ == "__main__":
    main()
