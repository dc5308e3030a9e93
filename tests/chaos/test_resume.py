"""Over a topic that is full: killed, resumed, at other numbers of ranks, through broker restarts: the same run."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.chaos.deployment import Deployment, configuration, kills_wanted, wait_until, write_orders

RECORDS = 6_000
LANES = 6
BOUNDED = {"stop": "end", "batch": {"tokens": 256 * LANES, "flush_s": 0.5}}
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """Published and tokenized on a local broker, and trained by two ranks that were never touched."""
    folder = tmp_path_factory.mktemp("full")
    write_orders(folder, RECORDS)
    config = configuration(f"local:{folder / 'data'}", folder, lanes=LANES, **BOUNDED)
    whole = Deployment(folder, config, publish_options=())
    whole.write()
    whole.command("topics", "create")
    whole.command("publish", "orders.jsonl")
    tokenize(whole)
    shutil.copytree(folder / "data", folder / "untrained")
    whole.command("train", "--ranks", "2")
    return whole


def tokenize(deployment: Deployment) -> None:
    """Run ingest until it has read everything."""
    deployment.start("ingest")
    wait_until("ingest to read everything", deployment.all_read)
    assert deployment.terminate("ingest") == 0


def copy_of(full: Deployment, folder: Path) -> Deployment:
    """The same topics, without the run."""
    shutil.copytree(full.folder / "untrained", folder / "data")
    shutil.copy(full.folder / "vocab.txt", folder)
    config = configuration(f"local:{folder / 'data'}", folder, lanes=LANES, **BOUNDED)
    made = Deployment(folder, config)
    made.write()
    return made


def weights(deployment: Deployment) -> dict[str, np.ndarray]:
    """Of the newest checkpoint."""
    newest = max((deployment.folder / "checkpoints" / "orders" / "main").glob("step-*"))
    return load_file(newest / "model.safetensors")


def assert_same_run(deployment: Deployment, full: Deployment) -> None:
    assert deployment.ledger_hash() == full.ledger_hash()
    ours, theirs = weights(deployment), weights(full)
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


@pytest.fixture
def again(full: Deployment, tmp_path: Path) -> Iterator[Deployment]:
    made = copy_of(full, tmp_path)
    yield made
    made.stop()


def test_killed_and_resumed_it_is_the_same_run_to_the_bit(again: Deployment, full: Deployment) -> None:
    choose = random.Random(3)
    again.start("trainer")
    for _ in range(kills_wanted(2)):
        before = again.moved().step
        wait_until("a step", lambda before=before: again.moved().step > before or again.ended("trainer") is not None)
        if again.ended("trainer") is not None:
            break
        again.kill(choose.choice(["rank", "trainer"]), choose)
    assert again.wait("trainer") == 0
    assert again.killed
    assert_same_run(again, full)


def test_two_ranks_then_one_then_three_train_the_same_batches(again: Deployment, full: Deployment) -> None:
    for ranks, steps in ((2, 6), (1, 12)):
        again.command("train", "--ranks", str(ranks), "--set", f"train.stop={{steps: {steps}}}")
    again.command("train", "--ranks", "3")
    assert again.ledger_hash() == full.ledger_hash()
    ours, theirs = weights(again), weights(full)
    for name, expected in theirs.items():
        if name.endswith("k_proj.bias"):
            continue  # softmax ignores it: its exact gradient is zero, and AdamW makes steps of the rounding noise
        np.testing.assert_allclose(ours[name], expected, rtol=0, atol=1e-5, err_msg=name)
