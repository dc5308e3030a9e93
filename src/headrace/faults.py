"""Say what is wrong with a configuration: one line per fault, `FILE:LINE: dotted.key: what, and the cure`.

Pydantic reports every member of a union that a value failed to be, under paths that hold the members' names. Here the
names are taken out again by walking the document along the path, and of each union one fault is left: that of the
member that the user most likely meant.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from headrace.document import Document, KeyPath
from headrace.keys import Keys, scalar_types

_UNKNOWN = re.compile(r"unknown key '(?P<key>.*?)': (?P<cure>.*)", re.DOTALL)
_KINDS = {
    "int_type": "should be a whole number",
    "int_parsing": "should be a whole number",
    "int_from_float": "should be a whole number",
    "float_type": "should be a number",
    "float_parsing": "should be a number",
    "bool_type": "should be true or false",
    "bool_parsing": "should be true or false",
    "string_type": "should be text",
    "tuple_type": "should be a list",
    "dict_type": "should be a section of KEY: VALUE lines",
    "model_type": "should be a section of KEY: VALUE lines",
    "model_attributes_type": "should be a section of KEY: VALUE lines",
    "timezone_aware": "needs an offset, such as 2026-11-23T00:00+08:00",
}


@dataclass(frozen=True, slots=True)
class _Fault:
    path: KeyPath
    union: KeyPath | None  # where the path left a union member's name out
    member: str
    type: str
    message: str
    value: Any


def booleans(document: Document, keys: Keys, boolean: Set[str]) -> dict[KeyPath, str]:
    """Values that YAML read as booleans where the configuration means something else.

    `boolean` holds the dotted keys that are booleans. Below a free section (`kafka`, a model) anything may stand.
    """
    found = {}
    for path, place in document.places.items():
        if place.text is None or not isinstance(_at(document.values, path), bool):
            continue
        names = tuple(part for part in path if isinstance(part, str))
        if names in keys and ".".join(names) not in boolean:
            kinds = {kind for key in keys[names] for kind in scalar_types(key.field.annotation)}
            cure = "write a number" if kinds <= {int, float, type(None)} else f'put it in quotes: "{place.text}"'
            found[path] = _line(document, path, f"YAML reads {place.text} as a boolean: {cure}")
    return found


def lines(error: ValidationError, document: Document, keys: Keys, known: set[KeyPath]) -> list[str]:
    """One line per fault, in the order of the document; paths in `known` were reported already."""
    raw = [_read(detail, document.values) for detail in error.errors(include_url=False)]
    raw = [fault for fault in raw if fault.type != "too_short" or not any(_inside(other, fault) for other in raw)]
    said: dict[KeyPath, str] = {}
    for fault in _one_per_union(raw, keys):
        if not any(fault.path[: len(path)] == path or path[: len(fault.path)] == fault.path for path in known):
            path, message = _say(fault, keys)
            said.setdefault(path, _line(document, path, message))
    return list(said.values())


def _read(detail: Any, values: Any) -> _Fault:
    """Split pydantic's location into the document's path and the names of union members."""
    path: list[str | int] = []
    union, member, node = None, "", values
    for depth, part in enumerate(detail["loc"], start=1):
        if part in (node if isinstance(node, Mapping) else range(len(node)) if isinstance(node, list) else ()):
            path.append(part)
            node = node[part]
        elif detail["type"] == "missing" and depth == len(detail["loc"]):
            path.append(part)
        else:
            union, member = tuple(path), str(part)
    message = str(detail["msg"]).removeprefix("Value error, ")
    return _Fault(tuple(path), union, member, detail["type"], message, detail["input"])


def _inside(other: _Fault, fault: _Fault) -> bool:
    """Whether an item of a list is at fault: then the list's length was counted without it."""
    return len(other.path) > len(fault.path) and other.path[: len(fault.path)] == fault.path


def _one_per_union(faults: list[_Fault], keys: Keys) -> list[_Fault]:
    kept: list[_Fault] = []
    done: set[KeyPath] = set()
    for fault in faults:
        if fault.union is None:
            kept.append(fault)
        elif fault.union not in done:
            done.add(fault.union)
            rivals = [other for other in faults if other.union == fault.union]
            kept += _likeliest(rivals, keys)
    return kept


def _likeliest(rivals: list[_Fault], keys: Keys) -> list[_Fault]:
    """Faults of the member whose keys the value has; failing that, one fault that lists what may be written."""
    if len({fault.member for fault in rivals}) == 1:
        return rivals
    for fault in rivals:
        if len(fault.path) > len(fault.union or ()) and fault.type != "missing":
            return [other for other in rivals if other.member == fault.member]
    near = next((fault for fault in rivals if "did you mean" in fault.message), None)
    if near is not None:
        return [near]
    first = rivals[0]
    key = keys.get(tuple(part for part in first.union or () if isinstance(part, str)), [])
    choices = key[0].description if key else "; ".join(dict.fromkeys(fault.message for fault in rivals))
    value = _at_value(first, rivals)
    return [_Fault(first.union or (), None, "", "value_error", f"{_short(value)} is not possible: {choices}", value)]


def _at_value(first: _Fault, rivals: list[_Fault]) -> Any:
    return next((fault.value for fault in rivals if fault.path == first.union), first.value)


def _say(fault: _Fault, keys: Keys) -> tuple[KeyPath, str]:
    """The path to name and the sentence."""
    unknown = _UNKNOWN.fullmatch(fault.message)
    if unknown is not None:
        path = (*fault.path, unknown["key"])
        return path, f"unknown key: {_elsewhere(path, keys) or unknown['cure']}"
    if fault.type == "missing":
        return fault.path, "is missing and has no default: add it"
    if fault.type in {"union_tag_not_found", "union_tag_invalid"}:
        kinds = dict.fromkeys(key.variant for path, found in keys.items() if _below(path, fault.path) for key in found)
        return (*fault.path, "type"), f"should be one of {', '.join(kind for kind in kinds if kind)}"
    if fault.value is None and fault.type != "value_error":
        return fault.path, "is empty: give it a value or remove the line"
    if fault.type == "value_error":
        return fault.path, fault.message
    if fault.type == "too_short":
        return fault.path, fault.message.replace("Tuple ", "").replace(" after validation", "")
    sentence = _KINDS.get(fault.type, fault.message.replace("Input ", ""))
    if fault.type == "string_type" and isinstance(fault.value, int | float):
        return fault.path, f"should be text, and YAML reads {fault.value} as a number: put it in quotes"
    return fault.path, f"{sentence}, not {_short(fault.value)}{_near(fault)}"


def _elsewhere(path: KeyPath, keys: Keys) -> str:
    """The right section for a key that is known, but not here."""
    kinds = [key.variant for key in keys.get(tuple(map(str, path)), ()) if key.variant]
    if kinds:
        return f"it is there for type {' and '.join(kinds)} only"
    homes = [".".join(known) for known in keys if known[-1] == path[-1]]
    return f"did you mean {' or '.join(homes)}?" if homes and len(homes) <= 3 else ""


def _near(fault: _Fault) -> str:
    choices = re.findall(r"'([^']*)'", fault.message) if fault.type in {"literal_error", "enum"} else []
    near = difflib.get_close_matches(str(fault.value), choices, n=1)
    return f": did you mean {near[0]}?" if near else ""


def _below(path: tuple[str, ...], above: KeyPath) -> bool:
    return len(path) == len(above) + 1 and path[:-1] == above


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _at(values: Any, path: KeyPath) -> Any:
    for part in path:
        try:
            values = values[part]
        except (KeyError, IndexError, TypeError):
            return None
    return values


def _line(document: Document, path: KeyPath, message: str) -> str:
    """The whole line; what came from outside is taken out of the message."""
    for secret_path, secret in document.secrets.items():
        if secret and (path[: len(secret_path)] == secret_path or secret_path[: len(path)] == path):
            message = message.replace(repr(secret)[1:-1], "***").replace(secret, "***")
    where, dotted = document.place(path), ".".join(map(str, path))
    return ": ".join(part for part in (where, dotted, message) if part)
