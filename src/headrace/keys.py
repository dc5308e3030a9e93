"""Every key of the configuration, with its type, default and sentence, read from the models themselves.

Documentation, hints and checks ask here, so that none of them keeps a list of its own.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from headrace.schemas.settings import Settings


@dataclass(frozen=True, slots=True)
class Key:
    """One key. `variant` says for which kind of section it is there, where a section has several kinds."""

    path: tuple[str, ...]
    field: FieldInfo
    variant: str = ""

    @property
    def dotted(self) -> str:
        return ".".join(self.path)

    @property
    def description(self) -> str:
        return self.field.description or ""

    @property
    def sections(self) -> list[type[Settings]]:
        """The models that the value may be."""
        return [kind for kind in alternatives(self.field.annotation) if _is_section(kind)]


Keys = Mapping[tuple[str, ...], Sequence[Key]]


def walk(model: type[Settings], path: tuple[str, ...] = (), variant: str = "") -> Iterator[Key]:
    """Keys in the order of the models, each section before its keys."""
    for name, field in model.model_fields.items():
        key = Key((*path, name), field, variant)
        yield key
        sections = key.sections
        for section in sections:
            yield from walk(section, key.path, _variant(section) if len(sections) > 1 else variant)


def by_path(model: type[Settings]) -> Keys:
    """Keys by path; several where the variants of a section share a name."""
    found: dict[tuple[str, ...], list[Key]] = {}
    for key in walk(model):
        found.setdefault(key.path, []).append(key)
    return found


def alternatives(annotation: Any) -> list[Any]:
    """The members of a union, `Annotated` taken off; any other type alone."""
    if get_origin(annotation) is Annotated:
        return alternatives(get_args(annotation)[0])
    if get_origin(annotation) in {Union, types.UnionType}:
        return [found for member in get_args(annotation) for found in alternatives(member)]
    return [annotation]


def scalar_types(annotation: Any) -> set[Any]:
    """The plain types that a value, or an item of a list, may have."""
    found: set[Any] = set()
    for kind in alternatives(annotation):
        if get_origin(kind) in {tuple, list}:
            found |= scalar_types(get_args(kind)[0])
        else:
            found.add(get_origin(kind) or kind)
    return found


def type_text(field: FieldInfo) -> str:
    """The type in a user's words, with its bounds."""
    kinds = dict.fromkeys(_one_type(kind) for kind in alternatives(field.annotation))
    bounds = [
        f"{sign} {value:g}"
        for constraint in field.metadata
        for name, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
        if isinstance(value := getattr(constraint, name, None), int | float)
    ]
    return ", ".join([" or ".join(kinds), *bounds])


def _one_type(kind: Any) -> str:
    origin = get_origin(kind)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if origin in {tuple, list}:
        return "list"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(f"`{member.value}`" for member in kind)
    if _is_section(kind):
        return "section"
    names = {str: "text", int: "whole number", float: "number", bool: "true or false", dict: "section"}
    if kind is type(None):
        return "unset"
    return names.get(origin or kind, "time")


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Settings)


def _variant(section: type[Settings]) -> str:
    """The `type` of a tagged section, or an example of it where many are possible."""
    tag = section.model_fields.get("type")
    if tag is None:
        return ""
    choices = get_args(tag.annotation) if get_origin(tag.annotation) is Literal else tag.examples
    return str(choices[0]) if choices else ""
