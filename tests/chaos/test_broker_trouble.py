"""A broker that is restarted, frozen or kept short of the trainer: the run is the same, and nothing waits for ever."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.chaos.deployment import Deployment, configuration, wait_until, write_orders
from tests.services.kafka_broker import KafkaBroker

RECORDS = 6_000
LANES = 4
BOUNDED = {"stop": "end", "batch": {"tokens": 256 * LANES, "flush_s": 0.5}}
pytestmark = pytest.mark.timeout(1800)


def weights(deployment: Deployment, run: str) -> dict[str, np.ndarray]:
    newest = max((deployment.folder / "checkpoints" / "orders" / run).glob("step-*"))
    return load_file(newest / "model.safetensors")


def test_a_restarted_and_a_frozen_broker_change_nothing(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    """Two runs over one full topic: one is left alone, the other has all the trouble. Equal to the bit."""
    write_orders(tmp_path, RECORDS)
    config = configuration(f"kafka://{kafka_broker.address}", tmp_path, lanes=LANES, **BOUNDED)
    pipe = Deployment(tmp_path, config)
    pipe.write()
    pipe.command("topics", "create")
    pipe.command("publish", "orders.jsonl")
    pipe.start("ingest")
    wait_until("ingest to read everything", pipe.all_read)
    assert pipe.terminate("ingest") == 0
    pipe.command("train", "--ranks", "2", "--run", "alone")

    pipe.options = ("--run", "troubled")
    pipe.run = "troubled"
    try:
        pipe.start("trainer")
        wait_until("steps", lambda: pipe.moved().step > 3)
        kafka_broker.pause()
        kafka_broker.resume()
        kafka_broker.restart()
        pipe.kill("rank", random.Random(1))
        kafka_broker.kill()
        kafka_broker.restart()
        assert pipe.wait("trainer") == 0
    finally:
        pipe.stop()
    hashes = [pipe.command("ledger", "hash", "--set", f"train.run={run}").stdout for run in ("alone", "troubled")]
    assert hashes[0] == hashes[1]
    alone, troubled = weights(pipe, "alone"), weights(pipe, "troubled")
    assert alone.keys() == troubled.keys()
    assert all(np.array_equal(alone[name], troubled[name]) for name in alone)


def test_a_backlog_smaller_than_what_lies_between_two_checkpoints_stops_nobody(tmp_path: Path) -> None:
    """Ingest waits for what is trained, not for what is saved; or both would wait for ever."""
    write_orders(tmp_path, 3_000)
    config = configuration(f"local:{tmp_path / 'data'}", tmp_path, lanes=LANES, **BOUNDED)
    config["tokens"]["backlog_tokens"] = 8_000
    config["tokens"]["batch_tokens"] = 1_000
    config["checkpoint"] = {"root": str(tmp_path / "checkpoints"), "every_s": 3600}
    pipe = Deployment(tmp_path, config, publish_options=())
    pipe.write()
    pipe.command("topics", "create")
    pipe.command("publish", "orders.jsonl")
    pipe.start("supervisor")
    try:
        assert pipe.wait("supervisor") == 0
    finally:
        pipe.stop()
    counts = pipe.verify()
    assert counts["trained"] + counts["held_out"] == counts["published"] == 3_000
    assert counts["missing"] == counts["duplicated"] == 0
