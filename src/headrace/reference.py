"""The reference pages, written from the models and the commands: `python -m headrace.reference docs`."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Any

import click
from pydantic_core import PydanticUndefined

from headrace import keys
from headrace.config import Config, sections
from headrace.schemas.settings import Settings

_CONFIGURATION = """\
# Configuration

<!-- Written by `make reference` from the models' own sentences: change those. -->

One YAML file holds everything: `headrace.yaml`, or the file named with `-c`. `headrace init` writes one with comments.
Only `name` is needed, and `train` where something is trained; every other key has the default given here.

- `--set a.b=value` on a command line overrides a key; the value is YAML: `--set train.stop={steps: 100}`.
- `${env:NAME}` and `${file:PATH}` in a value stand for an environment variable and for a file's content (without the
  line end). One that is missing is an error. Such values are never shown, nor is anything under `kafka` whose name
  contains password, secret, token or key: `headrace doctor --effective` prints the configuration in force with `***`.
- Keys that are not known are refused with the nearest known one, a key given twice is refused, and so is `no`, `on` and
  the like where a text is meant (YAML reads them as booleans: quote them).
- Editors complete and check the file with the JSON Schema that is shipped as `headrace/schema.json`.
- Every fault is one line, `FILE:LINE: key: what is wrong: the cure`, and the exit code is 2.
"""
_COMMANDS = """\
# Commands

<!-- Written by `make reference` from the commands' own help: change that. -->

Exit codes: 0 done, 1 failed, 2 usage or configuration, 75 try again (a service is away), 130 interrupted. Results go to
standard output; progress, warnings and errors to standard error. `--debug` shows the traceback of an error.
"""


def configuration() -> str:
    """The page on every key."""
    parts = [_CONFIGURATION, _table("", [keys.Key((key,), Config.model_fields[key]) for key in sections()])]
    for name, model in sections().items():
        if model is not None:
            field = Config.model_fields[name]
            rows = [key for key in keys.walk(model, (name,)) if key.path != (name,)]
            parts.append(_table(name, rows, field.description or ""))
    return "\n".join(parts)


def commands() -> str:
    """The page on every command, as `--help` prints it."""
    from headrace.cli import cli

    width: dict[str, Any] = {"max_content_width": 100, "terminal_width": 100, "help_option_names": ["-h", "--help"]}
    root = click.Context(cli, info_name="headrace", **width)
    parts = [_COMMANDS, _help(cli, root)]
    for name in cli.list_commands(root):
        command = cli.get_command(root, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=root, **width)
        parts.append(f"## headrace {name}\n\n{_help(command, context)}")
        if isinstance(command, click.Group):
            for inner in command.list_commands(context):
                verb = command.commands[inner]
                inside = click.Context(verb, info_name=inner, parent=context, **width)
                parts.append(f"### headrace {name} {inner}\n\n{_help(verb, inside)}")
    return "\n".join(parts)


def _help(command: click.Command, context: click.Context) -> str:
    lines = (line.rstrip() for line in command.get_help(context).splitlines())
    return "```text\n" + "\n".join(lines) + "\n```\n"


def _table(section: str, rows: list[keys.Key], about: str = "") -> str:
    head = f"## {section}\n\n{about}\n" if section else "## Top level\n"
    lines = [head, "| key | value | default | |", "| --- | --- | --- | --- |"]
    for key in rows:
        variant = f" ({key.variant})" if key.variant else ""
        kind = keys.type_text(key.field).replace("|", "\\|")
        lines.append(f"| `{key.dotted}`{variant} | {kind} | {_default(key)} | {_cell(key.description)} |")
    return "\n".join(lines) + "\n"


def _default(key: keys.Key) -> str:
    value = key.field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, Settings) or value == {}:
        return ""
    return "unset" if value is None else f"`{_plain(value)}`" if value not in ("", ()) else "empty"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value.value if isinstance(value, Enum) else value)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
    (folder / "configuration.md").write_text(configuration(), encoding="utf-8")
    (folder / "commands.md").write_text(commands(), encoding="utf-8")
