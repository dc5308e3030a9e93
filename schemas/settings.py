"""Base of every configuration model: frozen, and unknown keys are refused with the nearest known one."""

from __future__ import annotations

import difflib
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, model_validator


class Settings(BaseModel):
    """Small, frozen, closed. Every field has a default or is required, and a description that the docs print."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, values: Any) -> Any:
        if isinstance(values, dict):
            known = list(cls.model_fields)
            for key in values:
                if key not in known:
                    near = difflib.get_close_matches(str(key), known, n=1)
                    cure = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
                    raise ValueError(f"unknown key {key!r}: {cure}")
        return values

    def revised(self, **changes: Any) -> Self:
        """A copy with validated changes."""
        return type(self).model_validate({**self.model_dump(), **changes})


def _number(value: Any) -> Any:
    """PyYAML reads `2e-5` as text; a number was meant."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


Number = Annotated[float, BeforeValidator(_number)]


class AtTime(Settings):
    """The first record published at or after a moment."""

    time: AwareDatetime
    """With an offset, such as 2026-11-23T00:00+08:00."""


Start = Literal["earliest", "latest"] | AtTime
