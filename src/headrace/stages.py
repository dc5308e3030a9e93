"""Run stages on this machine: supervised processes, the view of the pipe beside them, and what signals mean.

The main thread supervises. A second thread looks at the broker once a second and draws. The first SIGINT or SIGTERM
asks every process to finish (a worker commits, ranks save a checkpoint); a second SIGINT gives up waiting.

Results go to standard output, everything else to standard error. Stage processes may print what they like: on a
terminal that goes into a log file, or it would tear the live view.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rich.console import Console

from headrace import watch
from headrace.config import Config, require_train
from headrace.document import ConfigError
from headrace.ingest import tokenizers
from headrace.ingest.config import TokenizerConfig
from headrace.ingest.stage import StageArgs, prepare
from headrace.pipeline.broker import open_broker
from headrace.pipeline.config import BrokerConfig
from headrace.pipeline.slots import Slots
from headrace.pipeline.status import StatusReader
from headrace.pipeline.supervise import Child, Group, Supervisor
from headrace.pipeline.telemetry import Exporter
from headrace.schemas.errors import HeadraceError, TryAgain, UsageError
from headrace.signals import stopping_on_signals
from headrace.trainer.config import RankPlan
from headrace.trainer.device import visible_gpus

LOG_FILE = Path("headrace.log")

_log = logging.getLogger(__name__)

_LAST_LOOK_S = 10.0  # a broker that does not answer holds the end back so long at most

OnEvent = Callable[[Supervisor, str, Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Output:
    """Where the parent itself writes while its processes' output goes elsewhere."""

    results: IO[str]
    progress: IO[str]


def rank_plan(config: Config, *, development: str = "", end_on_command: bool = False) -> RankPlan:
    """The parts of the configuration that ranks use; `development` is the file with the tokenized development set.

    Raises ConfigError where there is no `train` section.
    """
    return RankPlan(
        name=config.name,
        broker=BrokerConfig(broker=config.broker, kafka=config.kafka),
        text_topic=config.text.topic,
        tokens=config.tokens,
        train=require_train(config),
        evaluate=config.evaluate,
        checkpoint=config.checkpoint,
        tokenizer_path=_tokenizer_path(config.tokenizer),
        tokenizer=config.tokenizer.model_dump(mode="json", exclude={"path"}),
        max_tokens=config.tokenizer.max_tokens,
        development=development,
        end_on_command=end_on_command,
    )


def _tokenizer_path(settings: TokenizerConfig) -> str:
    """Where the files are that checkpoints keep: of a built-in name, its vocabulary on this machine."""
    if not settings.path or Path(settings.path).expanduser().exists():
        return settings.path
    try:
        return str(tokenizers.find(settings.path, tokenizers.options(settings)).file)
    except (UsageError, TryAgain) as error:
        _log.warning("checkpoints will hold no vocabulary: %s", error)
        return settings.path


def ingest_args(config: Config) -> StageArgs:
    """The parts of the configuration that a worker uses."""
    return StageArgs(
        broker=BrokerConfig(broker=config.broker, kafka=config.kafka),
        text=config.text,
        tokens=config.tokens,
        tokenizer=config.tokenizer,
        ingest=config.ingest,
        name=config.name,
        run=config.run,
        labels=config.labels,
    )


def ingest_group(config: Config) -> Group:
    """The workers of this machine, after what could be wrong for all of them was looked at once."""
    args = ingest_args(config)
    with closing(open_broker(config.broker, config.kafka)) as broker:
        prepare(broker, args)
    slots = Slots(_place(config.broker), config.name, config.ingest.workers)
    workers = [
        Child(f"ingest-{slot}", "headrace.ingest.stage:work", args.revised(slot=slot).model_dump(mode="json"))
        for slot in slots.claim()
    ]

    def children() -> Sequence[Child]:
        assert slots  # held as long as the group is
        return workers

    return Group("ingest", children, config.ingest.restarts)


def _place(broker: str) -> str:
    """The broker, the same from every working directory."""
    scheme, _, rest = broker.partition(":")
    return f"local:{Path(rest).resolve()}" if scheme == "local" else broker


def default_ranks() -> int:
    """One a visible device; one on CPUs."""
    return max(1, len(visible_gpus()))


def check_ranks(ranks: int, lanes: int) -> str | None:
    """A warning for a number of ranks that does not share the lanes out evenly. Raises ConfigError above the lanes."""
    if ranks > lanes:
        raise ConfigError([f"--ranks: {ranks} ranks need as many lanes, tokens.lanes is {lanes}: use {lanes} at most"])
    if lanes % ranks:
        even = max(number for number in range(1, ranks) if lanes % number == 0)
        return f"{ranks} ranks do not divide {lanes} lanes: some wait for others at every step; {even} do"
    return None


def run(
    config: Config,
    groups: Sequence[Group],
    log: Path = LOG_FILE,
    on_event: OnEvent | None = None,
    news: str | None = None,
) -> None:
    """Supervise `groups` until they are done, one fails for good, or a signal comes.

    Raises the error of the process that ended it, KeyboardInterrupt after SIGINT.
    """
    with apart(log if sys.stderr.isatty() else None) as output:
        console = Console(file=output.progress)
        with watch.display(console) as shown:
            if console.is_terminal:
                shown.tell(f"output of the stages: {log}")
            if news:
                shown.tell(news)
            _supervise(config, groups, shown, on_event)


def _supervise(config: Config, groups: Sequence[Group], shown: watch.Display, on_event: OnEvent | None) -> None:
    exporter = Exporter()
    if config.metrics.port is not None:
        exporter.serve(config.metrics.port)

    def tell(name: str, event: dict[str, Any]) -> None:
        exporter.observe(name, event)
        line = said(name, event)
        if line:
            shown.tell(line)
        if on_event is not None:
            on_event(supervisor, name, event)

    supervisor = Supervisor(groups, tell)
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(config, shown, ended), name="watch", daemon=True)
    watcher.start()
    try:
        with stopping_on_signals(supervisor.stopping):
            supervisor.run()
    finally:
        ended.set()
        watcher.join(_LAST_LOOK_S)


def _watch(config: Config, shown: watch.Display, ended: threading.Event) -> None:
    """Draw the state of the pipe until `ended`; runs in a thread of its own, with a broker of its own."""
    with (
        closing(open_broker(config.broker, config.kafka)) as broker,
        closing(StatusReader(broker, watch.watched(config))) as reader,
    ):
        try:
            watch.follow(reader, shown, ended, shown.every_s)
        except HeadraceError as error:
            shown.tell(f"the view ends: {error}")


@contextmanager
def apart(log: Path | None) -> Iterator[Output]:
    """Send what children print to `log`, or without one to standard error; keep both streams for ourselves."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = (os.dup(1), os.dup(2))
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) if log is not None else os.dup(2)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)
    try:
        with os.fdopen(os.dup(kept[0]), "w") as results, os.fdopen(os.dup(kept[1]), "w") as progress:
            yield Output(results, progress)
    finally:
        for number, descriptor in zip((1, 2), kept, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)


def said(name: str, event: Mapping[str, Any]) -> str:
    """An event of a process as a line; empty for events that are figures only."""
    match event.get("event"):
        case "started":
            return f"{name}: started (pid {event['pid']})"
        case "progress" | "ingest":
            return ""
        case "evaluated":
            return f"{name}: {_evaluated(event)}"
        case "ended":
            return f"{name}: done"
        case "restarting":
            return f"{name}: {event['why']}; again in {event['wait_s']:.0f} s (failure {event['failures']})"
        case "killed":
            return f"{name}: did not end within {event['grace_s']:.0f} s and was killed"
        case kind if "text" in event:
            return f"{name}: {event['text']}"
        case kind:
            fields = ", ".join(f"{key} {value}" for key, value in event.items() if key != "event")
            return f"{name}: {kind}{': ' if fields else ''}{fields}"


def _evaluated(event: Mapping[str, Any]) -> str:
    macro_f1 = f", macro F1 {event['macro_f1']:.4f}" if event["macro_f1"] is not None else ""
    of = f"{event['records']} {event['of'].replace('_', ' ')}"
    return f"step {event['step']}: {of}: accuracy {event['accuracy']:.4f}{macro_f1}, loss {event['loss']:.4f}"
