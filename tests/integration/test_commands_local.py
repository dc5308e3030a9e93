"""The verbs as people run them, over a local broker: processes, signals, exit codes, and what is printed."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.demo_text import LABELS, vocabulary, work_orders

HEADRACE = [sys.executable, "-m", "headrace"]
RECORDS = 600
WITHIN_S = 240.0


def run(folder: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HEADRACE, *arguments], cwd=folder, capture_output=True, text=True, timeout=WITHIN_S, check=False, **options
    )


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*HEADRACE, *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def status(folder: Path) -> dict[str, Any]:
    done = run(folder, "status", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def wait_until(what: str, happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not happened():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        time.sleep(0.1)


def all_read(folder: Path) -> bool:
    text = status(folder)["text"]
    return bool(text) and all(part["read"] == part["end"] for part in text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A configuration, texts and a vocabulary; one record in a hundred is no JSON."""
    orders = list(work_orders(RECORDS, seed=5))
    lines = [json.dumps(order.fields(), ensure_ascii=False) for order in orders]
    (tmp_path / "orders.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "bad.jsonl").write_text("{broken\n" * 6)
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary(order.text for order in orders)) + "\n")
    model = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = {
        "name": "orders",
        "broker": "local:./data",
        "tokenizer": {"path": "vocab.txt", "max_tokens": 96},
        "tokens": {"lanes": 2, "batch_tokens": 4096},
        "ingest": {"commit_ms": 100},
        "train": {
            "model": {**model, "max_position_embeddings": 96},
            "task": {"type": "classification", "labels": list(LABELS)},
            "batch": {"tokens": 2048, "flush_s": 0.2},
            "window_tokens": 8192,
            "stop": "end",
        },
        "evaluate": {"hold_out_share": 0.1},
    }
    (tmp_path / "headrace.yaml").write_text(yaml.safe_dump(config, allow_unicode=True))
    return tmp_path


def test_publish_and_ingest_until_told_to_stop(folder: Path) -> None:
    assert run(folder, "publish", "orders.jsonl", "bad.jsonl").returncode == 0
    ingest = start(folder, "ingest")
    wait_until("everything is read", lambda: all_read(folder))
    ingest.send_signal(signal.SIGTERM)
    _, errors = ingest.communicate(timeout=WITHIN_S)
    assert ingest.returncode == 0, errors
    found = status(folder)
    assert found["dead_letters"] == 6 and found["emitted_tokens"] == found["backlog_tokens"] > 20 * RECORDS
    assert found["trainer"] is None and found["trainer_runs"] is False


def test_ctrl_c_on_ingest_commits_and_says_130(folder: Path) -> None:
    assert run(folder, "publish", "orders.jsonl").returncode == 0
    ingest = start(folder, "ingest", "--workers", "1")
    wait_until("everything is read", lambda: all_read(folder))
    ingest.send_signal(signal.SIGINT)
    _, errors = ingest.communicate(timeout=WITHIN_S)
    assert ingest.returncode == 130 and errors.splitlines()[-1] == "headrace: interrupted"
    assert "ingest-0: done" in errors


def test_what_is_wrong_is_said_before_anything_starts(folder: Path) -> None:
    for arguments, word in (
        (("ingest", "--set", "tokenizer.path=nowhere"), "tokenizer.path"),
        (("train", "--ranks", "3"), "tokens.lanes is 2"),
        (("train", "--set", "train.precision=bf16"), "train.precision"),
        (("up", "--set", "evaluate.data=dev.jsonl"), "evaluate.data"),
        (("ingest", "--set", "ingest.interleave=4"), "ingest.interleave"),
        (("ledger", "find", "orders@3"), "TOPIC/PARTITION@OFFSET"),
    ):
        done = run(folder, *arguments)
        assert done.returncode == 2, (arguments, done.stderr)
        assert word in done.stderr and "Traceback" not in done.stderr


def test_there_is_no_ledger_before_there_is_a_checkpoint(folder: Path) -> None:
    done = run(folder, "ledger", "hash")
    assert done.returncode == 1 and "no checkpoint" in done.stderr


def test_up_to_the_end_and_what_the_ledger_says(folder: Path) -> None:
    assert run(folder, "publish", "orders.jsonl", "bad.jsonl").returncode == 0
    up = run(folder, "up", "--ranks", "2")
    assert up.returncode == 0, up.stderr
    assert up.stdout == ""
    found = status(folder)
    assert found["backlog_tokens"] == 0 and found["dead_letters"] == 6
    assert all(lane["trained"] == lane["checkpoint"] == lane["end"] for lane in found["lanes"])

    verified = run(folder, "ledger", "verify", "--json")
    assert verified.returncode == 0, verified.stderr
    counts = json.loads(verified.stdout.splitlines()[-1])
    assert counts["published"] == RECORDS + 6 and counts["dead_lettered"] == 6
    assert counts["trained"] + counts["held_out"] == RECORDS and counts["held_out"] > 0
    assert (counts["missing"], counts["duplicated"]) == (0, 0)
    assert "exactly one outcome" in run(folder, "ledger", "verify").stdout

    record = run(folder, "ledger", "find", "orders/0@3")
    assert record.returncode == 0 and record.stdout.startswith("orders/0@3: ")
    assert run(folder, "ledger", "find", "orders/0@999999").returncode == 1
    assert "orders/0: 0-" in run(folder, "ledger", "ranges").stdout
    first = run(folder, "ledger", "hash").stdout
    assert len(first.strip()) == 64

    again = run(folder, "train")  # the run is over: nothing is trained, nothing changes
    assert again.returncode == 0, again.stderr
    assert run(folder, "ledger", "hash").stdout == first


def test_the_live_view_on_a_terminal(folder: Path) -> None:
    """On a terminal `status --watch` draws a panel again and again, until Ctrl-C is typed."""
    assert run(folder, "publish", "orders.jsonl").returncode == 0
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.execv(sys.executable, [*HEADRACE, "status", "--watch"])
    drawn = b""
    while drawn.count(b"text partition") < 2:
        drawn += os.read(terminal, 65_536)
    os.write(terminal, b"\x03")
    try:
        while chunk := os.read(terminal, 65_536):
            drawn += chunk
    except OSError:
        pass  # a terminal whose process has ended
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
    assert b"there is no tokens topic yet" in drawn and drawn.endswith(b"headrace: interrupted\r\n")


def test_a_small_demo_accounts_for_every_record(tmp_path: Path) -> None:
    done = run(tmp_path, "demo", "--records", "800", "--rate", "400", "--json", "--keep", "demo")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["records_published"] == report["records_trained"] == 800
    assert report["duplicates"] == report["missing"] == report["dead_letters"] == 0
    assert report["steps"] > 0 and report["ranks"] == 2
    assert 0 <= report["freshness_p50_s"] <= report["freshness_p99_s"]
    assert {"model.safetensors", "config.json", "vocab.txt"} <= {
        file.name for file in Path(report["checkpoint"]).iterdir()
    }
    assert len(report["new_sentences"]) == 3
    assert run(tmp_path, "demo", "--keep", "demo").returncode == 2  # it is not empty
    verified = run(tmp_path, "ledger", "verify", "-c", "demo/headrace.yaml")
    assert verified.returncode == 0, verified.stderr
