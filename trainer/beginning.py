"""What a rank begins from: the newest checkpoint, or the start of a new run. The same on all ranks.

Rank 0 looks and decides, the others are told:

1. the newest whole checkpoint, if there is one: every rank loads it and goes on from its cursors, without what a mend
   excludes
2. else a new run: rank 0 resolves `train.start` to offsets and, with `stop: end`, the ends of the text topic; then
   all wait together for the first token batch, which says what tokenizer made it. An idle stream is no error, so the
   wait is a sequence of short looks, between which every rank hears of a stop
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from headrace.schemas.cursor import Cursor, pass_of
from headrace.schemas.errors import ResumeRefused
from headrace.schemas.position import Position
from headrace.schemas.tokens import TokensMeta
from headrace.trainer.agree import Line
from headrace.trainer.checkpoint import Checkpoint, folder_of
from headrace.trainer.checkpoint_load import load, load_latest
from headrace.trainer.checkpoint_store import Store
from headrace.trainer.conduct import Topics, advance, emitted_tokens
from headrace.trainer.config import StopSteps, StopTime, TrainConfig
from headrace.trainer.ends import RunEnd
from headrace.trainer.lineage import Lineage, read_mend
from headrace.trainer.start import first_meta, start_offsets


@dataclass(frozen=True, slots=True)
class Beginning:
    """`meta` is None when the run is over, or was stopped, before there was anything to train."""

    starts: Mapping[int, int]  # by lane: where the run began
    cursors: Mapping[int, Cursor]  # of all lanes
    end: RunEnd
    meta: TokensMeta | None
    step: int = 0
    skipped_tokens: int = 0  # emitted before the start of a new run: no part of its backlog
    checkpoint: Checkpoint | None = field(default=None, repr=False)
    lineage: Lineage = field(default_factory=Lineage)

    @property
    def pass_number(self) -> int:
        return pass_of(self.cursors)


def configured_end(train: TrainConfig) -> RunEnd:
    """The end that the configuration names, at its beginning."""
    if isinstance(train.stop, StopSteps):
        return RunEnd("steps", steps=train.stop.steps)
    if isinstance(train.stop, StopTime):
        return RunEnd("time", time_ms=int(train.stop.time.timestamp() * 1000))
    return RunEnd(train.stop)


@dataclass(frozen=True, slots=True)
class Look:
    """What rank 0 looks at, and what it may be told meanwhile."""

    topics: Topics
    text_complete: threading.Event  # as for `conduct.Conductor`
    stopping: threading.Event
    trained_group: str


def begin(store: Store, line: Line, train: TrainConfig, look: Look | None) -> Beginning:
    """Decide together. `look` is given on rank 0 only."""
    newest = load_latest(store, mend=True) if look is not None else None
    mine: dict[str, Any] = {"step": None}
    if newest is not None:
        mend = read_mend(store, folder_of(newest.step))
        mine = {"step": newest.step, "lineage": newest.state.lineage.with_mend(mend).to_json()}
    told = line.exchange_json(mine)[0]
    if told["step"] is None:
        return _start(line, train, look)
    checkpoint = newest if newest is not None else load(store, int(told["step"]))
    return resume(checkpoint, Lineage.from_json(told["lineage"]), train)


def resume(checkpoint: Checkpoint, lineage: Lineage, train: TrainConfig) -> Beginning:
    """Go on from a checkpoint. Raises ResumeRefused for another end while a later pass is under way."""
    state = checkpoint.state
    end = state.end.resumed_with(configured_end(train))
    pass_number = pass_of(state.cursors)
    if pass_number > 1 and end != state.end:
        raise ResumeRefused(
            f"pass {pass_number} is under way, and all passes go over the same records: set train.stop back until the "
            "run has ended, or set another `train.run`"
        )
    cursors = {
        lane: cursor if cursor.pass_number == pass_number else Cursor.at(state.starts[lane], pass_number)
        for lane, cursor in state.cursors.items()
    }
    return Beginning(state.starts, cursors, end, state.meta, state.step, checkpoint=checkpoint, lineage=lineage)


def _start(line: Line, train: TrainConfig, look: Look | None) -> Beginning:
    """A new run. Rank 0 resolves the start once, then looks for the first token batch until there is one."""
    end = configured_end(train)
    starts: dict[int, int] = {}
    skipped = 0
    if look is not None:
        emitted = emitted_tokens(look.topics)
        starts = start_offsets(look.topics.broker, look.topics.tokens, train.start)
        skipped = _announce(look, starts, emitted)
        if end.needs_text and look.text_complete.is_set():
            end = end.fix_text(look.topics.broker.ends(look.topics.text))
    while True:
        root = line.exchange_json(_look(look, starts, end) if look is not None else {})[0]
        end = RunEnd.from_json(root["end"])
        starts = {int(lane): int(offset) for lane, offset in root["starts"].items()}
        if root["meta"] is not None or root["over"]:
            meta = TokensMeta(**root["meta"]) if root["meta"] is not None else None
            cursors = {lane: Cursor.at(offset) for lane, offset in starts.items()}
            return Beginning(starts, cursors, end, meta, skipped_tokens=skipped)


def _announce(look: Look, starts: Mapping[int, int], emitted: int) -> int:
    """Tell ingest that a new run begins behind all there is; returns the tokens it skips.

    Without this, ingest would count everything before the start as backlog and wait, for a trainer that waits for it.
    `emitted` was read before the starts. Where something lies behind them, the run finds out when the lanes are empty.
    """
    ends = look.topics.broker.ends(look.topics.tokens)
    if emitted == 0 or any(starts[lane] < ends[lane].end for lane in starts):
        return 0
    positions = {lane: Position(offset) for lane, offset in starts.items()}
    positions[0] = replace(positions[0], notes={"skipped_tokens": emitted})
    look.topics.broker.set_positions(look.trained_group, look.topics.tokens, positions)
    return emitted


def _look(look: Look, starts: Mapping[int, int], end: RunEnd) -> dict[str, Any]:
    """One look for the first token batch; a bounded run may also be over before it holds anything."""
    end = advance(end, look.topics, look.text_complete)
    meta = first_meta(look.topics.broker, look.topics.tokens, starts)
    empty = end.lanes is not None and all(starts[lane] >= offset for lane, offset in end.lanes.items())
    return {
        "starts": starts,
        "end": end.to_json(),
        "meta": asdict(meta) if meta is not None else None,
        "over": empty or look.stopping.is_set(),
    }
