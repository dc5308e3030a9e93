"""Guards over the tree: which way imports run, who may import what is heavy, that nothing unpickles, what stays out.

They read the sources with `ast`, so a lazy import inside a function counts too. Where a guard is in the way of
something right, extend its list here, with the reason.
"""

from __future__ import annotations

import ast
import fnmatch
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# What each part may import of headrace. src/headrace itself may import all of it.
DIRECTION = {
    "schemas": {"schemas"},
    "pipeline": {"schemas", "pipeline"},
    "ingest": {"schemas", "pipeline", "ingest"},
    "trainer": {"schemas", "pipeline", "trainer"},
}
STAGES = frozenset(DIRECTION)

# Where a heavy library may be imported: when the module is loaded, or only inside a function.
PADDLE = ("paddle", "paddlenlp")
WHEN_LOADED = {
    **dict.fromkeys(
        PADDLE,
        (
            "trainer/model.py",
            "trainer/optimizer.py",
            "trainer/network_weights.py",
            "trainer/distributed.py",
            "trainer/reduce.py",
            "trainer/local_steps.py",
            "trainer/shard.py",
            "trainer/step.py",
            "trainer/evaluate.py",
            "trainer/tasks/*.py",
            "trainer/export/graph.py",
            "tests/unit/trainer/paddle/*.py",
            "examples/*.py",
        ),
    ),
    "confluent_kafka": ("pipeline/kafka*.py", "tests/*.py", "bench/*.py"),
    "numba": ("ingest/compiled.py",),
}
IN_A_FUNCTION = {
    **dict.fromkeys(PADDLE, ("trainer/*.py", "src/headrace/commands/*.py", "tests/*.py", "bench/*.py")),
    "confluent_kafka": ("src/headrace/commands/doctor.py",),
    "numba": ("src/headrace/commands/doctor.py", "tests/*.py", "bench/*.py"),
}

# Modules that turn bytes into live objects, and functions that do so on the quiet (some by way of other ranks).
UNPICKLERS = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "multiprocessing"}
UNPICKLING_CALLS = (
    "pickle.load", "pickle.loads", "pickle.Unpickler", ".read_pickle", "paddle.load", "torch.load",
    "yaml.load", "yaml.unsafe_load", "yaml.full_load",
    ".all_gather_object", ".broadcast_object_list", ".scatter_object_list",
)  # fmt: skip
# PaddleNLP publishes weights as pickles. This module reads them by an Unpickler that knows six names, all of arrays.
ARRAYS_ONLY = "trainer/weights.py"

# Hosts that the tree may name: specifications, and where people read on. Addresses of package registries belong to the
# machine's settings, never to the repository.
HOSTS = (
    "127.0.0.1", "localhost", "*.example.com", "*.example.org", "example.com",
    "www.apache.org", "www.w3.org", "maven.apache.org",  # the licence; names of XML schemas
    "json-schema.org", "github.com", "arxiv.org",
    "bj.bcebos.com",  # where PaddleNLP keeps its vocabularies
)  # fmt: skip

MAX_LINES = 350


@dataclass(frozen=True)
class Import:
    """One imported module; `lazy` when it stands inside a function."""

    path: str
    line: int
    module: str
    lazy: bool

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}: {self.module}"


@cache
def files() -> tuple[str, ...]:
    """Files that git tracks or would add, relative to the root; the links in src/headrace are left out."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(sorted(name for name in set(listed.split("\0")) if name and (ROOT / name).is_file()))


@cache
def tree(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), path)


def sources(*patterns: str) -> list[str]:
    found = [name for name in files() if name.endswith(".py")]
    return [name for name in found if not patterns or any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]


def headrace_sources() -> list[str]:
    return sources("src/*", *(f"{stage}/*" for stage in STAGES))


@cache
def imports(path: str) -> tuple[Import, ...]:
    """Every import of a file; `from a.b import c` gives a.b.c, which may be a module or a name in one."""
    return tuple(_imports(tree(path), path, lazy=False))


def _imports(node: ast.AST, path: str, lazy: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(path, child.lineno, alias.name, lazy) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = "." * child.level + (child.module or "")
            yield from (Import(path, child.lineno, f"{base}.{alias.name}", lazy) for alias in child.names)
        elif not _is_type_checking(child):
            function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from _imports(child, path, lazy or function)


def _is_type_checking(node: ast.AST) -> bool:
    """`if TYPE_CHECKING:` imports nothing at run time."""
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatch(path, pattern) for pattern in patterns)


@pytest.mark.parametrize("stage", sorted(STAGES))
def test_the_import_name_leads_to_the_folder_at_the_top(stage: str) -> None:
    link = ROOT / "src" / "headrace" / stage
    assert link.is_symlink()
    assert link.readlink() == Path("..", "..", stage)


@pytest.mark.parametrize("stage", sorted(STAGES))
def test_imports_run_one_way(stage: str) -> None:
    allowed = {f"headrace.{part}" for part in DIRECTION[stage]}
    wrong = [
        found.where
        for path in sources(f"{stage}/*")
        for found in imports(path)
        if found.module.split(".")[0] == "headrace" and ".".join(found.module.split(".")[:2]) not in allowed
    ]
    assert wrong == [], f"{stage} may import {sorted(allowed)} only"


@pytest.mark.parametrize(("stage", "other"), [("ingest", "trainer"), ("trainer", "ingest")])
def test_stages_do_not_reach_each_other_by_a_name_in_a_string(stage: str, other: str) -> None:
    wrong = [
        f"{path}:{node.lineno}: {node.value}"
        for path in sources(f"{stage}/*")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Constant) and re.match(rf"headrace\.{other}\b", str(node.value))
    ]
    assert wrong == []


def test_modules_are_imported_by_one_name_only() -> None:
    """From the root `import trainer` would load every module a second time, under another name."""
    wrong = [found.where for path in sources() for found in imports(path) if found.module.split(".")[0] in STAGES]
    assert wrong == [], "write headrace.NAME"
    relative = [found.where for path in headrace_sources() for found in imports(path) if found.module.startswith(".")]
    assert relative == [], "write headrace.NAME"


@pytest.mark.parametrize("library", sorted(WHEN_LOADED))
def test_only_these_modules_import_a_heavy_library(library: str) -> None:
    wrong = [
        f"{found.where}{' (in a function)' if found.lazy else ''}"
        for path in sources()
        for found in imports(path)
        if found.module.split(".")[0] == library
        and not _matches(path, WHEN_LOADED[library])
        and not (found.lazy and _matches(path, IN_A_FUNCTION[library]))
    ]
    assert wrong == [], f"{library}: at the top only in {WHEN_LOADED[library]}, lazily in {IN_A_FUNCTION[library]}"


def test_nothing_is_unpickled() -> None:
    wrong = [
        found.where
        for path in headrace_sources() + sources("bench/*")
        for found in imports(path)
        if found.module.split(".")[0] in UNPICKLERS and (found.path, found.module) != (ARRAYS_ONLY, "pickle")
    ]
    assert wrong == [], "what comes from outside must never become an object by itself"


def test_no_call_unpickles_on_the_quiet() -> None:
    wrong = [
        f"{path}:{node.lineno}: {ast.unparse(node.func)}"
        for path in headrace_sources() + sources("bench/*")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and _unpickles(node)
    ]
    assert wrong == []


def _unpickles(call: ast.Call) -> bool:
    allowed = any(word.arg == "allow_pickle" and ast.unparse(word.value) != "False" for word in call.keywords)
    return allowed or ast.unparse(call.func).endswith(UNPICKLING_CALLS)


def test_files_stay_short() -> None:
    lengths = {path: len((ROOT / path).read_text().splitlines()) for path in headrace_sources() + sources("bench/*")}
    assert {path: lines for path, lines in lengths.items() if lines > MAX_LINES} == {}, f"more than {MAX_LINES} lines"


def _texts() -> Iterator[tuple[str, str]]:
    for name in files():
        try:
            yield name, (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # not text


def test_only_known_hosts_are_named() -> None:
    wrong = [
        f"{name}:{text.count(chr(10), 0, found.start()) + 1}: {found[0]}"
        for name, text in _texts()
        for found in re.finditer(r"\b(?:https?|git\+\w+)://([\w.-]*\w)", text)
        if "." in found[1] and not _matches(found[1], HOSTS)
    ]
    assert wrong == [], "an address of a registry belongs to the machine's settings; others: extend HOSTS"


def test_no_option_points_at_a_registry() -> None:
    option = re.compile(r"--(?:extra-)?index-url\b|--find-links\b|--trusted-host\b|\bindex-url\s*=")
    wrong = [name for name, text in _texts() if name != _THIS and option.search(text)]
    assert wrong == []


def test_no_path_of_one_machine() -> None:
    """Absolute paths of a developer's machine, such as a home directory; `/home/me` and `/home/you` are nobody's."""
    path = re.compile(r"(?<![\w.$}~-])/(?:root|home|Users|work|tmp/w)/(?!(?:me|you)\b)[\w.]")
    wrong = [
        f"{name}:{number}: {line.strip()[:80]}"
        for name, text in _texts()
        if name != _THIS
        for number, line in enumerate(text.splitlines(), 1)
        if path.search(line)
    ]
    assert wrong == []


_THIS = Path(__file__).relative_to(ROOT).as_posix()


def _pins(name: str) -> dict[str, set[str]]:
    """Package -> its pinned versions (more than one where Python 3.12 takes another)."""
    pins: dict[str, set[str]] = {}
    for line in (ROOT / "requirements" / f"{name}.txt").read_text().splitlines():
        if found := re.match(r"([\w.-]+)==([\w.]+)", line):
            pins.setdefault(found[1], set()).add(found[2])
    return pins


@pytest.mark.parametrize("name", ["build", "dev", "ingest", "trainer"])
def test_every_requirement_is_pinned_by_hash(name: str) -> None:
    entries = re.sub(r" \\\n\s+", " ", (ROOT / "requirements" / f"{name}.txt").read_text()).splitlines()
    assert entries
    assert [entry[:60] for entry in entries if not re.match(r"[\w.-]+==\S+( ;.*?)? --hash=sha256:", entry)] == []


@pytest.mark.parametrize("name", ["build", "ingest", "trainer"])
def test_the_images_run_the_versions_that_were_tested(name: str) -> None:
    tested = _pins("dev")
    windows_only = {"colorama"}
    other = {pin: versions for pin, versions in _pins(name).items() if not versions <= tested.get(pin, set())}
    assert other.keys() <= windows_only


def test_ingest_needs_no_paddle() -> None:
    assert not [pin for pin in _pins("ingest") if "paddle" in pin]
    assert {"paddlepaddle", "paddlenlp"} <= _pins("trainer").keys()


def test_the_wheel_holds_every_file_of_the_package(tmp_path: Path) -> None:
    """The stages' folders reach it through the links; data files need an entry in package-data."""
    package = [name for name in files() if name.startswith(("src/", *(f"{stage}/" for stage in STAGES)))]
    for name in [*package, "pyproject.toml", "README.md", "LICENSE"]:
        copy = tmp_path / "tree" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, copy)
    for stage in STAGES:
        (tmp_path / "tree/src/headrace" / stage).symlink_to(Path("..", "..", stage))
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([*pip, str(tmp_path / "tree")], check=True, timeout=240)
    (wheel,) = tmp_path.glob("headrace-*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    expected = {f"headrace/{name.removeprefix('src/headrace/')}" for name in package}
    assert expected - held == set()


HELP = """
import sys
from headrace.cli import main
sys.argv = ["headrace", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    assert end.code in (0, None), end.code
heavy = {"paddle", "paddlenlp", "confluent_kafka", "numba"}
print("LOADED", sorted(heavy & {name.split(".")[0] for name in sys.modules}))
"""


def test_help_loads_no_heavy_library() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HELP, "--help"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "LOADED []"
