"""Lineage: what a run is made of beside its steps. Where it went back, what it excludes, whose weights it began with.

It lies in every checkpoint's state, so that each resume has it. A mend is also a file in the folder of the checkpoint
that the run went back to, `mend.json`: from the moment that checkpoint is the newest, until the next one carries the
mend in its state. It stands beside the manifest's files, since a published checkpoint is never changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from headrace.schemas.errors import Stop
from headrace.schemas.exclusion import Exclusion
from headrace.trainer.checkpoint_store import Store

MEND_FILE = "mend.json"


@dataclass(frozen=True, slots=True)
class Mend:
    """The run went back to `step`, and goes on without `exclusions`."""

    step: int
    exclusions: tuple[Exclusion, ...] = ()
    abandoned: int | None = None  # the newest step of the branch that was left; None: there was none
    created_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "exclusions": [str(each) for each in self.exclusions]}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        return cls(**{**fields, "exclusions": tuple(map(Exclusion.parse, fields["exclusions"]))})


@dataclass(frozen=True, slots=True)
class WeightsOf:
    """The checkpoint of another run whose weights this one began with."""

    run: str
    step: int


@dataclass(frozen=True, slots=True)
class Lineage:
    """Mends oldest first."""

    mends: tuple[Mend, ...] = ()
    weights_of: WeightsOf | None = None

    @property
    def exclusions(self) -> tuple[Exclusion, ...]:
        """All exclusions in force, in the order in which they came: a later mend only adds to the end."""
        return tuple(each for mend in self.mends for each in mend.exclusions)

    def with_mend(self, mend: Mend | None) -> Lineage:
        return self if mend is None else replace(self, mends=(*self.mends, mend))

    def to_json(self) -> dict[str, Any]:
        return {
            "mends": [mend.to_json() for mend in self.mends],
            "weights_of": asdict(self.weights_of) if self.weights_of is not None else None,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        weights_of = fields["weights_of"]
        return cls(
            tuple(map(Mend.from_json, fields["mends"])), WeightsOf(**weights_of) if weights_of is not None else None
        )


def read_mend(store: Store, folder: str) -> Mend | None:
    """The mend that begins at a checkpoint; None where there is none. Raises Stop when it was cut short."""
    if MEND_FILE not in store.files(folder):
        return None
    data = store.read(folder, MEND_FILE)
    try:
        return Mend.from_json(json.loads(data))
    except (ValueError, KeyError, TypeError) as error:
        raise Stop(
            f"{store.address}/{folder}/{MEND_FILE} is cut short ({error!r}), so a mend was begun and changed nothing: "
            "remove the file, then give `headrace train --from … --skip …` again, or go on without"
        ) from error


def write_mend(store: Store, folder: str, mend: Mend) -> None:
    """Durable when this returns."""
    store.write(folder, MEND_FILE, [json.dumps(mend.to_json(), indent=1, ensure_ascii=False).encode()])
    store.seal(folder)
