"""Show where the pipe stands: one renderer for `status`, `up` and `demo`.

`panel` is the live view of a terminal, `line` the same in one plain line for logs, `document` the same as JSON values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.pipeline.status import Rates, Status

_BAR = 24
_MANY_LANES = 16  # more than so many are folded into one row


def panel(status: Status, rates: Rates, news: Iterable[str] = ()) -> RenderableType:
    """Numbers on top, then the text topic, then the lanes, then what happened lately."""
    parts: list[RenderableType] = [_numbers(status, rates), Text(), _text(status), Text(), _lanes(status)]
    happened = [Text(line, style="dim", overflow="ellipsis", no_wrap=True) for line in news]
    return Group(*parts, *([Text(), *happened] if happened else []))


def line(status: Status, rates: Rates) -> str:
    """Everything that moves, in one line."""
    parts = [f"{name} {value}" for name, value in _facts(status, rates)]
    return ", ".join(parts)


def document(status: Status, rates: Rates) -> dict[str, Any]:
    """JSON values."""
    return {
        **asdict(status),
        "backlog_tokens": status.backlog_tokens,
        "backlog_s": rates.backlog_s,
        "trainer_runs": status.trainer_runs,
        "rates": {"records_s": rates.records, "tokens_s": rates.tokens, "emitted_tokens_s": rates.emitted_tokens},
    }


def amount(value: float) -> str:
    """At most four figures: 950, 12.3k, 4.56M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def seconds(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 120:
        return f"{value:.2g} s" if value < 10 else f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def _facts(status: Status, rates: Rates) -> list[tuple[str, str]]:
    """Names and values of the numbers, those that are known."""
    facts: list[tuple[str, str]] = []
    trainer = status.trainer
    if trainer is None:
        facts.append(("trainer", "has not reported yet"))
    else:
        facts.append(("step", str(trainer.step)))
        if not status.trainer_runs:
            facts.append(("trainer", f"silent for {seconds((status.at_ms - trainer.reported_ms) / 1000)}"))
        if trainer.loss is not None:
            facts.append(("loss", f"{trainer.loss:.4f}"))
        if trainer.accuracy is not None:
            facts.append(("accuracy", f"{trainer.accuracy:.3f}"))
        if trainer.macro_f1 is not None:
            facts.append(("macro F1", f"{trainer.macro_f1:.3f}"))
        if trainer.freshness_p50_s is not None:
            p50, p99 = seconds(trainer.freshness_p50_s), seconds(trainer.freshness_p99_s)
            facts.append(("freshness", f"p50 {p50} p99 {p99}"))
        facts.append(("trained", f"{amount(trainer.records)} records"))
    if rates.records is not None:
        facts.append(("records/s", amount(rates.records)))
    if rates.tokens is not None:
        facts.append(("tokens/s", amount(rates.tokens)))
    if rates.emitted_tokens is not None:
        facts.append(("ingest tokens/s", amount(rates.emitted_tokens)))
    backlog_s = f" ({seconds(rates.backlog_s)})" if rates.backlog_s is not None else ""
    facts.append(("backlog", f"{amount(status.backlog_tokens)} tokens{backlog_s}"))
    facts.append(("dead letters", str(status.dead_letters)))
    return facts


def _numbers(status: Status, rates: Rates) -> Table:
    table = Table.grid(padding=(0, 2))
    facts = _facts(status, rates)
    for first in range(0, len(facts), 3):
        table.add_row(
            *(Text.assemble((f"{name} ", "dim"), (value, "bold")) for name, value in facts[first : first + 3])
        )
    return table


def _text(status: Status) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("text partition", "first", "read", "end", ""):
        table.add_column(title, justify="left" if title in ("", "text partition") else "right")
    for part in status.text:
        bar = _bar(part.first, part.end, [(part.read, "green")])
        table.add_row(str(part.partition), str(part.first), _or_dash(part.read), str(part.end), bar)
    if not status.text:
        table.add_row("there is no text topic yet")
    return table


def _lanes(status: Status) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("lane", "first", "checkpoint", "trained", "end", ""):
        table.add_column(title, justify="left" if title in ("", "lane") else "right")
    for lane in status.lanes[:_MANY_LANES]:
        bar = _bar(lane.first, lane.end, [(lane.checkpoint, "green"), (lane.trained, "yellow")])
        saved, trained = _or_dash(lane.checkpoint), _or_dash(lane.trained)
        table.add_row(str(lane.lane), str(lane.first), saved, trained, str(lane.end), bar)
    if len(status.lanes) > _MANY_LANES:
        table.add_row(f"and {len(status.lanes) - _MANY_LANES} more")
    if not status.lanes:
        table.add_row("there is no tokens topic yet")
    return table


def _bar(first: int, end: int, marks: list[tuple[int | None, str]]) -> Text:
    """How far each mark has come from `first` to `end`; a picture, not a count."""
    bar, drawn = Text(), 0
    for offset, style in marks:
        if offset is None or end <= first:
            continue
        upto = max(drawn, min(_BAR, round(_BAR * (offset - first) / (end - first))))
        bar.append("━" * (upto - drawn), style=style)
        drawn = upto
    bar.append("━" * (_BAR - drawn), style="bright_black")
    return bar


def _or_dash(offset: int | None) -> str:
    return "-" if offset is None else str(offset)
