"""The ingest stage: its arguments, what the parent does before it spawns workers, and a worker process's entry.

    parent   prepare(broker, args)       tokenizer loaded, code compiled, topics checked or made, start policy resolved,
                                         and the tokenizer compared with what this name wrote before
    child    work(args.model_dump(mode="json"), channel)

Workers make their own clients and tokenizer, in the child: neither survives a fork, and one process is one core.
"""

from __future__ import annotations

import gc
import os
import socket
import time
from contextlib import closing
from typing import Any

import pyarrow as pa

from headrace.ingest import tokenizers
from headrace.ingest.backlog import Backlog, BacklogGroups
from headrace.ingest.config import IngestConfig, TokenizerConfig
from headrace.ingest.fields import FieldRules
from headrace.ingest.formats import Rules
from headrace.ingest.numbers import Numbers
from headrace.ingest.start import Beginning, resolve_start
from headrace.ingest.warm import warm_up
from headrace.ingest.worker import IngestWorker, Work
from headrace.pipeline import names
from headrace.pipeline.broker import open_broker
from headrace.pipeline.child import Channel
from headrace.pipeline.config import BrokerConfig, TextConfig, TokensConfig
from headrace.pipeline.shape import Shape, TopicPlan, ensure_topics
from headrace.pipeline.topics import Broker
from headrace.schemas.errors import Fenced, Stop
from headrace.schemas.settings import Settings
from headrace.schemas.tokens import TokensMeta


class StageArgs(Settings):
    """What a worker process is told: the configuration's sections, with topic names and tokenizer path filled in."""

    broker: BrokerConfig
    text: TextConfig
    tokens: TokensConfig
    tokenizer: TokenizerConfig
    ingest: IngestConfig
    name: str
    run: str
    slot: int = 0
    labels: tuple[str, ...] = ()

    def plan(self) -> TopicPlan:
        return TopicPlan(
            text=self.text.topic,
            text_partitions=self.text.partitions,
            tokens=self.tokens.topic,
            lanes=self.tokens.lanes,
            tokens_retention_h=self.tokens.retention_h,
            dead_letters=self.ingest.dead_letters.topic,
        )

    def known_labels(self) -> frozenset[str] | None:
        """None where any label will do."""
        return frozenset(self.labels) if self.labels and self.ingest.labels == "check" else None


def prepare(broker: Broker, args: StageArgs) -> None:
    """In the parent, before workers are spawned: what can be wrong for all of them is found here, once."""
    tokenizer = _load(args.tokenizer)
    warm_up(tokenizer, args.text.fields, args.tokenizer.long_text)
    beginning = Beginning(args.ingest.start, tokenizer.fingerprint)
    ensure_topics(broker, args.plan())
    resolve_start(broker, names.ingest_group(args.name), args.text.topic, args.tokens.topic, beginning)


def work(args: dict[str, Any], channel: Channel) -> None:
    """Run one worker until `channel.stopping` is set."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    pa.set_cpu_count(1)
    told = StageArgs.model_validate(args)
    with closing(open_broker(told.broker.broker, told.broker.kafka)) as broker:
        job = _work(told, ensure_topics(broker, told.plan()))
        groups = BacklogGroups(told.text.topic, job.group, told.tokens.topic, names.trained_group(told.name, told.run))
        backlog = Backlog(broker, groups, told.tokens.backlog_tokens)
        with closing(broker.worker(job.name, job.group, told.text.topic)) as worker:
            _look_less_often_for_garbage()
            try:
                IngestWorker(worker, job, backlog, Numbers(channel.report, time.monotonic)).run(channel.stopping)
            except Fenced as error:  # restarting would fence the other, and so on for ever
                raise Stop(f"another ingest of {told.name!r} runs on this machine: {error}") from error


def _look_less_often_for_garbage() -> None:
    """A poll makes thousands of objects, which live until it is done, and no cycles: looking for them took a third."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def _work(args: StageArgs, shape: Shape) -> Work:
    tokenizer = _load(args.tokenizer)
    return Work(
        name=f"{args.name}.ingest.{socket.gethostname()}.{args.slot}",
        group=names.ingest_group(args.name),
        rules=Rules(
            args.text.topic,
            args.text.format,
            FieldRules(args.text.fields, args.ingest.max_text_bytes, args.known_labels()),
        ),
        tokenizer=tokenizer,
        tokens=shape.tokens,
        dead_letters=shape.dead_letters,
        meta=TokensMeta(
            tokenizer.fingerprint, tokenizer.vocab_size, tokenizer.special_ids, {args.text.topic: shape.text.id}
        ),
        batch_tokens=args.tokens.batch_tokens,
        long_text=args.tokenizer.long_text,
        poll_messages=args.ingest.poll_messages,
        commit_s=args.ingest.commit_ms / 1000,
        max_bad_share=args.ingest.dead_letters.max_share,
    )


def _load(settings: TokenizerConfig) -> tokenizers.Tokenizer:
    return tokenizers.find(settings.path, tokenizers.options(settings)).load()
