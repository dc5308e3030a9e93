"""The command line: help is light and shows an example, errors are one line and an exit code, pipes may break."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from headrace import cli
from headrace.schemas.errors import BadRecord, BrokerAway, HeadraceError, LossNotFinite, Reason, UsageError

ROOT = Path(__file__).parents[3]
HEAVY = (
    "paddle", "paddlenlp", "confluent_kafka", "numba", "pyarrow", "numpy", "pydantic", "yaml", "rich", "tokenizers",
    "fsspec", "safetensors",
)  # fmt: skip
CONTEXT = click.Context(cli.cli, info_name="headrace")


def paths() -> Iterator[list[str]]:
    """Every command, as one types it."""
    yield []
    for verb in cli.cli.list_commands(CONTEXT):
        yield [verb]
        command = cli.cli.get_command(CONTEXT, verb)
        if isinstance(command, click.Group):
            yield from ([verb, inner] for inner in command.commands)


@pytest.mark.parametrize("path", list(paths()), ids=" ".join)
def test_help_ends_with_an_example(path: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*path, "--help"]) == 0
    last = capsys.readouterr().out.split("Example:")[-1].strip().splitlines()
    assert last and all(" ".join(["headrace", *path]) in line for line in last)


def test_no_help_imports_nothing_heavy() -> None:
    """One process asks for every help there is: what one of them imports would show."""
    code = f"""
import sys
from headrace import cli
for path in {list(paths())!r}:
    assert cli.main([*path, "--help"]) == 0
print("heavy:", [name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "heavy: []"


def test_the_script_is_main() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"headrace": "headrace.cli:main"}


def test_an_unknown_verb_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ingset"]) == 2
    assert "ingset" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("train.seed: must be a number"), 2),
        (BrokerAway("no broker answers at nowhere:9092: start it"), 75),
        (LossNotFinite("the loss of step 7 is NaN"), 1),
        (BadRecord(Reason.INVALID_JSON, "line 3"), 1),
        (OSError(28, "No space left on device"), 1),
        (ZeroDivisionError("a bug"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_become_one_line_and_an_exit_code(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, error)
    assert cli.main(["doctor"]) == code
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("headrace: ")
    assert captured.err.count("\n") == 1 and "Traceback" not in captured.err
    if isinstance(error, HeadraceError):
        assert captured.err == f"headrace: {error}\n"


@pytest.mark.parametrize("arguments", [["--debug", "doctor"], ["doctor", "--debug"]])
def test_the_traceback_is_shown_where_it_is_asked_for(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, UsageError("wrong"))
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert "Traceback" in error and error.endswith("headrace: wrong\n")


def test_every_fault_of_a_configuration_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("nmae: a\ntokens: {lanes: 0}\n")
    assert cli.main(["doctor", "-c", str(file)]) == 2
    assert capsys.readouterr().err.splitlines() == [f"headrace: {file}:1: nmae: unknown key: did you mean 'name'?"]


def test_a_reader_that_leaves_is_no_error() -> None:
    """`headrace --help | head -1`, with a pipe that is closed before anything is written."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-m", "headrace", "--help"], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_ctrl_c_exits_with_130(tmp_path: Path) -> None:
    (tmp_path / "headrace.yaml").write_text("name: a\nbroker: local:./data\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", "status", "--watch", "--json"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline().startswith("{")  # it is at work
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (130, "headrace: interrupted\n")


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    from headrace.commands import doctor

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(doctor, "_all", fail)
