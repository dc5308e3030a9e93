"""Names of topics and consumer groups that follow from a configuration's `name` (and `run`)."""

from __future__ import annotations


def tokens_topic(name: str) -> str:
    """Topic of the token batches."""
    return f"{name}.tokens"


def dead_letters_topic(text_topic: str) -> str:
    """Topic of the dead letters of a text topic."""
    return f"{text_topic}.dead"


def ingest_group(name: str) -> str:
    """Group whose positions in the text topic are what ingest has read."""
    return f"{name}.ingest"


def trained_group(name: str, run: str) -> str:
    """Group whose positions in the tokens topic are what a run has trained: reported each second."""
    return f"{name}.{run}.trained"


def checkpoint_group(name: str, run: str) -> str:
    """Group whose positions in the tokens topic are what lies in a run's last checkpoint."""
    return f"{name}.{run}.checkpoint"


def publish_group(text_topic: str, source: str) -> str:
    """Group whose position says how much of a file has been published."""
    return f"{text_topic}.publish.{source}"
