"""Functions compiled by Numba: no GIL, cached on disk, and working wherever nothing can be cached.

The first process that needs a function compiles it (seconds) and writes it to the cache; the others load it (tenths of
a second). The cache is `NUMBA_CACHE_DIR` where that is set, else `__pycache__` beside the source, else the user's own
cache folder; files are replaced whole, so processes that start at once at worst compile the same thing twice. A
`NUMBA_CACHE_DIR` that cannot be written is read all the same: so an image is filled when it is built and runs on a
read-only file system. Where there is nothing to read or write, each process compiles for itself, and says so once.

Numba takes a cached function for current as long as the file that it stands in is the same. Ours are inlined from and
hold constants of the files beside them, so here every file of the folder counts.

Compiled functions carry no annotations, and an ignore says so to mypy: Numba infers types from each call and compiles
one version for each. What the arrays are stands in the docstrings; what calls them is typed. Numba itself has no
types that mypy knows, so the classes that are derived from its own carry an ignore too.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba
from numba.core import caching

P = ParamSpec("P")
R = TypeVar("R")

# Nothing here makes arrays, so nothing needs counting; with counting, an inlined part would cost two atomic
# operations an array, each time it is passed.
_OPTIONS: dict[str, Any] = {"nogil": True, "_nrt": False}

_log = logging.getLogger(__name__)


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile at the first call with new argument types. Arguments: NumPy arrays and scalars; no array is made."""
    dispatcher = numba.njit(**_OPTIONS)(function)
    for kind, folders in ((caching.FunctionCache, (ChosenFolder,)), (_Filled, (FilledFolder,)), _ELSEWHERE):
        try:
            with _locators(folders):
                dispatcher._cache = kind(function)
                break
        except RuntimeError as error:
            if "no locator available" not in str(error):  # Numba's words for "none of these folders will do"
                raise
    else:
        _warn_once()
    return cast(Callable[P, R], dispatcher)


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """A part of compiled functions: cached as part of its callers, which stand in the same folder."""
    return cast(Callable[P, R], numba.njit(**_OPTIONS)(function))


@cache
def stamp_of(folder: Path) -> str:
    """Changes with any source file of the folder, and with this one."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for file in sorted(folder.glob("*.py")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


class _FolderStamp:
    """What a cached function is current with."""

    _py_file: str

    def get_source_stamp(self) -> str:
        return stamp_of(Path(self._py_file).resolve().parent)


class ChosenFolder(_FolderStamp, caching.UserProvidedCacheLocator):  # type: ignore[misc]
    """NUMBA_CACHE_DIR."""


class FilledFolder(ChosenFolder):
    """The same, to read from."""

    def ensure_cache_path(self) -> None:
        if not Path(self.get_cache_path()).is_dir():
            raise FileNotFoundError(self.get_cache_path())


class BesideSource(_FolderStamp, caching.InTreeCacheLocator):  # type: ignore[misc]
    """__pycache__."""


class UserFolder(_FolderStamp, caching.UserWideCacheLocator):  # type: ignore[misc]
    """The user's cache folder."""


class _Filled(caching.FunctionCache):  # type: ignore[misc]
    """Loads; what it has not got is compiled and not kept."""

    def _save_overload(self, sig: Any, data: Any) -> None:
        _warn_once()


_ELSEWHERE = (caching.FunctionCache, (BesideSource, UserFolder))


@contextmanager
def _locators(folders: Sequence[type[Any]]) -> Iterator[None]:
    """Have Numba ask these classes where to cache, for the cache that is made within."""
    before = numba.config.CACHE_LOCATOR_CLASSES
    numba.config.CACHE_LOCATOR_CLASSES = ",".join(f"{kind.__module__}.{kind.__qualname__}" for kind in folders)
    try:
        yield
    finally:
        numba.config.CACHE_LOCATOR_CLASSES = before


@cache
def _warn_once() -> None:
    _log.warning(
        "compiled code cannot be cached: no folder is writable. Every process compiles for some seconds when it "
        "starts; set NUMBA_CACHE_DIR to a writable folder"
    )
