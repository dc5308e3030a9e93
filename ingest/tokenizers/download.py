"""A vocabulary from PaddleNLP's store into PaddleNLP's cache on this machine, once.

Processes that want the same file at once take turns on a file lock, the one that PaddleNLP takes too; the first
fetches, the others find the file. What was received counts only when it has the announced length and is a vocabulary,
and it takes its name by one rename: no reader ever sees a part. A server that does not answer is asked
`len(WAITS_S)` times more.
"""

from __future__ import annotations

import http.client
import os
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.pipeline.local_store import locked
from headrace.schemas.errors import StoreAway, UsageError

#: Another store with the same paths below it.
MIRROR_VARIABLE = "HEADRACE_VOCABULARIES"
_STORE = "https://bj.bcebos.com"

#: Where PaddleNLP keeps what it has downloaded (`paddlenlp.utils.env`).
CACHE_VARIABLE = "PPNLP_HOME"

WAITS_S = (1.0, 3.0, 9.0)
_SILENT_S = 30  # longest wait for the next bytes
_WHOLE_S = 120  # longest wait for the whole file
_MAX_BYTES = 64 * 2**20
_CHUNK_BYTES = 2**16
_PASSING = {408, 425, 429, 500, 502, 503, 504}

Check = Callable[[bytes], None]


class _Failed(Exception):
    """This attempt brought nothing; the next may."""


def url(path: str) -> str:
    """The address of a file of the store, or of its mirror."""
    return f"{os.environ.get(MIRROR_VARIABLE, _STORE).rstrip('/')}/{path}"


def cache_folder() -> Path:
    """PaddleNLP's `MODEL_HOME`."""
    home = os.environ.get(CACHE_VARIABLE)
    return (Path(home) if home is not None else Path.home() / ".paddlenlp") / "models"


def fetched(name: str, path: str, check: Check, waits_s: Sequence[float] | None = None) -> Path:
    """The cached file of `name`, downloaded where this machine has none yet.

    `check` raises UsageError for content that is not a vocabulary. Raises StoreAway when the server cannot be reached,
    UsageError when it does not have the file or the cache cannot be written.
    """
    file = cache_folder() / name / path.rpartition("/")[2]
    if file.is_file():
        return file
    lock = cache_folder() / ".locks" / name / f"{file.name}.lock"
    try:
        for folder in (lock.parent, file.parent):
            folder.mkdir(parents=True, exist_ok=True)
        with locked(lock):
            if not file.is_file():
                content = _download(name, url(path), WAITS_S if waits_s is None else waits_s)
                check(content)
                _publish(file, content)
    except OSError as error:
        raise UsageError(
            f"tokenizer.path: the vocabulary of {name} cannot be kept in {file.parent}: {error}: set {CACHE_VARIABLE} "
            "to a folder that can be written"
        ) from error
    return file


def _download(name: str, address: str, waits_s: Sequence[float]) -> bytes:
    for wait_s in (*waits_s, None):
        try:
            return _get(address)
        except urllib.error.HTTPError as error:
            reason = f"the server says {error.code} {error.reason}"
            if error.code not in _PASSING:
                raise UsageError(_failure(name, address, reason)) from error
        except (OSError, http.client.HTTPException, _Failed) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        except ValueError as error:  # no address at all
            raise UsageError(_failure(name, address, str(error))) from error
        if wait_s is not None:
            time.sleep(wait_s)
    raise StoreAway(_failure(name, address, reason))


def _get(address: str) -> bytes:
    """One attempt. `read` of a response that ends early just ends, so lengths are compared here."""
    request = urllib.request.Request(address, headers={"User-Agent": "headrace", "Accept-Encoding": "identity"})
    ends_s = time.monotonic() + _WHOLE_S
    content = bytearray()
    with urllib.request.urlopen(request, timeout=_SILENT_S) as response:
        announced = response.headers.get("Content-Length")
        while chunk := response.read(_CHUNK_BYTES):
            content += chunk
            if len(content) > _MAX_BYTES:
                raise _Failed(f"more than {_MAX_BYTES} bytes: that is no vocabulary")
            if time.monotonic() > ends_s:
                raise _Failed(f"only {len(content)} bytes in {_WHOLE_S} s")
    if announced is not None and len(content) != int(announced):
        raise _Failed(f"{len(content)} of {announced} bytes were received")
    return bytes(content)


def _publish(file: Path, content: bytes) -> None:
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(descriptor, "wb") as part:
            part.write(content)
            part.flush()
            os.fsync(part.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _failure(name: str, address: str, reason: str) -> str:
    return (
        f"tokenizer.path: the vocabulary of {name} cannot be downloaded from {address}: {reason}. On a machine without "
        f"that network put the file into a folder, named vocab.txt, and set tokenizer.path to the folder; or set "
        f"{MIRROR_VARIABLE} to the address of a mirror"
    )
