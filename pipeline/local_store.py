"""The SQLite file behind local topics: making it, opening it, and the queue of its writers.

A `Store` is one connection, opened at first use. Reads run in short snapshots that fetch everything and end, because
an open one keeps the WAL from being reset. Writers queue on two file locks around BEGIN IMMEDIATE .. COMMIT: SQLite's
own way of waiting is to sleep and try again, and small writers starve in it behind a bulk one. Whoever waits for
`writers.lock` holds `writers.next`, so a writer that has just committed cannot overtake it.

The kernel frees a file lock when its process dies. A process that is stopped inside a commit holds up all writers until
it goes on or is killed.

Cost: opening about 1 ms; a snapshot about 20 µs; a write transaction one fsync of the WAL.
"""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

from headrace.schemas.errors import BrokerAway, UsageError

FILE: Final = "topics.db"
FORMAT_VERSION: Final = 1
#: `messages.id` is slot << OFFSET_BITS | offset: one B-tree, every partition a run of it, read and trimmed by range.
OFFSET_BITS: Final = 40

BUSY_S: Final = 60.0  # SQLite's own locks are held for moments only; so long means that another program holds them
TICK_S: Final = 0.005  # how often a waiting reader looks whether anything was committed

SCHEMA: Final = """
CREATE TABLE topics (
    topic INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    id TEXT NOT NULL,
    max_message_bytes INTEGER NOT NULL,
    retention_ms INTEGER
);
CREATE TABLE partitions (
    slot INTEGER PRIMARY KEY,
    topic INTEGER NOT NULL REFERENCES topics,
    partition INTEGER NOT NULL,
    first INTEGER NOT NULL DEFAULT 0,   -- the first offset that retention has left
    first_ms INTEGER,                   -- its timestamp; NULL while the partition is empty
    next INTEGER NOT NULL DEFAULT 0,    -- the offset of the next message
    last_ms INTEGER NOT NULL DEFAULT 0, -- the last timestamp given out; timestamps of a partition never fall
    UNIQUE (topic, partition)
);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY,             -- slot << 40 | offset
    timestamp_ms INTEGER NOT NULL,
    key BLOB,
    headers BLOB,                       -- JSON; NULL when there are none
    value BLOB NOT NULL
);
CREATE TABLE positions (
    consumer_group TEXT NOT NULL,
    slot INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    metadata TEXT NOT NULL,
    version INTEGER NOT NULL,           -- counts commits: compare-and-swap goes by it
    PRIMARY KEY (consumer_group, slot)
) WITHOUT ROWID;
CREATE TABLE writers (
    name TEXT PRIMARY KEY,
    epoch INTEGER NOT NULL              -- counts writers opened under this name: the newest may commit
) WITHOUT ROWID;
"""

#: File systems whose locks or shared memory do not hold between machines. `fuse.*` is refused as well.
NETWORK_FILE_SYSTEMS: Final = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "fuse", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "smb3", "smbfs"}
)


class Store:
    """One connection to the store in `folder`. May be used by several threads, one at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._connection: sqlite3.Connection | None = None
        self._mutex = threading.RLock()

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """One consistent view for a few reads. Fetch all rows inside."""
        with self._mutex, self._failures():
            connection = self._open()
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A write transaction, in the writers' queue; rolled back when the body raises."""
        with self._mutex, self._failures():
            connection = self._open()
            with self._turn():
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise

    def version(self) -> int:
        """A number that changes when another connection commits. Ask before the read that is to be repeated."""
        with self._mutex, self._failures():
            return int(self._open().execute("PRAGMA data_version").fetchone()[0])

    def changed(self, version: int, deadline_s: float) -> bool:
        """Wait until the version is another one; False when `deadline_s` (of `time.monotonic`) came first."""
        while (left_s := deadline_s - time.monotonic()) > 0:
            time.sleep(min(TICK_S, left_s))
            if self.version() != version:
                return True
        return False

    def close(self) -> None:
        with self._mutex:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            refuse_network_file_system(self.folder)
            path = self.folder / FILE
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                if not path.exists():
                    self._make(path)
            except OSError as error:
                raise UsageError(
                    f"broker: local:{self.folder} cannot be made ({error}): name another folder"
                ) from error
            self._connection = _connect(path)
        return self._connection

    def _make(self, path: Path) -> None:
        """Build the file beside its place and rename it, so that nobody meets half a store."""
        with self._turn():
            if path.exists():
                return
            fresh = path.with_suffix(".new")
            for left in self.folder.glob(f"{fresh.name}*"):  # by a process that was killed here
                left.unlink()
            with closing(sqlite3.connect(fresh)) as connection:
                connection.executescript(
                    f"PRAGMA journal_mode=WAL; BEGIN; {SCHEMA} COMMIT; PRAGMA user_version={FORMAT_VERSION};"
                )
            fresh.replace(path)
            folder = os.open(self.folder, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait until it is this writer's turn, in about the order of asking."""
        with ExitStack() as held:
            with locked(self.folder / "writers.next"):
                held.enter_context(locked(self.folder / "writers.lock"))
            yield

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise BrokerAway(
                f"the local store {self.folder / FILE} failed ({error}), nothing was written: free the disk or end the "
                "program that holds the file, then try again"
            ) from error
        except sqlite3.DatabaseError as error:
            raise UsageError(
                f"broker: {self.folder / FILE} is damaged or no store ({error}): name another folder"
            ) from error


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version != FORMAT_VERSION:
        connection.close()
        raise UsageError(
            f"broker: {path} has format {version}, this headrace reads {FORMAT_VERSION}: update headrace, "
            "or name another folder"
        )
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA wal_autocheckpoint=4000")  # pages, 16 MB: bulk commits copy fewer pages twice
    connection.execute("PRAGMA journal_size_limit=67108864")  # a WAL that one bulk commit made long is cut again
    return connection


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the file lock of `path`, waiting for it as long as it takes."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def refuse_network_file_system(folder: Path, mounts: Path = Path("/proc/self/mounts")) -> None:
    """Raise UsageError where SQLite's WAL and our locks do not hold. Systems without `/proc` are not checked."""
    if not mounts.exists():
        return
    kind = file_system(folder.resolve(), mounts.read_text(errors="surrogateescape"))
    if kind in NETWORK_FILE_SYSTEMS or kind.startswith("fuse."):
        raise UsageError(
            f"broker: local:{folder} lies on {kind}, where file locks do not hold between machines: "
            "name a folder on a local disk, or use kafka://host:9092"
        )


def file_system(path: Path, mounts: str) -> str:
    """The file system type of `path` by the table `mounts`; of two on one mount point the later counts."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        _, point, fs_type, *_ = line.split(" ")
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), point)  # a space is written \040
        if path.is_relative_to(point) and len(point) >= best:
            best, kind = len(point), fs_type
    return kind
