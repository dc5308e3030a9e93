"""The report of a run: one HTML page that needs nothing else, made from its checkpoints alone.

Sections, from top to bottom: what the run came to; its charts (from the history); evaluations; what became of the
records (from the ledger, and the dead letters that the caller counted); checkpoints; what was changed on the way;
configuration. `gather` reads, `page` writes. Cost: one pass over the ledger, some two million rows a second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from typing import Any

import pyarrow as pa

from headrace.schemas.cursor import Cursor
from headrace.trainer.best import Best, read_best
from headrace.trainer.checkpoint import PRUNED_FILE, WEIGHTS_FILE, folder_of
from headrace.trainer.checkpoint_state import TrainerState
from headrace.trainer.history import Line, read_history
from headrace.trainer.ledger_read import Ledger
from headrace.trainer.report_chart import Chart, Series, number, svg
from headrace.trainer.report_style import STYLE

_NEIGHBOURS = 20  # steps of a moving mean
_MOST_ROWS = 50


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint of the chain."""

    step: int
    created_ms: int
    size_bytes: int
    weights: bool  # whether they are still there


@dataclass(frozen=True, slots=True)
class RunReport:
    """Everything that a page says."""

    name: str
    run: str
    address: str  # of the checkpoints
    state: TrainerState
    history: Sequence[Line]
    outcomes: Mapping[tuple[str, str], int]  # (outcome, reason) -> rows
    checkpoints: Sequence[Saved]
    best: Best | None
    dead_letters: Mapping[str, int] = field(default_factory=dict)  # by reason, of the topic as it is now
    configuration: str = ""  # YAML, secrets masked


def gather(ledger: Ledger, name: str, run: str) -> RunReport:
    """Read a run from its checkpoints."""
    outcomes: Counter[tuple[str, str]] = Counter()
    for batch in ledger.outcomes(("outcome", "reason")):
        rows = pa.table({name: batch.column(name).cast(pa.string()) for name in ("outcome", "reason")})
        for group in rows.group_by(["outcome", "reason"]).aggregate([([], "count_all")]).to_pylist():
            outcomes[group["outcome"], group["reason"] or ""] += group["count_all"]
    pruned = ledger.store.read_each([folder_of(manifest.step) for manifest in ledger.chain], PRUNED_FILE)
    saved = [
        Saved(
            manifest.step,
            manifest.created_ms,
            sum(file.size_bytes for file in manifest.files.values()),
            marker is None and WEIGHTS_FILE in manifest.files,
        )
        for manifest, marker in zip(ledger.chain, pruned, strict=True)
    ]
    best = read_best(ledger.store)
    return RunReport(
        name=name,
        run=run,
        address=ledger.store.address,
        state=ledger.state(),
        history=read_history(ledger),
        outcomes=dict(sorted(outcomes.items())),
        checkpoints=saved,
        best=best if best is not None and best.step <= ledger.step else None,
    )


def page(report: RunReport) -> str:
    """The page, as UTF-8 text."""
    title = escape(f"{report.name} / {report.run}")
    sections = [
        f"<header><h1>{title}</h1><p>{escape(_when(report))}</p></header>",
        _figures(report),
        f'<section><h2>Training</h2><div class="charts">{"".join(map(svg, charts(report.history)))}</div></section>',
        _evaluations(report),
        _records(report),
        _checkpoints(report),
        _changes(report.state.changes),
        f"<section><h2>Configuration</h2><pre>{escape(report.configuration)}</pre></section>"
        if report.configuration
        else "",
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{title}</title><style>{STYLE}</style></head>'
        f"<body><main>{''.join(sections)}</main></body></html>\n"
    )


def charts(history: Sequence[Line]) -> list[Chart]:
    """What is drawn over the steps."""
    evaluated = f"Dots are evaluations; lines are scored before training, a mean of {_NEIGHBOURS} steps."
    return [
        Chart(
            "Loss",
            "mean loss",
            [Series("progressive", _moving(history, "loss")), *_evaluated(history, "loss")],
            note=evaluated,
        ),
        Chart(
            "Accuracy and macro F1",
            "share",
            [
                Series("accuracy", _moving(history, "accuracy")),
                Series("macro F1 of a step", _moving(history, "macro_f1")),
                *_evaluated(history, "accuracy"),
            ],
            from_zero=False,
            most=1.0,
            note=evaluated,
        ),
        Chart("Speed", "tokens/s", [Series("tokens/s, without padding", _moving(history, "tokens_s"))]),
        Chart("Learning rate", "rate", [Series("learning rate", _points(history, "learning_rate"))]),
        Chart(
            "Freshness: from publishing to the gradient",
            "seconds",
            [
                Series("p50", _points(history, "freshness_p50_s")),
                Series("p99", _points(history, "freshness_p99_s")),
            ],
            logarithmic=True,
            note="A topic that was filled before the run began makes its records old: then this is their age.",
        ),
        Chart(
            "Waiting and padding",
            "share",
            [
                Series("of the time, waiting for data", _moving(history, "wait_share")),
                Series("of the tokens, padding", _moving(history, "padding")),
            ],
            most=1.0,
        ),
    ]


def _points(history: Sequence[Line], name: str) -> list[tuple[float, float]]:
    return [(line["step"], line[name]) for line in history if line.get(name) is not None]


def _moving(history: Sequence[Line], name: str) -> list[tuple[float, float]]:
    """Mean of the last `_NEIGHBOURS` steps, of shorter runs of fewer."""
    points = _points(history, name)
    width = max(1, min(_NEIGHBOURS, len(points) // 10))
    sums, moved = 0.0, []
    for place, (step, value) in enumerate(points):
        sums += value - (points[place - width][1] if place >= width else 0.0)
        moved.append((step, sums / min(place + 1, width)))
    return moved


def _evaluated(history: Sequence[Line], figure: str) -> Iterator[Series]:
    for name in ("development", "held_out"):
        points = [
            (line["step"], line["evaluations"][name][figure]) for line in history if name in line.get("evaluations", {})
        ]
        if points:
            yield Series(f"{figure}, {name.replace('_', ' ')}", points, dots=True)


def _when(report: RunReport) -> str:
    first, last = report.checkpoints[0].created_ms, report.checkpoints[-1].created_ms
    return f"{report.address}, {_time(first)} to {_time(last)} UTC"


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _figures(report: RunReport) -> str:
    progress = report.state.progress
    steps = [line for line in report.history if line.get("loss") is not None]
    facts = [
        ("steps", f"{report.state.step:,}"),
        ("records trained", f"{progress.get('rows', 0):,}"),
        ("tokens trained", number(progress.get("tokens", 0))),
    ]
    if steps:
        facts.append(("last loss", f"{steps[-1]['loss']:.4f}"))
    last: dict[str, Any] = next(
        (line["evaluations"] for line in reversed(report.history) if line.get("evaluations")), {}
    )
    for name, score in last.items():
        facts.append((f"accuracy, {name.replace('_', ' ')}", f"{score['accuracy']:.4f}"))
        if score["macro_f1"] is not None:
            facts.append((f"macro F1, {name.replace('_', ' ')}", f"{score['macro_f1']:.4f}"))
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    return f'<dl class="figures">{cells}</dl>'


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column is text, the others are numbers. Of many rows the last are shown."""
    more = f"<p>The last {_MOST_ROWS} of {len(rows)}.</p>" if len(rows) > _MOST_ROWS else ""
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows[-_MOST_ROWS:])
    return f'{more}<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _evaluations(report: RunReport) -> str:
    rows = [
        [
            name.replace("_", " "),
            str(line["step"]),
            str(score["count"]),
            f"{score['accuracy']:.4f}",
            f"{score['macro_f1']:.4f}" if score["macro_f1"] is not None else "",
            f"{score['loss']:.4f}",
        ]
        for line in report.history
        for name, score in line.get("evaluations", {}).items()
    ]
    if not rows:
        return ""
    best = ""
    if report.best is not None:
        of = report.best.evaluated.replace("_", " ")
        best = f"<p>Best by {of}: step {report.best.step}, accuracy {report.best.accuracy:.4f}. It is kept.</p>"
    heads = ["of", "step", "terms", "accuracy", "macro F1", "loss"]
    return f"<section><h2>Evaluations</h2>{best}{_table(heads, rows)}</section>"


def _records(report: RunReport) -> str:
    rows = [[outcome.replace("_", " "), f"{count:,}", reason] for (outcome, reason), count in report.outcomes.items()]
    rows += [["dead letter", f"{count:,}", reason] for reason, count in sorted(report.dead_letters.items())]
    note = "<p>Of the ledger up to the newest checkpoint; dead letters as they lie in their topic now.</p>"
    return (
        f"<section><h2>What became of the records</h2>{note}{_table(['outcome', 'records', 'reason'], rows)}</section>"
    )


def _checkpoints(report: RunReport) -> str:
    best = report.best.step if report.best is not None else None
    rows = [
        [
            folder_of(saved.step),
            _time(saved.created_ms),
            f"{saved.size_bytes / 1e6:.1f}",
            ("best, kept" if saved.step == best else "whole") if saved.weights else "ledger and history only",
        ]
        for saved in report.checkpoints
    ]
    heads = ["checkpoint", "published (UTC)", "MB when published", "now"]
    cursors = [[f"lane {lane}", _cursor(cursor)] for lane, cursor in sorted(report.state.cursors.items())]
    return (
        f"<section><h2>Checkpoints</h2>{_table(heads, rows)}"
        f"<h3>Where the lanes stand</h3>{_table(['lane', 'next offset'], cursors)}</section>"
    )


def _cursor(cursor: Cursor) -> str:
    return str(cursor.start)


def _changes(changes: Sequence[Mapping[str, Any]]) -> str:
    if not changes:
        return ""
    rows = [[each["name"], str(each["after_step"]), str(each["stored"]), str(each["today"])] for each in changes]
    heads = ["setting", "after step", "before", "since"]
    return f"<section><h2>Changed on the way</h2>{_table(heads, rows)}</section>"
