"""`trainer.json` and `manifest.json`: what a checkpoint says of itself, in words.

`TrainerState` is where training stands; with weights and optimizer it is all that a resume needs, since every seed
derives from positions. `Manifest` makes a folder a checkpoint: it is written last and names every file with its size
and SHA-256, the parent, and which records the ledger holds, so that a search opens only the ledgers that can answer.

A file of another format version is refused and not called damaged: damaged checkpoints are set aside, and an old
program must not do that to a new program's work.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.schemas.cursor import Cursor
from headrace.schemas.errors import CheckpointDamaged, ResumeRefused
from headrace.schemas.tokens import TokensMeta
from headrace.trainer.ends import RunEnd
from headrace.trainer.lineage import Lineage

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class TrainerState:
    """Where training stands after a step."""

    step: int
    cursors: Mapping[int, Cursor]  # of every lane
    progress: Mapping[str, Any] = field(default_factory=dict)  # as `progress.Progress.to_json`
    settings: Mapping[str, Any] = field(default_factory=dict)  # as `resume.run_settings` gives them
    changes: tuple[Mapping[str, Any], ...] = ()  # settings that were changed on the way, as `resume.Change` in JSON
    starts: Mapping[int, int] = field(default_factory=dict)  # by lane: the offset at which the run began
    end: RunEnd = field(default_factory=RunEnd)
    meta: TokensMeta | None = None  # what the token batches said of their tokenizer
    lineage: Lineage = field(default_factory=Lineage)

    def to_json(self) -> bytes:
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        fields["cursors"] = {lane: cursor.to_json() for lane, cursor in sorted(self.cursors.items())}
        fields["end"] = self.end.to_json()
        fields["lineage"] = self.lineage.to_json()
        fields["meta"] = asdict(self.meta) if self.meta is not None else None
        return json.dumps({"version": FORMAT_VERSION, **fields}, indent=1, ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, data: bytes, what: str) -> TrainerState:
        fields = _fields(data, what)
        try:
            cursors = {int(lane): Cursor.from_json(cursor) for lane, cursor in fields.pop("cursors").items()}
            starts = {int(lane): int(offset) for lane, offset in fields.pop("starts").items()}
            end = RunEnd.from_json(fields.pop("end"))
            meta = fields.pop("meta")
            meta = TokensMeta(**meta) if meta is not None else None
            changes = tuple(fields.pop("changes"))
            lineage = Lineage.from_json(fields.pop("lineage"))
            return cls(cursors=cursors, starts=starts, end=end, meta=meta, changes=changes, lineage=lineage, **fields)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointDamaged(f"{what} is not the state of a trainer: {error!r}") from error


@dataclass(frozen=True, slots=True)
class FileSum:
    """Size and SHA-256 of a file."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, order=True)
class PartitionSummary:
    """What the ledger of one checkpoint holds of one partition of a text topic."""

    topic: str
    partition: int
    first: int  # offsets, both included
    last: int
    rows: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What makes a folder a checkpoint."""

    step: int
    parent: int | None  # step of the checkpoint that this one continues
    created_ms: int
    writer: str  # which process published it, as `lock.this_process` says
    files: Mapping[str, FileSum]
    ledger: tuple[PartitionSummary, ...] = ()

    def to_json(self) -> bytes:
        return json.dumps({"version": FORMAT_VERSION, **asdict(self)}, indent=1, ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, data: bytes, what: str) -> Manifest:
        fields = _fields(data, what)
        try:
            files = {name: FileSum(**sums) for name, sums in fields.pop("files").items()}
            ledger = tuple(PartitionSummary(**summary) for summary in fields.pop("ledger"))
            return cls(files=files, ledger=ledger, **fields)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointDamaged(f"{what} is not a manifest: {error!r}") from error


def _fields(data: bytes, what: str) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except ValueError as error:
        raise CheckpointDamaged(f"{what} is cut short or not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise CheckpointDamaged(f"{what} is not a JSON object")
    version = fields.pop("version", None)
    if version != FORMAT_VERSION:
        raise ResumeRefused(f"{what} has format {version}, this headrace reads {FORMAT_VERSION}: update headrace")
    return fields
