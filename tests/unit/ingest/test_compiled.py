"""Compiled code: cached where it can be, never stale, harmless where nothing can be written or many start at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.ingest import compiled

_PART = """
from headrace.ingest.compiled import inlined
ADDED = {added}

@inlined
def part(a):
    return a + ADDED
"""
_WHOLE = """
import sys
import numpy as np
from headrace.ingest.compiled import compiled
from part import part

@compiled
def whole(values):
    total = 0
    for value in values:
        total += part(value)
    return total

print(whole(np.arange(3)), sum(whole.stats.cache_hits.values()))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "part.py").write_text(_PART.format(added=1))
    (tmp_path / "whole.py").write_text(_WHOLE)
    return tmp_path


def run(folder: Path, script: str = "whole.py", **variables: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    return subprocess.Popen(
        [sys.executable, "-B", script],
        cwd=folder,
        env=environment | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outcome(process: subprocess.Popen[str]) -> list[int]:
    out, err = process.communicate()
    assert process.returncode == 0, err
    return [int(number) for number in out.split()]


def test_the_second_process_loads_what_the_first_compiled(folder: Path) -> None:
    assert [outcome(run(folder)), outcome(run(folder))] == [[6, 0], [6, 1]]


def test_a_changed_neighbour_is_compiled_again(folder: Path) -> None:
    """Numba alone would load the old code: the file that changed is not the one that the function stands in."""
    assert outcome(run(folder)) == [6, 0]
    (folder / "part.py").write_text(_PART.format(added=2))
    assert outcome(run(folder)) == [9, 0]


def test_processes_that_start_at_once_with_nothing_cached(folder: Path) -> None:
    processes = [run(folder) for _ in range(4)]
    assert {outcome(process)[0] for process in processes} == {6}
    assert outcome(run(folder)) == [6, 1]


def test_a_chosen_folder(folder: Path, tmp_path: Path) -> None:
    chosen = tmp_path / "chosen"
    assert outcome(run(folder, NUMBA_CACHE_DIR=str(chosen))) == [6, 0]
    assert list(chosen.rglob("*.nbc"))
    assert outcome(run(folder, NUMBA_CACHE_DIR=str(chosen))) == [6, 1]


_READ_ONLY = """
import errno
from headrace.ingest import compiled

def refuse(self):
    raise OSError(errno.EROFS, "as on a read-only file system")

for kind in (compiled.ChosenFolder, compiled.BesideSource, compiled.UserFolder):
    kind.ensure_cache_path = refuse
import whole
"""


def test_a_chosen_folder_that_cannot_be_written_is_read(folder: Path, tmp_path: Path) -> None:
    """Root may write everywhere, so the refusal is made up: Numba asks `ensure_cache_path` whether it may write."""
    (folder / "fill.py").write_text("import whole")
    (folder / "read_only.py").write_text(_READ_ONLY)
    chosen = {"NUMBA_CACHE_DIR": str(tmp_path / "chosen")}
    assert outcome(run(folder, "fill.py", **chosen)) == [6, 0]
    before = sorted((tmp_path / "chosen").rglob("*"))
    assert outcome(run(folder, "read_only.py", **chosen)) == [6, 1]
    (folder / "part.py").write_text(_PART.format(added=2))
    process = run(folder, "read_only.py", **chosen)  # nothing there fits: compiled, and not kept
    out, err = process.communicate()
    assert (process.returncode, out.split()) == (0, ["9", "0"]), err
    assert err.count("cannot be cached") == 1
    assert sorted((tmp_path / "chosen").rglob("*")) == before


def test_where_nothing_can_be_written_it_still_works(folder: Path) -> None:
    """Every candidate is a folder below a file, which not even root can make."""
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    (folder / "__pycache__").write_text("not a folder")
    home = folder / "home"
    home.write_text("not a folder either")
    process = run(folder, HOME=str(home), XDG_CACHE_HOME=str(home / "cache"))
    out, err = process.communicate()
    assert (process.returncode, out.split()) == (0, ["6", "0"]), err
    assert "NUMBA_CACHE_DIR" in err
    assert err.count("cannot be cached") == 1


def test_a_stamp_changes_with_every_file_of_the_folder(folder: Path) -> None:
    before = compiled.stamp_of(folder)
    (folder / "more.py").write_text("")
    compiled.stamp_of.cache_clear()
    assert compiled.stamp_of(folder) != before
