"""Look at the pipe again and again, live on a terminal and in plain lines elsewhere."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.live import Live

from headrace import view
from headrace.pipeline.status import Rates, Status, StatusReader, Watched, rates
from headrace.schemas.errors import TryAgain

if TYPE_CHECKING:
    from headrace.config import Config

LOOK_S = 1.0
_NEWS = 6


def watched(config: Config) -> Watched:
    """The names of what a configuration's status is about."""
    return Watched(config.name, config.run, config.text.topic, config.tokens.topic, config.ingest.dead_letters.topic)


class Display(Protocol):
    """Where looks and news go, and how often it should be looked."""

    @property
    def every_s(self) -> float: ...

    def show(self, status: Status, rates: Rates) -> None: ...
    def tell(self, line: str) -> None: ...


@dataclass(slots=True)
class PlainDisplay:
    """One line per look, one per news."""

    console: Console
    every_s: float = 5.0  # a log needs fewer lines than a terminal

    def show(self, status: Status, rates: Rates) -> None:
        self.tell(view.line(status, rates))

    def tell(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


@dataclass(slots=True)
class LiveDisplay:
    """A panel that is drawn over, the last news below it."""

    live: Live
    every_s: float = LOOK_S
    news: deque[str] = field(default_factory=lambda: deque(maxlen=_NEWS))
    last: tuple[Status, Rates] | None = None

    def show(self, status: Status, rates: Rates) -> None:
        self.last = (status, rates)
        self._draw()

    def tell(self, line: str) -> None:
        self.news.append(line)
        self._draw()

    def _draw(self) -> None:
        if self.last is not None:
            self.live.update(view.panel(*self.last, self.news), refresh=True)
        else:
            self.live.update("\n".join(self.news), refresh=True)


@contextmanager
def display(console: Console) -> Iterator[Display]:
    """A live one on a terminal, a plain one elsewhere."""
    if not console.is_terminal:
        yield PlainDisplay(console)
        return
    with Live(console=console, auto_refresh=False) as live:
        yield LiveDisplay(live)


def follow(reader: StatusReader, shown: Display, stopping: threading.Event, every_s: float) -> None:
    """Look and show until `stopping` is set, and once more then. A broker that is away is told once, not an end."""
    before: Status | None = None
    away = last = False
    while True:
        try:
            status = reader.look()
        except TryAgain as error:
            if not away:
                shown.tell(str(error))
            away = True
        else:
            away = False
            shown.show(status, rates(before, status) if before is not None else Rates())
            before = status
        if last:
            return
        last = stopping.wait(every_s)
