"""Read a configuration document: YAML, `--set` overrides, `${env:NAME}` and `${file:PATH}`; every value with its place.

The order is: compose the YAML into nodes, note each node's line, refuse what YAML would pass over in silence (a key
given twice, a key that is no text), construct plain values, lay the overrides over them, fill in the references.
What comes out is not checked against any model yet; the places let a later fault name its line.

PyYAML follows YAML 1.1, which reads `2e-5` as text, `12:30` as 750 and `010` as 8. Numbers here follow YAML 1.2. Words
like `no` and `on` stay booleans as in YAML 1.1, because other tools may read the same file; `Place.text` keeps the
word, so that the configuration can refuse it where no boolean is meant.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from headrace.schemas.errors import UsageError

#: Where a value stands in the document: keys and list indices.
KeyPath = tuple[str | int, ...]

_BOOLEAN = re.compile(r"(?i:true|false|yes|no|on|off)")
_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+")
_FRACTION = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*\.[0-9_]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.(?:inf|Inf|INF)"
)
_NULL = re.compile(r"~|null|Null|NULL|")
_REFERENCE = re.compile(r"\$\{(?:(env|file):)?([^}]*)\}?")


class ConfigError(UsageError):
    """The configuration is wrong; one line per fault."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value was written, and for an unquoted scalar the word itself."""

    where: str  # "a.yaml:12", or "--set"
    text: str | None = None


@dataclass(slots=True)
class Document:
    """Plain values, where each was written, and those that came from outside by a reference."""

    values: dict[str, Any]
    places: dict[KeyPath, Place] = field(default_factory=dict)
    secrets: dict[KeyPath, str] = field(default_factory=dict)

    def place(self, path: KeyPath) -> str:
        """The nearest place that is known; a missing key is placed at its section."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places[path].where if path in self.places else ""


def read(file: Path, overrides: Sequence[str] = ()) -> Document:
    """Read `file` with overrides `a.b=value`. Raises ConfigError."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError([f"{file}: no such file: write one with `headrace init`, or name yours with -c"]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{file}: cannot be read: {error}"]) from None
    return parse(text, str(file), overrides)


def parse(text: str, name: str, overrides: Sequence[str] = ()) -> Document:
    """Like `read`, for text that is called `name` in messages."""
    document = Document({}, {(): Place(name)})
    values = _construct(text, name, (), document, numbered=True)
    if values is not None and not isinstance(values, dict):
        raise ConfigError([f"{name}: holds no settings: write KEY: VALUE lines, for example `name: workorders`"])
    document.values = {key: value for key, value in (values or {}).items() if value is not None}
    for override in overrides:
        _override(document, override)
    document.values = _refer(document, document.values, ())
    return document


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalars of the module's text."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("tag:yaml.org,2002:bool", _BOOLEAN, list("tTfFyYnNoO")),
    ("tag:yaml.org,2002:int", _WHOLE, list("-+0123456789")),
    ("tag:yaml.org,2002:float", _FRACTION, list("-+.0123456789")),
    ("tag:yaml.org,2002:null", _NULL, ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:merge", re.compile("<<"), ["<"]),
):
    _Loader.add_implicit_resolver(_tag, re.compile(f"(?:{_pattern.pattern})$"), _first)


def _construct(text: str, name: str, path: KeyPath, document: Document, *, numbered: bool) -> Any:
    """Values of one YAML text that belongs at `path`; notes the places under `name`, with lines if `numbered`."""
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            places = {
                at: Place(f"{name}:{line}" if numbered else name, word)
                for at, line, word in _walk(node, path, name, ())
            }
            values = loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}" if mark and numbered else name
        cure = "indent with spaces, not tabs" if "'\\t'" in str(error.problem) else "see the line and the one before it"
        raise ConfigError([f"{where}: is not YAML: {error.problem or error.context}: {cure}"]) from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError([f"{name}: is not YAML: {error}"]) from None
    document.places.update(places)
    return values


def _walk(
    node: yaml.Node, path: KeyPath, name: str, above: tuple[int, ...]
) -> Iterator[tuple[KeyPath, int, str | None]]:
    """Every value below `node` with its line and, for unquoted scalars, its word."""
    line = node.start_mark.line + 1
    if id(node) in above:
        raise ConfigError([f"{name}:{line}: an alias contains itself: write the value out"])
    inside = (*above, id(node))
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            if key_node.tag != "tag:yaml.org,2002:str":
                word = getattr(key_node, "value", "")
                raise ConfigError([f"{name}:{line}: the key {word!s} is not text for YAML: put it in quotes"])
            key = str(key_node.value)
            if key in seen:
                dotted = ".".join(map(str, (*path, key)))
                raise ConfigError([f"{name}:{line}: {dotted} was given in line {seen[key]} already: keep one of them"])
            seen[key] = line
            yield (*path, key), line, _word(value_node)
            yield from (found for found in _walk(value_node, (*path, key), name, inside) if found[0] != (*path, key))
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield (*path, index), item.start_mark.line + 1, _word(item)
            yield from (found for found in _walk(item, (*path, index), name, inside) if found[0] != (*path, index))
    else:
        yield path, line, _word(node)


def _word(node: yaml.Node) -> str | None:
    return str(node.value) if isinstance(node, yaml.ScalarNode) and node.style is None else None


def _override(document: Document, override: str) -> None:
    """Lay `a.b=value` over the document. Below `kafka`, whose keys have dots, the rest is one key."""
    dotted, equals, text = override.partition("=")
    dotted = dotted.strip()
    keys = tuple(dotted.split(".", 1) if dotted.startswith("kafka.") else dotted.split("."))
    if not equals or not all(keys):
        raise ConfigError([f"--set {override}: is no override: write --set KEY=VALUE, for example --set train.seed=7"])
    section = document.values
    for depth, key in enumerate(keys[:-1], start=1):
        inner = section.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ConfigError(
                [f"--set: {dotted}: {'.'.join(keys[:depth])} is a value, not a section: set that key itself"]
            )
        section = inner
    for at in [at for at in document.places if at[: len(keys)] == keys]:
        del document.places[at]
    section[keys[-1]] = _construct(text, "--set", keys, document, numbered=False)
    document.places.setdefault(keys, Place("--set", text.strip() or None))


def _refer(document: Document, value: Any, path: KeyPath) -> Any:
    """`value` with every reference filled in; notes what came from outside."""
    if isinstance(value, dict):
        return {key: _refer(document, inner, (*path, key)) for key, inner in value.items()}
    if isinstance(value, list):
        return [_refer(document, inner, (*path, index)) for index, inner in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value
    key = f"{document.place(path)}: {'.'.join(map(str, path))}"
    filled = _REFERENCE.sub(lambda match: _outside(match, key), value)
    document.secrets[path] = filled
    return filled


def _outside(match: re.Match[str], key: str) -> str:
    """What one reference stands for; the value itself is never part of a message."""
    kind, name = match[1], match[2]
    if kind is None or not name or not match[0].endswith("}"):
        raise ConfigError([f"{key}: {match[0]} is not a reference: write ${{env:NAME}} or ${{file:PATH}}"])
    if kind == "env":
        if name not in os.environ:
            raise ConfigError([f"{key}: the environment variable {name} is not set: export it first"])
        return os.environ[name]
    try:
        return Path(name).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(
            [f"{key}: the file {name} cannot be read ({reason}): create it or correct the path"]
        ) from None
