"""The shape of the topics that a configuration needs: check them, and make those that are missing where we may.

    text           made with `text.partitions`; may have any number, and may gain partitions
    tokens         has exactly `tokens.lanes` partitions, for ever: cursors of checkpoints name lanes
    dead letters   one partition; takes messages as large as the text topic does; kept for ever

On a local broker missing topics are made. On Kafka that is an administrator's work: `headrace topics create`.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.pipeline.topics import Broker, Topic
from headrace.schemas.errors import TopicError

_MS_PER_HOUR = 3_600_000


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """What the configuration says of the three topics."""

    text: str
    text_partitions: int
    tokens: str
    lanes: int
    tokens_retention_h: float
    dead_letters: str


@dataclass(frozen=True, slots=True)
class Shape:
    """The three topics as they are."""

    text: Topic
    tokens: Topic
    dead_letters: Topic


def ensure_topics(broker: Broker, plan: TopicPlan, *, create: bool = False) -> Shape:
    """Return the topics; with `create`, or on a local broker, missing ones are made.

    Raises TopicError for a topic that is missing, or a tokens topic with another number of lanes.
    """
    create = create or broker.address.startswith("local:")
    text = broker.describe(plan.text)
    if text is None:
        _refuse_missing(broker, plan.text, create)
        text = broker.create(plan.text, plan.text_partitions)
    tokens = broker.describe(plan.tokens)
    if tokens is None:
        _refuse_missing(broker, plan.tokens, create)
        retention_ms = int(plan.tokens_retention_h * _MS_PER_HOUR)
        tokens = broker.create(plan.tokens, plan.lanes, retention_ms=retention_ms)
    if tokens.partitions != plan.lanes:
        raise TopicError(
            f"topic {plan.tokens!r} has {tokens.partitions} partitions and tokens.lanes is {plan.lanes}: checkpoints "
            f"hold a cursor for every lane, so set tokens.lanes to {tokens.partitions}, or name another tokens.topic"
        )
    dead_letters = broker.describe(plan.dead_letters)
    if dead_letters is None:
        _refuse_missing(broker, plan.dead_letters, create)
        dead_letters = broker.create(plan.dead_letters, 1, max_message_bytes=text.max_message_bytes)
    return Shape(text, tokens, dead_letters)


def _refuse_missing(broker: Broker, topic: str, create: bool) -> None:
    if not create:
        raise TopicError(
            f"topic {topic!r} does not exist on {broker.address}: make it with `headrace topics create`, or have an "
            "administrator do so (`headrace topics create --print` writes the commands)"
        )
