"""The command line: a group whose verbs are loaded when they are used, and `main`, which turns errors into exit codes.

Verbs live in `headrace.commands`, one module each, and import what they need inside their functions: help must not
wait for Paddle, a broker client or a compiler.
"""

from __future__ import annotations

import importlib
import os
import select
import sys
import traceback
from collections.abc import Sequence

import click

from headrace import __version__
from headrace.options import debug, example
from headrace.schemas.errors import EXIT_FAILED, EXIT_USAGE, HeadraceError

EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells say it
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE

#: Verbs by what they are for, in the order of the help.
VERBS = {
    "Start": ("init", "demo", "vocab", "doctor"),
    "Run": ("up", "publish", "ingest", "train"),
    "Look": ("status", "ledger", "report"),
    "Keep": ("export", "predict"),
    "Measure": ("bench",),
    "Mend": ("topics",),
}


class Verbs(click.Group):
    """Finds verb NAME as `command` in `headrace.commands.NAME`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [verb for verbs in VERBS.values() for verb in verbs]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command = importlib.import_module(f"headrace.commands.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, verbs in VERBS.items():
            commands = [(verb, self.get_command(ctx, verb)) for verb in verbs]
            with formatter.section(title):
                formatter.write_dl([(verb, command.get_short_help_str(80)) for verb, command in commands if command])


@click.command(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=example("headrace demo", "headrace init && headrace doctor && headrace up"),
)
@click.version_option(__version__, prog_name="headrace")
@debug
def cli() -> None:
    """Feed live text to a distributed PaddlePaddle trainer, exactly once into the gradients."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    context: click.Context | None = None
    try:
        with cli.make_context("headrace", list(arguments)) as context:
            cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as done:
        return done.exit_code
    except (KeyboardInterrupt, click.exceptions.Abort):
        click.echo("headrace: interrupted", err=True)
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE
    except HeadraceError as error:
        _say(error, context)
        return error.exit_code
    except BrokenPipeError as error:
        if not _reader_left():
            _say(error, context)
            return EXIT_FAILED
        return EXIT_BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - the last place before the user: a bug becomes one line and exit code 1
        _say(error, context)
        return EXIT_FAILED
    return 0


def _say(error: Exception, context: click.Context | None) -> None:
    """One line per fault on standard error; the traceback only where it was asked for."""
    debugging = "--debug" in sys.argv if context is None else bool(context.meta.get("debug"))
    if debugging:
        traceback.print_exception(error)
    if isinstance(error, HeadraceError):
        for line in str(error).splitlines():
            click.echo(f"headrace: {line}", err=True)
    else:
        cure = "" if debugging else ": this is a bug; --debug shows where"
        click.echo(f"headrace: {type(error).__name__}: {error}{cure}", err=True)


def _reader_left() -> bool:
    """Whether standard output is what broke; it is then pointed at nothing, or the exit would complain once more."""
    poll = select.poll()
    poll.register(1, 0)  # errors are always told
    if not poll.poll(0):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return True
