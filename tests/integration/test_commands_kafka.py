"""The verbs against a real Kafka broker: topics, doctor, publish, ingest, status, and a broker that is away."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.demo_text import vocabulary, work_orders

HEADRACE = [sys.executable, "-m", "headrace"]
RECORDS = 500
WITHIN_S = 240.0


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HEADRACE, *arguments], cwd=folder, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )


def status(folder: Path) -> dict[str, Any]:
    done = run(folder, "status", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def write(folder: Path, broker: str) -> Path:
    orders = list(work_orders(RECORDS, seed=6))
    lines = [json.dumps(order.fields(), ensure_ascii=False) for order in orders]
    (folder / "orders.jsonl").write_text("\n".join([*lines, "{broken"]) + "\n")
    (folder / "vocab.txt").write_text("\n".join(vocabulary(order.text for order in orders)) + "\n")
    config = {
        "name": f"orders-{uuid.uuid4().hex[:8]}",
        "broker": broker,
        "tokenizer": {"path": "vocab.txt", "max_tokens": 96},
        "tokens": {"lanes": 2, "retention_h": 24},
        "ingest": {"commit_ms": 100},
    }
    (folder / "headrace.yaml").write_text(yaml.safe_dump(config))
    return folder


@pytest.fixture
def folder(tmp_path: Path, kafka: str) -> Path:
    return write(tmp_path, f"kafka://{kafka}")


def test_from_topics_to_lanes(folder: Path) -> None:
    missing = run(folder, "ingest")
    assert missing.returncode == 2 and "headrace topics create" in missing.stderr
    made = run(folder, "topics", "create")
    assert made.returncode == 0 and made.stdout.count("made") == 3, made.stderr
    assert run(folder, "topics", "create").stdout.count("was there") == 3

    published = run(folder, "publish", "orders.jsonl")
    assert published.returncode == 0 and f"{RECORDS + 1} records published" in published.stdout, published.stderr
    assert "0 records published" in run(folder, "publish", "orders.jsonl").stdout

    ingest = subprocess.Popen([*HEADRACE, "ingest"], cwd=folder, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + WITHIN_S
    while not _all_read(found := status(folder)):
        assert time.monotonic() < deadline and ingest.poll() is None, found
    ingest.send_signal(signal.SIGTERM)
    _, errors = ingest.communicate(timeout=WITHIN_S)
    assert ingest.returncode == 0, errors
    found = status(folder)
    assert found["dead_letters"] == 1 and found["backlog_tokens"] == found["emitted_tokens"] > 20 * RECORDS


def _all_read(found: dict[str, Any]) -> bool:
    return bool(found["text"]) and all(
        part["read"] is not None and part["read"] >= part["end"] for part in found["text"]
    )


def test_the_doctor_looks_at_the_topics(folder: Path) -> None:
    before = {finding["subject"]: finding for finding in json.loads(run(folder, "doctor", "--json").stdout)}
    assert before["broker"]["level"] == "ok" and before["tokens.topic"]["level"] == "warn"
    assert run(folder, "topics", "create").returncode == 0
    done = run(folder, "doctor", "--json")
    after = {finding["subject"]: finding for finding in json.loads(done.stdout)}
    assert done.returncode == 0, done.stdout
    assert "2 partitions, kept 24 h" in after["tokens.topic"]["text"]
    other = run(folder, "doctor", "--set", "tokens.lanes=4")
    assert other.returncode == 1 and "set tokens.lanes to 2" in other.stdout


def test_a_vocabulary_of_the_topic_is_that_of_its_file(folder: Path) -> None:
    assert run(folder, "topics", "create").returncode == 0
    assert run(folder, "publish", "orders.jsonl").returncode == 0
    of_topic = run(folder, "vocab", "build", "--size", "620", "--out", "topic")
    assert of_topic.returncode == 0, of_topic.stderr
    assert f"{RECORDS} records read, 1 records skipped (1 invalid-json)" in of_topic.stdout
    of_file = run(folder, "vocab", "build", "orders.jsonl", "--size", "620", "--out", "file")
    assert of_file.returncode == 0, of_file.stderr
    assert (folder / "topic/vocab.txt").read_bytes() == (folder / "file/vocab.txt").read_bytes()
    assert all(part["read"] is None for part in status(folder)["text"])  # ingest starts where it would have started


@pytest.mark.parametrize(
    "verb",
    [
        ["status"],
        ["ingest"],
        ["topics", "create"],
        ["publish", "orders.jsonl"],
        ["doctor"],
        ["vocab", "build", "--size", "900"],
    ],
)
def test_a_broker_that_is_away_means_try_again(verb: list[str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    folder = write(tmp_path, f"kafka://{address}")
    done = run(folder, *verb)
    assert done.returncode == 75, done.stderr
    assert address in done.stderr + done.stdout and "Traceback" not in done.stderr
