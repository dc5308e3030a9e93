"""Metrics are served as Prometheus reads them."""

from __future__ import annotations

import socket
import urllib.request

import pytest

from headrace.pipeline.telemetry import Exporter
from headrace.schemas import metrics
from headrace.schemas.errors import UsageError
from tests.services.ports import free_port

INGEST = {
    "event": "ingest",
    "records": 10,
    "tokens": 200,
    "dead_letters": {"invalid-json": 2},
    "commits": 3,
    "commit_s": 0.5,
    "backlog_wait_s": 0.0,
    "backlog_tokens": 70,
}
PROGRESS = {
    "event": "progress",
    "step": 4,
    "loss": 0.25,
    "accuracy": None,
    "freshness_p50_s": 1.5,
    "records": 9,
    "buckets": [[4096, 0.25, 0.125], [512, 0.5, 0.5]],
}


def scrape(port: int) -> list[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return answer.read().decode().splitlines()


def test_reports_of_all_processes_are_exported() -> None:
    exporter, port = Exporter(), free_port()
    exporter.serve(port)
    exporter.observe("ingest-0", INGEST)
    exporter.observe("ingest-1", INGEST | {"records": 5})
    exporter.observe("rank-0", PROGRESS)
    exporter.observe("rank-0", {"event": "started", "pid": 1})
    lines = scrape(port)
    assert 'headrace_records_read_total{process="ingest-0"} 10.0' in lines
    assert 'headrace_records_read_total{process="ingest-1"} 5.0' in lines
    assert 'headrace_dead_letters_total{process="ingest-0",reason="invalid-json"} 2.0' in lines
    assert 'headrace_backlog_tokens{process="ingest-0"} 70.0' in lines
    assert 'headrace_loss{process="rank-0"} 0.25' in lines
    assert 'headrace_freshness_seconds{process="rank-0",quantile="0.5"} 1.5' in lines
    assert 'headrace_bucket_bytes{bucket="1",process="rank-0"} 512.0' in lines
    assert 'headrace_bucket_exposed_seconds{bucket="0",process="rank-0"} 0.125' in lines
    assert not any(line.startswith("headrace_progressive_accuracy{") for line in lines)


def test_balance_and_evaluations_are_exported_by_what_they_are_of() -> None:
    exporter, port = Exporter(), free_port()
    exporter.serve(port)
    lanes = {0: {"padded_tokens": 30}, 1: {"padded_tokens": 10}}
    exporter.observe(
        "rank-0", {"event": "balance", "lanes": lanes, "ranks": {0: {"padded_tokens": 40}}, "lane_skew": 1.5}
    )
    for of, accuracy in (("development", 0.75), ("held_out", 0.5), ("held_out", 0.625)):
        exporter.observe("rank-0", {"event": "evaluated", "of": of, "accuracy": accuracy, "loss": 0.5})
    lines = scrape(port)
    assert 'headrace_lane_tokens{lane="0",process="rank-0"} 30.0' in lines
    assert 'headrace_rank_tokens{process="rank-0",rank="0"} 40.0' in lines
    assert 'headrace_lane_skew{process="rank-0"} 1.5' in lines
    assert 'headrace_evaluation_accuracy{of="development",process="rank-0"} 0.75' in lines
    assert 'headrace_evaluation_accuracy{of="held_out",process="rank-0"} 0.625' in lines


def test_every_metric_name_is_exported() -> None:
    names = {value for name, value in vars(metrics).items() if name.isupper()}
    exported = {metric.name for metric in Exporter().collect()}
    assert {name.removesuffix("_total") for name in names} == exported


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("", 0)) as server, pytest.raises(UsageError, match=r"metrics\.port"):
        Exporter().serve(server.getsockname()[1])
