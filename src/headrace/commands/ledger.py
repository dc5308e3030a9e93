"""`headrace ledger`: what became of every record."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from headrace.options import Given, as_json, configured, example
from headrace.schemas.errors import EXIT_FAILED

if TYPE_CHECKING:
    from headrace.config import Config
    from headrace.pipeline.topics import Broker
    from headrace.trainer.ledger_read import Ledger
    from headrace.trainer.ledger_verify import RunTopics, Verification

at_step = click.option("--step", type=int, help="The ledger of the checkpoint at this step.  [default: the newest]")


@click.group(
    "ledger",
    short_help="What became of every record.",
    epilog=example("headrace ledger find orders/0@1234", "headrace ledger verify --json"),
)
def command() -> None:
    """Ask the ledger of a run what became of records. Another run: --set train.run=NAME."""


@command.command("find", epilog=example("headrace ledger find orders/0@1234"))
@click.argument("record", metavar="TOPIC/PARTITION@OFFSET")
@at_step
@as_json
@configured
@click.pass_context
def find(context: click.Context, given: Given, record: str, step: int | None, as_json: bool) -> None:
    """Say at which step a record was trained, or what else became of it. Exit code 1 when it is not in the ledger.

    +ROW after the offset names one record of a bulk message, #PART one part of a long text.
    """
    from headrace.schemas.record import Origin

    origin = Origin.parse(record)
    ledger = open_ledger(given.load().config, step)
    found = ledger.find(origin)
    if as_json:
        click.echo(json.dumps([{**asdict(row), "origin": str(row.origin)} for row in found]))
    for row in [] if as_json else found:
        reason = f" ({row.reason})" if row.reason else ""
        again = f", pass {row.pass_number}" if row.pass_number > 1 else ""
        where = f"at step {row.step}, lane {row.lane}, in checkpoint {row.checkpoint}{again}"
        click.echo(f"{row.origin}: {row.outcome.replace('_', ' ')}{reason} {where}")
    if not found:
        click.echo(
            f"{origin}: not in the ledger of checkpoint {ledger.step}: it waits in a lane, is a dead letter, or is no "
            "record; `headrace ledger verify` compares the topics",
            err=True,
        )
        context.exit(EXIT_FAILED)


@command.command("ranges", epilog=example("headrace ledger ranges --step 2000"))
@at_step
@as_json
@configured
def ranges(given: Given, step: int | None, as_json: bool) -> None:
    """List what a checkpoint has seen: ranges of offsets of each partition, and the rows by outcome."""
    ledger = open_ledger(given.load().config, step)
    seen = ledger.ranges()
    if as_json:
        partitions = [
            {"topic": topic, "partition": partition, "ranges": entry.ranges.tolist(), "rows": dict(entry.rows)}
            for (topic, partition), entry in seen.items()
        ]
        click.echo(json.dumps({"step": ledger.step, "partitions": partitions}))
        return
    for (topic, partition), entry in seen.items():
        spans = ", ".join(f"{first}-{last}" for first, last in entry.ranges.tolist())
        rows = ", ".join(f"{count} {outcome.replace('_', ' ')}" for outcome, count in sorted(entry.rows.items()))
        click.echo(f"{topic}/{partition}: {spans}: {rows}")


@command.command("hash", epilog=example("headrace ledger hash --step 2000"))
@at_step
@configured
def hash_(given: Given, step: int | None) -> None:
    """Print one SHA-256 over everything trained, in the order of training.

    Two runs that trained the same global batches have the same hash, at any number of ranks.
    """
    click.echo(open_ledger(given.load().config, step).hash())


@command.command(
    "verify", epilog=example("headrace ledger verify", "headrace ledger verify --json | tail -1 | jq .missing")
)
@at_step
@as_json
@configured
@click.pass_context
def verify(context: click.Context, given: Given, step: int | None, as_json: bool) -> None:
    """Compare ledger, dead letters, lanes and text topic: every record must have exactly one outcome.

    Exit code 1 when a record is missing or has two. With --json the counts are one line.
    """
    from headrace.pipeline.broker import open_broker
    from headrace.trainer.ledger_verify import verify as compare

    config = given.load().config
    ledger = open_ledger(config, step)
    broker = open_broker(config.broker, config.kafka)
    try:
        topics = topics_of(config)
        result = compare(ledger, broker, topics, since=starts_of(broker, topics))
    finally:
        broker.close()
    click.echo(json.dumps(counts(result)) if as_json else describe(result, ledger.step))
    if not result.ok:
        context.exit(EXIT_FAILED)


def open_ledger(config: Config, step: int | None = None) -> Ledger:
    """The ledger of the configuration's run."""
    from headrace.trainer.checkpoint_store import open_store
    from headrace.trainer.ledger_read import Ledger

    return Ledger.open(open_store(config.checkpoint.root, config.name, config.run), step)


def topics_of(config: Config) -> RunTopics:
    from headrace.pipeline.names import ingest_group
    from headrace.trainer.ledger_verify import RunTopics

    dead_letters = config.ingest.dead_letters.topic
    return RunTopics(
        config.text.topic, dead_letters, config.tokens.topic, ingest_group(config.name), config.text.format
    )


def starts_of(broker: Broker, topics: RunTopics) -> dict[int, int]:
    """Where `ingest.start` had ingest begin in each partition: text before that was never asked for."""
    positions = broker.positions(topics.ingest_group, topics.text, settled=False)
    notes = {partition: position.notes.get("start") for partition, position in positions.items()}
    return {partition: start for partition, start in notes.items() if isinstance(start, int)}


def counts(result: Verification) -> dict[str, object]:
    """JSON values; the examples by name."""
    values = asdict(result)
    for examples in ("missing_origins", "duplicated_origins"):
        values[examples] = [str(origin) for origin in getattr(result, examples)]
    return {**values, "ok": result.ok}


def describe(result: Verification, step: int) -> str:
    """What people read: every count that is not zero, and the verdict."""
    named = {name: value for name, value in asdict(result).items() if isinstance(value, int)}
    lines = [f"{value:>12,} {name.replace('_', ' ')}" for name, value in named.items() if value or name == "published"]
    for what, origins in (("missing", result.missing_origins), ("duplicated", result.duplicated_origins)):
        if origins:
            lines.append(f"{what}, for example: {', '.join(map(str, origins))}")
    verdict = "every record has exactly one outcome" if result.ok else "records are missing, double or unknown"
    return "\n".join([*lines, f"checkpoint {step}: {verdict}"])
