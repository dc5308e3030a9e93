"""`headrace topics`: make the topics, or say how an administrator makes them."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import click

from headrace.options import Given, configured, example
from headrace.schemas.errors import UsageError

if TYPE_CHECKING:
    from headrace.pipeline.shape import TopicPlan


@click.group("topics", short_help="Make the topics.", epilog=example("headrace topics create --print"))
def command() -> None:
    """The topics that a configuration names."""


@command.command("create", epilog=example("headrace topics create", "headrace topics create --print | sh"))
@click.option("--print", "print_only", is_flag=True, help="Print kafka-topics.sh commands instead of making them.")
@configured
def create(given: Given, print_only: bool) -> None:
    """Make the text, tokens and dead-letter topics; topics that are there are compared and left as they are."""
    from headrace import stages
    from headrace.pipeline.broker import open_broker
    from headrace.pipeline.shape import ensure_topics

    config = given.load().config
    plan = stages.ingest_args(config).plan()
    if print_only:
        click.echo("\n".join(kafka_commands(config.broker, plan)))
        return
    with closing(open_broker(config.broker, config.kafka)) as broker:
        there = {name for name in (plan.text, plan.tokens, plan.dead_letters) if broker.describe(name) is not None}
        shape = ensure_topics(broker, plan, create=True)
        for topic in (shape.text, shape.tokens, shape.dead_letters):
            how = "was there" if topic.name in there else "made"
            click.echo(f"{topic.name}: {topic.partitions} partitions, {how}")


def kafka_commands(broker: str, plan: TopicPlan) -> list[str]:
    """What an administrator types. The replication factor is the cluster's default."""
    scheme, _, servers = broker.partition("://")
    if scheme != "kafka":
        raise UsageError(f"--print: {broker} is no Kafka broker: `headrace topics create` makes its topics")
    begin = f"kafka-topics.sh --bootstrap-server {servers} --create --if-not-exists"
    kept_ms = int(plan.tokens_retention_h * 3_600_000)
    delete = "--config cleanup.policy=delete"
    return [
        f"{begin} --topic {plan.text} --partitions {plan.text_partitions} {delete}",
        f"{begin} --topic {plan.tokens} --partitions {plan.lanes} {delete} --config retention.ms={kept_ms}",
        f"{begin} --topic {plan.dead_letters} --partitions 1 {delete} --config retention.ms=-1",
    ]
