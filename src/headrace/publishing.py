"""Publish sources one after the other, with a bar on a terminal and plain lines elsewhere."""

from __future__ import annotations

import glob
import hashlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from headrace.document import ConfigError
from headrace.ingest import publish
from headrace.ingest.sending import Control, Published
from headrace.ingest.sending import Progress as Sent
from headrace.ingest.sources.files import LineFormat
from headrace.pipeline.config import TextConfig
from headrace.pipeline.topics import Broker
from headrace.schemas.record import TextFormat
from headrace.signals import stopping_on_signals
from headrace.view import amount

STANDARD_INPUT = "-"
_PLAIN_S = 5.0

_FORMS: dict[TextFormat, LineFormat] = {TextFormat.JSON: "json", TextFormat.TEXT: "text"}


@dataclass(frozen=True, slots=True)
class Order:
    """What to publish and how."""

    sources: Sequence[str]
    rate: float | None = None
    again: bool = False


def sources_of(text: TextConfig, given: Sequence[str]) -> list[str]:
    """The files named on the command line, else those of `text.files`, in their order or that of `shuffle_seed`.

    Raises ConfigError where there are none.
    """
    if given:
        return list(given)
    if not text.files:
        raise ConfigError(["publish: there is no file: name files, `-` for standard input, or set text.files"])
    found: list[str] = []
    for pattern in text.files:
        found += [match for match in matches(pattern, "text.files") if match not in found]
    if text.shuffle_seed is not None:
        found.sort(key=lambda path: hashlib.sha256(f"{text.shuffle_seed} {path}".encode()).digest())
    return found


def matches(pattern: str, key: str) -> list[str]:
    """The files that a pattern matches, in order. Raises ConfigError naming `key` where there are none."""
    found = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 patterns may be absolute
    if not found:
        raise ConfigError([f"{key}: nothing matches {pattern!r}: correct the pattern"])
    return found


def make_local_topic(broker: Broker, text: TextConfig) -> None:
    """On a local broker the text topic is made where it is missing."""
    if broker.address.startswith("local:") and broker.describe(text.topic) is None:
        broker.create(text.topic, text.partitions)


def publish_all(broker: Broker, text: TextConfig, order: Order, console: Console) -> Iterator[Published]:
    """Publish every source; yields what was done of each. A signal stops after what is under way is committed."""
    stopping = threading.Event()
    with stopping_on_signals(stopping), shown(console) as progress:
        for source in order.sources:
            control = Control(rate=order.rate, stopping=stopping, progress=progress)
            yield _publish(broker, text, source, order.again, control)
            if stopping.is_set():
                return


def _publish(broker: Broker, text: TextConfig, source: str, again: bool, control: Control) -> Published:
    if source == STANDARD_INPUT:
        fd = sys.stdin.fileno()
        return publish.publish_pipe(broker, text.topic, fd, form=_FORMS.get(text.format), control=control)
    return publish.publish_file(broker, text.topic, Path(source), again=again, control=control)


@contextmanager
def shown(console: Console) -> Iterator[Callable[[Sent], None]]:
    """A function that shows how far reading and sending are."""
    if not console.is_terminal:
        yield _plain(console)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        DownloadColumn(),
        TextColumn("{task.fields[lines]} records"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bars:
        tasks = {}

        def move(at: Sent) -> None:
            if at.source not in tasks:
                tasks[at.source] = bars.add_task(at.source, total=at.size_bytes, lines="0")
            bars.update(tasks[at.source], completed=at.done_bytes, lines=amount(at.lines))

        yield move


def _plain(console: Console) -> Callable[[Sent], None]:
    """A line every few seconds."""
    told_at = time.monotonic()

    def tell(at: Sent) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= _PLAIN_S:
            told_at = time.monotonic()
            share = f" ({100 * at.done_bytes / at.size_bytes:.0f} %)" if at.size_bytes else ""
            console.print(f"{at.source}: {at.lines} records{share}", markup=False, highlight=False, soft_wrap=True)

    return tell
