"""What `make setup` says on a machine where Python is missing, too old, a shim, or without venv."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "requirements" / "venv.sh"


class Machine:
    """A PATH that holds the given interpreters and nothing else that could be one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        dirname = shutil.which("dirname")
        assert dirname is not None
        (folder / "dirname").symlink_to(dirname)

    def install(self, name: str, version: str, *, venv: bool = True) -> Machine:
        """An interpreter that answers what the script asks."""
        answers = (
            f"*version_info*) echo {version} ;; *ensurepip*) exit {0 if venv else 1} ;; *executable*) echo {name} ;;"
        )
        return self._write(name, f'case "$2" in {answers} esac')

    def install_shim(self, name: str) -> Machine:
        """As pyenv makes one for every version that it knows, chosen or not."""
        return self._write(name, f"echo 'pyenv: {name}: command not found' >&2; exit 127")

    def _write(self, name: str, body: str) -> Machine:
        program = self._folder / name
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
        return self

    def find(self, **environment: str) -> subprocess.CompletedProcess[str]:
        command = ["/bin/sh", str(SCRIPT), "find"]
        path = {"PATH": str(self._folder), **environment}
        return subprocess.run(command, env=path, capture_output=True, text=True, check=False)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_any_python_it_names_what_is_missing(machine: Machine) -> None:
    done = machine.find()
    assert done.returncode == 1
    assert "needs Python 3.11 or 3.12" in done.stderr
    assert "make setup PYTHON=" in done.stderr


def test_a_python_that_is_too_old_or_too_new_is_named(machine: Machine) -> None:
    done = machine.install("python3", "3.10").install("python", "3.14").find()
    assert done.returncode == 1
    assert "python3 is 3.10; python is 3.14;" in done.stderr


def test_a_shim_that_refuses_to_start_is_passed_over(machine: Machine) -> None:
    machine.install_shim("python3.11").install_shim("python3.12")
    assert "python3.11 does not start; python3.12 does not start;" in machine.find().stderr
    assert machine.install("python3", "3.12").find().stdout == "python3\n"


def test_a_python_without_venv_is_told_with_the_package(machine: Machine) -> None:
    done = machine.install("python3.11", "3.11", venv=False).find()
    assert done.returncode == 1
    assert "python3.11-venv" in done.stderr


def test_the_oldest_that_fits_is_taken_unless_another_is_named(machine: Machine) -> None:
    machine.install("python3.12", "3.12").install("python3.11", "3.11")
    assert machine.find().stdout == "python3.11\n"
    assert machine.find(PYTHON="python3.12").stdout == "python3.12\n"
