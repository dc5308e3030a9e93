"""The demo: a pipe from the first record to a saved model, on this machine, measured.

1. write texts, vocabulary and a configuration into a folder
2. supervise three groups: a publisher at a fixed rate, ingest workers, ranks
3. when the publisher is done, tell the ranks that the text topic is complete: they train what is left and end
4. ask ledger and topics what became of every record, and the saved model what it makes of new sentences

Nothing here knows the outcome beforehand; see `demo_report`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace import stages
from headrace.config import Config, load
from headrace.demo_text import LABELS, NEW_SENTENCES, vocabulary, work_orders
from headrace.ingest.publish import publish_file
from headrace.ingest.sending import Control
from headrace.pipeline.broker import open_broker
from headrace.pipeline.child import Channel
from headrace.pipeline.supervise import Child, Group, Supervisor
from headrace.trainer.stage import ranks_group

CONFIG_FILE = "headrace.yaml"
TEXT_FILE = "workorders.jsonl"
LOG_FILE = "headrace.log"
_SEED = 1

#: Small enough for two cores. As many lanes as ranks: few and large micro-batches, each has a cost of its own.
_CONFIG = """\
# The demo's configuration; `headrace status -c {folder}/headrace.yaml` and other verbs work with it.
name: workorders
broker: local:{folder}/data
text: {{format: json, partitions: 4}}
tokenizer: {{path: {folder}/tokenizer, max_tokens: 96}}
tokens: {{lanes: {lanes}, batch_tokens: 8192}}
ingest: {{workers: {workers}, commit_ms: 200}}
train:
  model:                        # random weights
    hidden_size: 64
    num_hidden_layers: 2
    num_attention_heads: 4
    intermediate_size: 256
    max_position_embeddings: 128
    hidden_dropout_prob: 0.0    # slow on CPUs
    attention_probs_dropout_prob: 0.0
  task: {{type: classification, labels: [{labels}]}}
  batch: {{tokens: 4096, flush_s: 0.5}}
  window_tokens: 16384
  optimizer: {{learning_rate: 1e-3, warmup_steps: 20}}
  stop: end
checkpoint: {{root: {folder}/checkpoints, every_s: 30}}
"""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything."""

    records: int
    rate: float
    ranks: int
    workers: int


def prepare(folder: Path, scale: Scale) -> Config:
    """Write texts, vocabulary and configuration; load the configuration as any other."""
    (folder / "tokenizer").mkdir(parents=True, exist_ok=True)
    orders = list(work_orders(scale.records, _SEED))
    with (folder / TEXT_FILE).open("w", encoding="utf-8") as file:
        for order in orders:
            file.write(json.dumps(order.fields(), ensure_ascii=False) + "\n")
    words = vocabulary([*(order.text for order in orders), *NEW_SENTENCES])
    (folder / "tokenizer" / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    text = _CONFIG.format(folder=folder.absolute(), workers=scale.workers, lanes=scale.ranks, labels=", ".join(LABELS))
    (folder / CONFIG_FILE).write_text(text, encoding="utf-8")
    return load(folder / CONFIG_FILE).config


def run(config: Config, folder: Path, scale: Scale) -> None:
    """Publish, ingest and train until every record that was published is trained."""
    publisher = Child(
        "publish",
        "headrace.demo:publish",
        {"broker": config.broker, "topic": config.text.topic, "file": str(folder / TEXT_FILE), "rate": scale.rate},
    )
    groups = [
        stages.ingest_group(config),
        ranks_group(stages.rank_plan(config, end_on_command=True), scale.ranks),
        Group("publish", lambda: [publisher], restarts=3),
    ]
    complete = False

    def tell_ranks(supervisor: Supervisor, name: str, event: Mapping[str, Any]) -> None:
        """Ranks that are started again after a failure have forgotten what they were told."""
        nonlocal complete
        complete = complete or (name == "publish" and event.get("event") == "ended")
        if complete and (name == "publish" or event.get("event") == "started"):
            supervisor.send("ranks", {"end": True})

    stages.run(config, groups, log=folder / LOG_FILE, on_event=tell_ranks)


def publish(args: dict[str, Any], channel: Channel) -> None:
    """The publisher's process: the code behind `headrace publish --rate`."""
    broker = open_broker(args["broker"])
    try:
        control = Control(rate=args["rate"], stopping=channel.stopping)
        publish_file(broker, args["topic"], Path(args["file"]), control=control)
    finally:
        broker.close()
