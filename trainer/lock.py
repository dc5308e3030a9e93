"""One trainer per run: a lock on the folder of the run.

On a disk it is `flock`, which the kernel gives back when the process ends, however it ends: a SIGKILL leaves nothing
that blocks. Hold it in the process that publishes (rank 0). Python's files are not inherited by spawned children, so a
child that outlives us does not hold it on.

An object store has no lock. There, two trainers are found by the check of the parent in `checkpoint.publish`: the one
that publishes second stops.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
from types import TracebackType
from typing import Self

from headrace.schemas.errors import Stop, StoreAway
from headrace.trainer.checkpoint_store import LocalStore, Store

LOCK_FILE = "trainer.lock"
_log = logging.getLogger(__name__)


def this_process() -> str:
    """How people find this process."""
    return f"pid {os.getpid()} on {socket.gethostname()}"


class RunLock:
    """Held from `acquire` to `release`, or as a context manager."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock, or raise Stop naming the trainer that has it."""
        if not isinstance(self._store, LocalStore):
            _log.info("%s is no local folder: two trainers are told apart when they publish", self._store.address)
            return
        path = self._store.path / LOCK_FILE
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreAway(f"cannot open {path}: {error}: check `checkpoint.root`") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _holder(descriptor)
            os.close(descriptor)
            raise Stop(
                f"another trainer ({holder}) writes to the run in {self._store.address}: stop it, or set another "
                "`train.run`"
            ) from error
        except OSError as error:
            os.close(descriptor)
            if error.errno not in {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}:
                raise StoreAway(f"cannot lock {path}: {error}: check `checkpoint.root`") from error
            _log.warning("%s cannot be locked (%s): see that one trainer at a time writes to this run", path, error)
            return
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, this_process().encode(), 0)
        self._descriptor = descriptor

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def release(self) -> None:
        """Give the lock back; the file stays, since removing it would let two trainers lock two files."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _holder(descriptor: int) -> str:
    text = os.pread(descriptor, 1024, 0).decode(errors="replace")
    return text or "which has not written its name yet"
