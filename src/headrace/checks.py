"""What `headrace doctor` looks at: the machine, and everything that a configuration names.

A check is a function that yields findings; it changes nothing that it does not undo. Packages are imported in a child
process, because a broken one may do worse than raise, and importing Paddle costs seconds that others need not pay.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from headrace.config import INGEST_SECTIONS, Config, unsupported
from headrace.pipeline.broker import open_broker
from headrace.pipeline.topics import Broker, Topic
from headrace.schemas.errors import HeadraceError, TryAgain

_IMPORT_S = 120
_LOW_DISK_BYTES = 2 * 2**30
_PYTHONS = ((3, 11), (3, 12))


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `away` marks a failure that may pass by itself."""

    level: Literal["ok", "warn", "fail"]
    subject: str
    text: str
    cure: str = ""
    away: bool = False


def machine() -> Iterator[Finding]:
    """Python, cores, memory-backed things that no configuration changes."""
    running = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] in _PYTHONS:
        yield Finding("ok", "python", running)
    else:
        known = " or ".join(".".join(map(str, python)) for python in _PYTHONS)
        yield Finding("fail", "python", running, f"use {known}")
    yield Finding("ok", "cores", str(_cores()))


def packages(config: Config | None, *, trains: bool) -> Iterator[Finding]:
    """What the configured stages import."""
    yield _package("pyarrow")
    if config is None or config.broker.startswith("kafka:"):
        yield _package("confluent-kafka", "confluent_kafka")
    yield _package("numba", missing="pip install numba: vocab.txt tokenizers need it")
    if trains:
        yield _package("paddlepaddle", "paddle", "pip install 'headrace[cpu]', or docs/install.md for GPUs")
        yield _package("paddlenlp", "paddlenlp.transformers", "pip install 'headrace[cpu]'")


def devices(config: Config) -> Iterator[Finding]:
    """What ranks would train on."""
    from headrace.trainer.device import visible_gpus

    gpus = visible_gpus()
    if gpus:
        yield Finding("ok", "devices", f"{len(gpus)} GPUs: that many ranks unless --ranks says otherwise")
    else:
        yield Finding("ok", "devices", "no GPU: one rank on the CPU unless --ranks says otherwise")
    ranks = max(1, len(gpus))
    if ranks > config.tokens.lanes:
        cure = f"train with --ranks {config.tokens.lanes}, or use a new tokens topic with more lanes"
        yield Finding("fail", "devices", f"{ranks} devices, tokens.lanes is {config.tokens.lanes}", cure)
    wanted = config.ingest.workers + ranks
    if not gpus and wanted > _cores():
        text = f"{config.ingest.workers} workers and {ranks} rank on {_cores()} cores"
        yield Finding("warn", "cores", text, "lower ingest.workers, or expect each to be slower")


def settings(config: Config, *, trains: bool) -> Iterator[Finding]:
    """What this version cannot do yet."""
    for line in unsupported(config, None if trains else INGEST_SECTIONS):
        key, _, text = line.partition(": ")
        yield Finding("fail", key, text)
    if config.train is None:
        yield Finding("warn", "train", "there is no train section", "fine for a machine that only ingests")


def broker_and_topics(config: Config) -> Iterator[Finding]:
    """Whether the broker answers, and whether the topics are as configured."""
    try:
        broker = open_broker(config.broker, config.kafka)
        try:
            found = list(_topics(config, broker))
        finally:
            broker.close()
    except TryAgain as error:
        yield Finding("fail", "broker", str(error), away=True)
    except HeadraceError as error:
        yield Finding("fail", "broker", str(error))
    else:
        yield Finding("ok", "broker", f"{config.broker} answers")
        yield from found


def _topics(config: Config, broker: Broker) -> Iterator[Finding]:
    cure = "`headrace topics create` makes it; so does the stage that needs it first"
    for subject, name in (
        ("text.topic", config.text.topic),
        ("tokens.topic", config.tokens.topic),
        ("ingest.dead_letters.topic", config.ingest.dead_letters.topic),
    ):
        topic = broker.describe(name)
        if topic is None:
            yield Finding("warn", subject, f"{name} is not there yet", cure)
        elif subject == "tokens.topic" and topic.partitions != config.tokens.lanes:
            text = f"{name} has {topic.partitions} partitions, tokens.lanes is {config.tokens.lanes}"
            fix = f"set tokens.lanes to {topic.partitions}, or name another tokens.topic"
            yield Finding("fail", subject, f"{text} (the lanes of a topic never change)", fix)
        else:
            yield Finding("ok", subject, f"{name}: {_shape(topic)}")
            yield from _retention(config, subject, topic)


def _shape(topic: Topic) -> str:
    kept = "for ever" if topic.retention_ms is None else f"{topic.retention_ms / 3_600_000:g} h"
    return f"{topic.partitions} partitions, kept {kept}, messages up to {topic.max_message_bytes} bytes"


def _retention(config: Config, subject: str, topic: Topic) -> Iterator[Finding]:
    if subject == "tokens.topic" and topic.retention_ms is not None:
        kept_h = topic.retention_ms / 3_600_000
        if kept_h < config.tokens.retention_h:
            text = f"tokens are kept {kept_h:g} h, tokens.retention_h is {config.tokens.retention_h:g}"
            yield Finding("warn", subject, text, f"raise retention.ms of {topic.name}, or lower the key")


def tokenizer(config: Config) -> Iterator[Finding]:
    """Which tokenizer is used, why, and whether it loads."""
    given = config.tokenizer
    if not given.path:
        cure = "set it to a model's name, or to a folder with vocab.txt, tokenizer.json or a SentencePiece *.model"
        yield Finding("fail", "tokenizer.path", "is empty, and there is no train.model to take it from", cure)
        return
    origin = "train.model" if config.train is not None and config.train.model == given.path else "tokenizer.path"
    from headrace.ingest.tokenizers import find, options

    try:
        found = find(given.path, options(given))
        loaded = found.load()
    except HeadraceError as error:
        away = isinstance(error, TryAgain)
        yield Finding("fail", "tokenizer", f"{given.path} (from {origin}): {error}", away=away)
        return
    vocabulary = f"{loaded.vocab_size} tokens, {found.case}, fingerprint {loaded.fingerprint[:12]}"
    yield Finding("ok", "tokenizer", f"{found.kind} over {found.file} (from {origin}): {vocabulary}")
    yield Finding("ok", "tokenizer", found.why)
    for note in found.notes:
        yield Finding("warn", "tokenizer", note, "fine where it is meant")


def checkpoints(config: Config) -> Iterator[Finding]:
    """Whether checkpoints can be written where they should go."""
    from headrace.trainer.checkpoint_store import open_store

    root, probe = config.checkpoint.root, f".doctor-{os.getpid()}"
    try:
        store = open_store(root, config.name, ".doctor")
        store.write(probe, "probe", [b"headrace doctor"])
        read = store.read(probe, "probe")
        store.remove_folder(probe)
        if "://" not in root:
            _remove_empty(Path(root) / config.name / ".doctor", upto=Path(root).parent)
    except TryAgain as error:
        yield Finding("fail", "checkpoint.root", str(error), away="://" in root)
    except (OSError, ImportError, ValueError) as error:
        cure = "correct checkpoint.root, or install the store's package (headrace[oss], [s3], [hdfs])"
        yield Finding("fail", "checkpoint.root", f"{root}: {error}", cure)
    else:
        if read == b"headrace doctor":
            yield Finding("ok", "checkpoint.root", f"{root} is writable")
        else:
            yield Finding(
                "fail", "checkpoint.root", f"{root} gave back other bytes than were written", "check the store"
            )


def disk(config: Config | None) -> Iterator[Finding]:
    """Free space where this machine writes."""
    places = {"temporary files": tempfile.gettempdir()}
    if config is not None and config.broker.startswith("local:"):
        places["broker"] = config.broker.removeprefix("local:")
    if config is not None and "://" not in config.checkpoint.root:
        places["checkpoint.root"] = config.checkpoint.root
    for subject, place in places.items():
        free = shutil.disk_usage(_existing(Path(place))).free
        level: Literal["ok", "warn"] = "ok" if free >= _LOW_DISK_BYTES else "warn"
        cure = "" if level == "ok" else "make room, or name another place"
        yield Finding(level, "disk", f"{free / 2**30:.1f} GiB free for {subject} ({place})", cure)


def _existing(path: Path) -> Path:
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def _remove_empty(folder: Path, upto: Path) -> None:
    """Remove the folders that the probe has made; those that hold something stay."""
    while folder != upto and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def _package(distribution: str, module: str = "", missing: str = "") -> Finding:
    """Whether a package is there and can be imported."""
    try:
        found = version(distribution)
    except PackageNotFoundError:
        return Finding("fail", distribution, "is not installed", missing or f"pip install {distribution}")
    code = f"import json, {module or distribution}\nprint(json.dumps('imported'))"
    try:
        child = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=_IMPORT_S
        )
    except subprocess.TimeoutExpired:
        return Finding("fail", distribution, f"{found} was not imported within {_IMPORT_S} s", "see what it waits for")
    lines = child.stdout.splitlines()
    if child.returncode == 0 and lines and json.loads(lines[-1]) == "imported":
        return Finding("ok", distribution, found)
    last = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
    return Finding("fail", distribution, f"{found} cannot be imported: {last}", missing or "install it again")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
