"""What the demo prints: measured from the ledger, the topics and the trainer's last report. Nothing is assumed."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from headrace.commands.ledger import open_ledger, topics_of
from headrace.config import Config
from headrace.pipeline import names
from headrace.pipeline.broker import open_broker
from headrace.pipeline.scan import messages
from headrace.pipeline.supervise import Child, Group, Supervisor
from headrace.pipeline.topics import Broker
from headrace.trainer.checkpoint import folder_of
from headrace.trainer.ledger_read import Ledger
from headrace.trainer.ledger_verify import Verification, verify


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one demo."""

    verification: Verification
    in_topic: int  # messages on the text topic
    first_step_ms: int
    last_publish_ms: int
    steps: int
    figures: dict[str, Any]  # the trainer's last report
    checkpoint: str

    @property
    def complete(self) -> bool:
        """Whether every record that lies in the text topic was trained exactly once."""
        found = self.verification
        return found.ok and found.published == found.trained == self.in_topic

    @property
    def trained_while_published(self) -> bool:
        return self.first_step_ms < self.last_publish_ms


def measure(config: Config) -> Report:
    """Read everything once the run is over."""
    ledger = open_ledger(config)
    with closing(open_broker(config.broker, config.kafka)) as broker:
        topics = topics_of(config)
        count, last_ms = _published(broker, config.text.topic)
        trained = broker.positions(names.trained_group(config.name, config.run), config.tokens.topic)
        return Report(
            verification=verify(ledger, broker, topics, upto=_ends(broker, config.text.topic)),
            in_topic=count,
            first_step_ms=_first_step_ms(ledger),
            last_publish_ms=last_ms,
            steps=ledger.step,
            figures=dict(trained[0].notes),
            checkpoint=f"{ledger.store.address}/{folder_of(ledger.step)}",
        )


def as_json(report: Report, ranks: int, classes: list[str], wall_s: float) -> dict[str, Any]:
    """The one line of `--json`."""
    found = report.verification
    return {
        "records_published": report.in_topic,
        "records_trained": found.trained,
        "missing": found.missing,
        "duplicates": found.duplicated,
        "dead_letters": found.dead_lettered,
        "first_step_before_last_publish": report.trained_while_published,
        "steps": report.steps,
        "ranks": ranks,
        "accuracy": report.figures["accuracy"],
        "freshness_p50_s": report.figures["freshness_p50_s"],
        "freshness_p99_s": report.figures["freshness_p99_s"],
        "checkpoint": report.checkpoint,
        "new_sentences": classes,
        "wall_s": round(wall_s, 1),
    }


def lines(report: Report, ranks: int, sentences: dict[str, str], wall_s: float) -> list[str]:
    """The same for people."""
    found, figures = report.verification, report.figures
    ahead_s = (report.last_publish_ms - report.first_step_ms) / 1000
    when = f"{ahead_s:.1f} s before" if ahead_s > 0 else f"{-ahead_s:.1f} s after"
    verdict = "every record was trained exactly once" if report.complete else "NOT every record was trained once"
    return [
        f"{report.in_topic} records published, {found.trained} trained in {report.steps} steps on {ranks} ranks: "
        f"{found.missing} missing, {found.duplicated} duplicated, {found.dead_lettered} dead letters: {verdict}",
        f"the first optimizer step was done {when} the last record was published",
        f"progressive accuracy of the last thousand: {figures['accuracy']:.3f}",
        f"freshness, publish to gradient: p50 {figures['freshness_p50_s']:.2f} s, "
        f"p99 {figures['freshness_p99_s']:.2f} s",
        f"checkpoint: {report.checkpoint}",
        *(f"{label}  {sentence}" for sentence, label in sentences.items()),
        f"{wall_s:.0f} s in all",
    ]


def classify(report: Report, sentences: tuple[str, ...]) -> list[str]:
    """What the saved model makes of sentences it has not seen; in a process of its own, which imports Paddle."""
    labels: list[str] = []

    def hear(_: str, event: dict[str, Any]) -> None:
        labels.extend(event.get("labels", ()))

    child = Child("predict", "headrace.predicting:work", {"model": report.checkpoint, "texts": list(sentences)})
    Supervisor([Group("predict", lambda: [child], restarts=0)], hear).run()
    return labels


def _published(broker: Broker, topic: str) -> tuple[int, int]:
    """Messages on the topic, and when the broker took the last one."""
    count = last_ms = 0
    spans = {partition: (at.first, at.end) for partition, at in broker.ends(topic).items()}
    for fetched in messages(broker, topic, spans):
        count += len(fetched)
        last_ms = max(last_ms, *(message.timestamp_ms for message in fetched))
    return count, last_ms


def _ends(broker: Broker, topic: str) -> dict[int, int]:
    return {partition: at.end for partition, at in broker.ends(topic).items()}


def _first_step_ms(ledger: Ledger) -> int:
    """When the optimizer had stepped for the first time."""
    earliest = (pc.min(table.column("stepped").cast("int64")).as_py() for table in ledger.steps() if len(table))
    return int(min(earliest))
