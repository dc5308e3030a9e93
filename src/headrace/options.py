"""Options that verbs share: the configuration file, its overrides, `--debug`; and the section that shows an example.

Nothing heavy is imported here, or `headrace VERB --help` would wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from headrace.config import Config, Loaded

DEFAULT_FILE = Path("headrace.yaml")


@dataclass(frozen=True, slots=True)
class Given:
    """The configuration as the command line names it."""

    file: Path
    overrides: tuple[str, ...]

    def load(self) -> Loaded:
        """Read and check it now. Raises ConfigError."""
        from headrace import config

        return config.load(self.file, self.overrides)

    def load_if_there(self) -> Config:
        """For verbs that need a configuration only for how records look: nobody must have one, unless it was named."""
        if self.file != DEFAULT_FILE or self.file.exists():
            return self.load().config
        from headrace import config

        return config.loads("name: none", overrides=self.overrides)


def debug(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--debug`, read by `main` from the root context."""

    def note(context: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            context.find_root().meta["debug"] = True

    return click.option(
        "--debug", is_flag=True, expose_value=False, callback=note, help="Show the traceback of an error."
    )(command)


def configured(command: Callable[..., Any]) -> Callable[..., Any]:
    """`-c` and `--set`, handed over as one `Given` named `given`; with `--debug`."""

    def gather(context: click.Context, _: click.Parameter, overrides: tuple[str, ...]) -> Given:
        return Given(context.meta["headrace.file"], overrides)

    def note_file(context: click.Context, _: click.Parameter, file: Path) -> None:
        context.meta["headrace.file"] = file

    command = debug(command)
    command = click.option(
        "given",
        "--set",
        multiple=True,
        metavar="KEY=VALUE",
        callback=gather,
        help="Override a key: train.seed=7.",
    )(command)
    return click.option(
        "-c",
        "--config",
        default=DEFAULT_FILE,
        show_default=True,
        type=click.Path(path_type=Path),
        is_eager=True,
        expose_value=False,
        callback=note_file,
        metavar="FILE",
        help="The configuration.",
    )(command)


as_json = click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output, for machines.")


def example(*lines: str) -> str:
    """The end of a help text."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)
