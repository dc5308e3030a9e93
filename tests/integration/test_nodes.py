"""Two "nodes": two `headrace train` on this machine that meet at a master. One loses its rank on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.chaos.deployment import wait_until
from tests.integration.rank_programs import ALLOWED_S, ROOT, free_ports
from tests.unit.trainer.little import LABELS, World

LANES = 2


def configuration(world: World, run: str) -> dict[str, Any]:
    return {
        "name": "orders",
        "broker": world.address,
        "tokenizer": {"max_tokens": 64},
        "tokens": {"lanes": LANES},
        "train": {
            "run": run,
            "model": {
                "hidden_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "intermediate_size": 32,
                "max_position_embeddings": 64,
                "hidden_dropout_prob": 0.0,
                "attention_probs_dropout_prob": 0.0,
            },
            "task": {"type": "classification", "labels": list(LABELS)},
            "batch": {"tokens": 128 * LANES, "flush_s": 0.2},
            "window_tokens": 600,
            "optimizer": {"learning_rate": 1e-3},
            "stop": "end",
        },
        "checkpoint": {"root": str(world.folder / "checkpoints"), "every_steps": 3},
    }


class Node:
    """One `headrace train`."""

    def __init__(self, folder: Path, name: str, config: dict[str, Any], *words: str) -> None:
        file = folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(config))
        self.log = folder / f"{name}.log"
        environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        command = [sys.executable, "-W", "ignore", "-m", "headrace", "train", "-c", str(file), "--ranks", "1", *words]
        with self.log.open("wb") as log:
            self.popen = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)

    def rank(self) -> psutil.Process:
        (child,) = psutil.Process(self.popen.pid).children()
        return child

    def wait(self) -> None:
        assert self.popen.wait(2 * ALLOWED_S) == 0, self.log.read_text()[-3000:]

    def end(self) -> None:
        for process in [*psutil.Process(self.popen.pid).children(), self.popen] if self.popen.poll() is None else []:
            process.kill()
        self.popen.wait()


def ledger_hash(folder: Path, name: str) -> str:
    command = [sys.executable, "-m", "headrace", "ledger", "hash", "-c", str(folder / f"{name}.yaml")]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_rank_that_dies_on_one_node_restarts_both_from_the_last_checkpoint(tmp_path: Path) -> None:
    world = World(tmp_path, lanes=LANES)
    world.fill([60] * LANES)
    master = f"127.0.0.1:{free_ports(1)[0]}"
    config = configuration(world, "two")
    words = ("--nnodes", "2", "--master", master, "--node-rank")
    nodes = [Node(tmp_path, f"node-{number}", config, *words, str(number)) for number in range(2)]
    saved = tmp_path / "checkpoints" / "orders" / "two"
    try:
        wait_until("a checkpoint", lambda: (saved / "step-0000000006" / "manifest.json").exists(), within_s=ALLOWED_S)
        nodes[1].rank().send_signal(signal.SIGKILL)
        for node in nodes:
            node.wait()
    finally:
        for node in nodes:
            node.end()
    logs = [node.log.read_text() for node in nodes]
    assert "rank-1: killed by SIGKILL; again in 1 s" in logs[1]
    assert "rank-0:" in logs[0] and "again in 1 s (failure 1)" in logs[0]

    alone = Node(tmp_path, "alone", configuration(world, "one"))
    try:
        alone.wait()
    finally:
        alone.end()
    assert ledger_hash(tmp_path, "node-0") == ledger_hash(tmp_path, "alone")


@pytest.mark.parametrize("words", [("--nnodes", "2"), ("--nnodes", "2", "--node-rank", "0")])
def test_a_node_that_is_not_told_where_to_meet_is_a_usage_error(tmp_path: Path, words: tuple[str, ...]) -> None:
    node = Node(tmp_path, "node", configuration(World(tmp_path, lanes=LANES), "two"), *words)
    assert node.popen.wait(ALLOWED_S) == 2, node.log.read_text()
