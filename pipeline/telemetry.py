"""Metrics for Prometheus: what the stage processes report to their parent, exported by the parent on one port.

Children report figures about once a second (`Channel.report`); the last report of each child is what a scrape sees.
Counters restart with their process, which Prometheus knows how to read.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.schemas import metrics
from headrace.schemas.errors import UsageError


@dataclass(frozen=True, slots=True)
class _Series:
    """One metric: the report and the field it comes from."""

    name: str
    event: str
    field: str
    help: str
    counter: bool = True


_SERIES = (
    _Series(metrics.RECORDS_READ, "ingest", "records", "Records of the text topic that were read and committed."),
    _Series(metrics.TOKENS_EMITTED, "ingest", "tokens", "Tokens committed to the tokens topic."),
    _Series(metrics.COMMITS, "ingest", "commits", "Ingest transactions."),
    _Series(metrics.COMMIT_S, "ingest", "commit_s", "Time from begin to commit, all ingest transactions together."),
    _Series(metrics.BACKLOG_WAIT_S, "ingest", "backlog_wait_s", "Time that ingest waited for the trainer."),
    _Series(metrics.BACKLOG_TOKENS, "ingest", "backlog_tokens", "Tokens emitted and not trained.", counter=False),
    _Series(metrics.STEP, "progress", "step", "The last step.", counter=False),
    _Series(metrics.RECORDS_TRAINED, "progress", "records", "Records trained since the run began."),
    _Series(metrics.TOKENS_TRAINED, "progress", "tokens", "Tokens trained since the run began, without padding."),
    _Series(metrics.PADDED_TOKENS, "progress", "padded_tokens", "The same with padding."),
    _Series(metrics.DATA_WAIT_S, "progress", "wait_s", "Time that steps waited for data since this start."),
    _Series(metrics.STEP_S, "progress", "step_s", "Time of steps since this start, without the wait for data."),
    _Series(metrics.SENT_BYTES, "progress", "sent_bytes", "Bytes that a rank handed to sums since this start."),
    _Series(metrics.SUM_S, "progress", "sum_s", "Time of sums between ranks since this start."),
    _Series(metrics.EXPOSED_SUM_S, "progress", "exposed_sum_s", "The part of it that no computing hid."),
    _Series(metrics.DATA_WAIT_SHARE, "progress", "wait_share", "Share of the time waited for data.", counter=False),
    _Series(metrics.LANE_SKEW, "balance", "lane_skew", "Tokens of the fullest lane over the mean.", counter=False),
    _Series(metrics.RANK_SKEW, "balance", "rank_skew", "Tokens of the fullest rank over the mean.", counter=False),
    _Series(metrics.LOSS, "progress", "loss", "Mean loss of the last step.", counter=False),
    _Series(metrics.ACCURACY, "progress", "accuracy", "Accuracy, scored before training.", counter=False),
    _Series(metrics.MACRO_F1, "progress", "macro_f1", "Macro F1, scored before training.", counter=False),
    _Series(metrics.LEARNING_RATE, "progress", "learning_rate", "Learning rate of the last step.", counter=False),
)


class Exporter(Collector):
    """Keeps the last report of every child. `observe` may be called from any thread."""

    def __init__(self) -> None:
        self._reports: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._lock = threading.Lock()

    def observe(self, process: str, event: Mapping[str, Any]) -> None:
        """Take in an event of a child; other events than reports are none of its business."""
        kind = event.get("event")
        if kind in {"ingest", "progress", "balance", "evaluated"}:
            name = f"evaluated {event['of']}" if kind == "evaluated" else kind
            with self._lock:
                self._reports[process, name] = dict(event)

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            reports = dict(self._reports)
        for series in _SERIES:
            family = CounterMetricFamily if series.counter else GaugeMetricFamily
            metric = family(series.name, series.help, labels=["process"])
            for (process, kind), report in reports.items():
                value = report.get(series.field)
                if kind == series.event and value is not None:
                    metric.add_metric([process], float(value))
            yield metric
        yield _dead_letters(reports)
        yield _freshness(reports)
        yield from _buckets(reports)
        yield from _evaluations(reports)
        yield _tokens(reports, metrics.LANE_TOKENS, "lane")
        yield _tokens(reports, metrics.RANK_TOKENS, "rank")

    def serve(self, port: int) -> None:
        """Answer scrapes on `port` from a thread. Raises UsageError when the port is taken."""
        registry = CollectorRegistry()
        registry.register(self)
        try:
            start_http_server(port, registry=registry)
        except OSError as error:
            raise UsageError(f"metrics.port: cannot serve on {port} ({error.strerror}): choose another") from error


def _dead_letters(reports: Mapping[tuple[str, str], Mapping[str, Any]]) -> Metric:
    metric = CounterMetricFamily(metrics.DEAD_LETTERS, "Dead letters, by reason.", labels=["process", "reason"])
    for (process, kind), report in reports.items():
        if kind == "ingest":
            for reason, count in report["dead_letters"].items():
                metric.add_metric([process, reason], count)
    return metric


def _freshness(reports: Mapping[tuple[str, str], Mapping[str, Any]]) -> Metric:
    metric = GaugeMetricFamily(
        metrics.FRESHNESS_S, "Publish to gradient, since the run began.", labels=["process", "quantile"]
    )
    for (process, kind), report in reports.items():
        for quantile, field in (("0.5", "freshness_p50_s"), ("0.99", "freshness_p99_s")):
            if kind == "progress" and report.get(field) is not None:
                metric.add_metric([process, quantile], report[field])
    return metric


def _buckets(reports: Mapping[tuple[str, str], Mapping[str, Any]]) -> Iterator[Metric]:
    """Gradient buckets of the last step: bytes, seconds, seconds that nothing hid."""
    for column, (name, text) in enumerate(
        (
            (metrics.BUCKET_BYTES, "Bytes of a bucket, last step."),
            (metrics.BUCKET_S, "Time of its sum, last step."),
            (metrics.BUCKET_EXPOSED_S, "The part of it that no computing hid, last step."),
        )
    ):
        metric = GaugeMetricFamily(name, text, labels=["process", "bucket"])
        for (process, kind), report in reports.items():
            for number, bucket in enumerate(report.get("buckets", ()) if kind == "progress" else ()):
                metric.add_metric([process, str(number)], bucket[column])
        yield metric


def _evaluations(reports: Mapping[tuple[str, str], Mapping[str, Any]]) -> Iterator[Metric]:
    for name, field in ((metrics.EVALUATION_ACCURACY, "accuracy"), (metrics.EVALUATION_LOSS, "loss")):
        metric = GaugeMetricFamily(name, f"Mean {field} of the last evaluation.", labels=["process", "of"])
        for (process, kind), report in reports.items():
            if kind.startswith("evaluated "):
                metric.add_metric([process, report["of"]], report[field])
        yield metric


def _tokens(reports: Mapping[tuple[str, str], Mapping[str, Any]], name: str, label: str) -> Metric:
    metric = GaugeMetricFamily(name, f"Padded tokens of each {label} in a period.", labels=["process", label])
    for (process, kind), report in reports.items():
        if kind == "balance":
            for number, amounts in report[f"{label}s"].items():
                metric.add_metric([process, str(number)], amounts["padded_tokens"])
    return metric
