"""`python -m bench`: every ratio, one after the other, as JSON lines. Needs a quiet machine and a Kafka broker.

The broker is started here (as for the tests), or is the one that HEADRACE_KAFKA names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import ingest_rate
from headrace.trainer.device import rank_environment


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
    subprocess.run([sys.executable, "-m", "bench.tokenizer_rate", "--json"], check=True)
    # In a process of its own: OpenMP and the allocator read a rank's environment when a process starts.
    environment = {**os.environ, **rank_environment(1)}
    subprocess.run([sys.executable, "-m", "bench.step_rate"], env=environment, check=True)
    with tempfile.TemporaryDirectory() as scratch, kafka() as address:
        print(json.dumps({"bench": "ingest", **ingest_rate.run(address, Path(scratch))}), flush=True)


if __name__ == "__main__":
    main()
