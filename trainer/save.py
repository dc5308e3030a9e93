"""Saving a checkpoint together: what all ranks do when one is due. The order, numbered again in the code:

1. every rank hashes its weights; the hashes must be equal, or a checkpoint would keep one of two models
2. every rank sends rank 0 its cursors, its ledger rows and its held-out rows
3. rank 0 copies weights and optimizer, and publishes in the background (`checkpoint_saver`)
4. once it is published, the positions of the run's *checkpoint* group say so

A rank goes on with the next step as soon as it has sent its part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.schemas.cursor import Cursor
from headrace.schemas.errors import Stop
from headrace.trainer import ledger
from headrace.trainer.agree import Line
from headrace.trainer.checkpoint import Checkpoint
from headrace.trainer.checkpoint_saver import Saver
from headrace.trainer.checkpoint_state import TrainerState
from headrace.trainer.checkpoint_tensors import Tensors
from headrace.trainer.held_out import HeldOut
from headrace.trainer.history import History
from headrace.trainer.learner import Learner
from headrace.trainer.ledger import LedgerRows


@dataclass(frozen=True, slots=True)
class RankPart:
    """What one rank brings to a checkpoint."""

    cursors: Mapping[int, Cursor]
    ledger: bytes
    held_out: pa.Table | None

    def encode(self) -> bytes:
        """One JSON line with cursors and lengths, then the ledger rows and the held-out rows."""
        rows = b"" if self.held_out is None else _to_ipc(self.held_out)
        cursors = {str(lane): cursor.to_json() for lane, cursor in self.cursors.items()}
        head = json.dumps({"cursors": cursors, "ledger_bytes": len(self.ledger)})
        return head.encode() + b"\n" + self.ledger + rows

    @classmethod
    def decode(cls, data: bytes) -> RankPart:
        head, _, body = data.partition(b"\n")
        fields: dict[str, Any] = json.loads(head)
        split = int(fields["ledger_bytes"])
        cursors = {int(lane): Cursor.from_json(cursor) for lane, cursor in fields["cursors"].items()}
        rows = body[split:]
        return cls(cursors, body[:split], pa.ipc.open_stream(rows).read_all() if rows else None)


def _to_ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def check_equal_weights(line: Line, learner: Learner) -> None:
    """Raises Stop, on every rank, when the ranks' weights differ. Costs a hash of the weights."""
    hashes = [str(each["weights"]) for each in line.exchange_json({"weights": learner.weight_hash()})]
    if len(set(hashes)) > 1:
        listed = ", ".join(f"rank {rank}: {digest[:12]}" for rank, digest in enumerate(hashes))
        raise Stop(f"the ranks' weights differ ({listed}): nothing was saved; resume from the last checkpoint")


class Checkpointer:
    """One rank's part in saving. `saver` and `state_of` are rank 0's.

    `state_of(step, cursors)` gives what `trainer.json` holds.
    """

    def __init__(
        self,
        line: Line,
        learner: Learner,
        rows: tuple[LedgerRows, HeldOut],
        cursors: Callable[[], Mapping[int, Cursor]],
        parent: int | None,
        root: RootParts | None,
    ) -> None:
        self._line = line
        self._learner = learner
        self._ledger, self._held_out = rows
        self._cursors = cursors
        self._parent = parent
        self._root = root

    def save(self, step: int) -> None:
        """Save what is trained up to `step`, on all ranks together."""
        self._learner.collect()
        check_equal_weights(self._line, self._learner)  # 1
        part = RankPart(self._cursors(), self._ledger.drain(), self._held_out.table())
        parts = [RankPart.decode(data) for data in self._line.gather(part.encode())]  # 2
        if self._root is not None:
            self._publish(step, parts, self._root)
        self._parent = step

    def _publish(self, step: int, parts: Sequence[RankPart], root: RootParts) -> None:
        cursors = {lane: cursor for part in parts for lane, cursor in part.cursors.items()}
        held_out = [part.held_out for part in parts if part.held_out is not None]
        learnt = self._learner.state()  # 3
        root.saver.save(
            Checkpoint(
                parent=self._parent,
                state=root.state_of(step, cursors),
                weights=Tensors(learnt.weights),
                optimizer=Tensors(learnt.optimizer),
                ledger=ledger.merge([part.ledger for part in parts]),
                held_out=pa.concat_tables(held_out).unify_dictionaries() if held_out else None,
                history=root.history.drain(),
                extra={**root.extra, **learnt.files},
            ),
            lambda: root.published(cursors),  # 4
        )


@dataclass(frozen=True, slots=True)
class RootParts:
    """What only rank 0 has."""

    saver: Saver
    state_of: Callable[[int, Mapping[int, Cursor]], TrainerState]
    published: Callable[[Mapping[int, Cursor]], None]
    history: History
    extra: Mapping[str, bytes]
