"""Functions compiled by Numba: no GIL, cached on disk, and working wherever nothing can be cached.

The first process that needs a function compiles it (seconds) and writes it to the cache; the others load it (tenths of
a second). The cache is `NUMBA_CACHE_DIR` where that is set, else `__pycache__` beside the source, else the user's own
cache folder; files are replaced whole, so processes that start at once at worst compile the same thing twice. Where
none of these can be written, each process compiles for itself, and says so once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any, ParamSpec, TypeVar, cast

import numba

P = ParamSpec("P")
R = TypeVar("R")

# Nothing here makes arrays, so nothing needs counting; with counting, an inlined part would cost two atomic
# operations an array, each time it is passed.
_OPTIONS: dict[str, Any] = {"nogil": True, "_nrt": False}

_log = logging.getLogger(__name__)


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile at the first call with new argument types. Arguments: NumPy arrays and scalars."""
    try:
        return cast(Callable[P, R], numba.njit(cache=True, **_OPTIONS)(function))
    except RuntimeError:  # Numba's word for "no folder can be written"
        _warn_once()
        return cast(Callable[P, R], numba.njit(**_OPTIONS)(function))


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """A part of compiled functions: cached as part of its callers."""
    compile_: Any = numba.njit(inline="never", **_OPTIONS)
    return cast(Callable[P, R], compile_(function))


@cache
def _warn_once() -> None:
    _log.warning(
        "compiled code cannot be cached: no folder is writable. Every process compiles for some seconds when it "
        "starts; set NUMBA_CACHE_DIR to a writable folder"
    )
