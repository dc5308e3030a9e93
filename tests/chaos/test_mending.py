"""As people do it: a run with wrong labels is mended by command, and a second run begins with its weights."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from headrace.demo_text import LABELS
from headrace.pipeline.broker import open_broker
from headrace.trainer.checkpoint import published_steps
from headrace.trainer.checkpoint_load import load
from headrace.trainer.checkpoint_store import open_store
from headrace.trainer.lineage import WeightsOf
from tests.chaos.deployment import Deployment, configuration, wait_until, write_orders

RIGHT, WRONG = 1_000, 500
LANES = 4
pytestmark = pytest.mark.timeout(1800)


def ends(deployment: Deployment) -> dict[int, int]:
    with closing(open_broker(deployment.config["broker"])) as broker:
        return {partition: each.end for partition, each in broker.ends("orders").items()}


def split_orders(folder: Path) -> None:
    """The last `WRONG` orders go into a file of their own, each with the label after its own."""
    orders = [json.loads(line) for line in (folder / "orders.jsonl").read_text().splitlines()]
    for order in orders[RIGHT:]:
        order["label"] = LABELS[(LABELS.index(order["label"]) + 1) % len(LABELS)]
    for name, part in (("orders.jsonl", orders[:RIGHT]), ("wrong.jsonl", orders[RIGHT:])):
        (folder / name).write_text("".join(json.dumps(order, ensure_ascii=False) + "\n" for order in part))


def tokenize(deployment: Deployment) -> None:
    deployment.start("ingest")
    wait_until("ingest to read everything", deployment.all_read)
    assert deployment.terminate("ingest") == 0


def test_wrong_labels_are_taken_out_and_another_run_begins_with_the_weights(tmp_path: Path) -> None:
    write_orders(tmp_path, RIGHT + WRONG)
    split_orders(tmp_path)
    bounded = {"stop": "end", "batch": {"tokens": 512 * LANES, "flush_s": 0.5}, "window_tokens": 512}
    config = configuration(f"local:{tmp_path / 'data'}", tmp_path, lanes=LANES, **bounded)
    config["evaluate"] = {}
    config["checkpoint"]["keep"] = 100
    pipe = Deployment(tmp_path, config, ranks=2, publish_options=())
    pipe.write()
    pipe.command("topics", "create")
    try:
        pipe.command("publish", "orders.jsonl")
        tokenize(pipe)
        right = ends(pipe)
        pipe.command("publish", "wrong.jsonl")
        tokenize(pipe)
    finally:
        pipe.stop()
    skip = [f"orders/{p}@{right[p]}..{end - 1}" for p, end in ends(pipe).items() if end > right[p]]
    assert sum(end - right[p] for p, end in ends(pipe).items()) == WRONG
    words = [word for each in skip for word in ("--skip", each)]
    pipe.command("train", "--ranks", "2")
    store = open_store(str(tmp_path / "checkpoints"), "orders", "main")

    too_late = pipe.command("train", "--ranks", "1", *words, check=False)
    assert too_late.returncode == 2
    assert "trained on 500 of the named records" in too_late.stderr
    step = int(too_late.stderr.split("--from ")[1].split()[0])
    mended = pipe.command("train", "--ranks", "1", "--from", str(step), *words)
    assert f"going on from step {step} without orders/" in mended.stderr
    assert "500 trained before" in mended.stderr
    counts = pipe.verify()
    assert counts["ok"]
    assert (counts["trained"], counts["excluded"], counts["published"]) == (RIGHT, WRONG, RIGHT + WRONG)

    pipe.command("train", "--ranks", "1", "--run", "second", "--set", "train.model=run:main")
    second = open_store(str(tmp_path / "checkpoints"), "orders", "second")
    newest = published_steps(store)[-1]
    began = load(second, 0)
    assert began.state.lineage.weights_of == WeightsOf("main", newest)
    learnt = load(store, newest).weights.arrays
    assert learnt.keys() == began.weights.arrays.keys()
    assert all((learnt[name] == began.weights.arrays[name]).all() for name in learnt)
