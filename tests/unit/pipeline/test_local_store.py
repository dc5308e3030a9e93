"""The store's file: made once, refused where locks do not hold, written in turn, and its WAL kept short."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from headrace.pipeline.local import LocalBroker
from headrace.pipeline.local_store import FILE, Store, file_system, refuse_network_file_system
from headrace.schemas.errors import BrokerAway, UsageError
from tests.contract.waiting import until

MOUNTS = r"""
/dev/root / ext4 rw,relatime 0 0
server:/export /home nfs4 rw,vers=4.2 0 0
/dev/sdb1 /home/me/fast xfs rw 0 0
user@host: /mnt/my\040share fuse.sshfs rw 0 0
/dev/sdc1 /data ext4 rw 0 0
//nas/data /data cifs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/srv/topics", "ext4"),
        ("/homes", "ext4"),
        ("/home/you", "nfs4"),
        ("/home/me/fast/topics", "xfs"),
        ("/mnt/my share/topics", "fuse.sshfs"),
        ("/data/topics", "cifs"),  # mounted over another: the later counts
    ],
)
def test_the_file_system_of_a_path_is_that_of_the_nearest_mount(path: str, kind: str) -> None:
    assert file_system(Path(path), MOUNTS.strip()) == kind


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse.sshfs", "fuse.glusterfs"])
def test_a_network_file_system_is_refused_naming_the_setting(tmp_path: Path, kind: str) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/root / ext4 rw 0 0\nserver:/x {tmp_path.resolve()} {kind} rw 0 0\n")
    with pytest.raises(UsageError, match=rf"broker: .*{kind}.*kafka://"):
        refuse_network_file_system(tmp_path / "topics", mounts)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "overlay", "tmpfs", "btrfs", "fuseblk"])
def test_a_local_file_system_is_taken(tmp_path: Path, kind: str) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/root {tmp_path.resolve()} {kind} rw 0 0\n")
    refuse_network_file_system(tmp_path / "topics", mounts)


def test_a_system_without_a_mount_table_is_not_checked(tmp_path: Path) -> None:
    refuse_network_file_system(tmp_path, tmp_path / "missing")


def test_constructors_touch_nothing(tmp_path: Path) -> None:
    Store(tmp_path / "a")
    LocalBroker(tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_many_threads_that_open_a_new_store_get_one(tmp_path: Path) -> None:
    versions: list[int] = []

    def open_and_write(n: int) -> None:
        store = Store(tmp_path / "topics")
        with store.transaction() as connection:
            connection.execute("INSERT INTO writers VALUES (?, 1)", (str(n),))
        with store.snapshot() as connection:
            versions.extend(connection.execute("PRAGMA user_version").fetchone())
        store.close()

    threads = [threading.Thread(target=open_and_write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert versions == [1] * 8
    with Store(tmp_path / "topics").snapshot() as connection:
        assert connection.execute("SELECT count(*) FROM writers").fetchone() == (8,)


def test_what_a_process_killed_while_making_the_store_left_is_no_hindrance(tmp_path: Path) -> None:
    for left in ("topics.new", "topics.new-wal", "topics.new-shm"):
        (tmp_path / left).write_bytes(b"half")
    LocalBroker(tmp_path).create("t", 1)
    assert {path.name for path in tmp_path.iterdir()} >= {FILE}
    assert not list(tmp_path.glob("*.new*"))


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"something else entirely" * 100)
    with pytest.raises(UsageError, match=r"broker: .*topics\.db"):
        LocalBroker(tmp_path).describe("t")


def test_a_store_of_another_version_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / FILE)) as connection:
        connection.execute("PRAGMA user_version=99")
    with pytest.raises(UsageError, match="format 99"):
        LocalBroker(tmp_path).describe("t")


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="broker: "):
        LocalBroker(tmp_path / "file" / "topics").describe("t")


def test_a_full_disk_is_a_reason_to_try_again_and_writes_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.transaction() as connection:
        connection.execute("PRAGMA max_page_count=20")
    with pytest.raises(BrokerAway, match="nothing was written"), store.transaction() as connection:
        for n in range(100):
            connection.execute("INSERT INTO messages VALUES (?, 0, NULL, NULL, ?)", (n, bytes(4000)))
    with store.snapshot() as connection:
        assert connection.execute("SELECT count(*) FROM messages").fetchone() == (0,)


def test_a_transaction_whose_body_fails_is_rolled_back_and_gives_its_turn_on(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(KeyError), store.transaction() as connection:
        connection.execute("INSERT INTO writers VALUES ('w', 1)")
        raise KeyError
    with Store(tmp_path).transaction() as connection:
        assert connection.execute("SELECT count(*) FROM writers").fetchone() == (0,)


def test_a_writer_that_has_just_committed_cannot_overtake_one_that_waits(tmp_path: Path) -> None:
    first, second = Store(tmp_path), Store(tmp_path)
    order: list[str] = []

    def wait_and_write() -> None:
        with second.transaction():
            order.append("second")

    with first.transaction():
        waiting = threading.Thread(target=wait_and_write)
        waiting.start()
        until(lambda: _is_locked(tmp_path / "writers.next"), "the second writer waits")
        order.append("first")
    with first.transaction():
        order.append("first again")
    waiting.join()
    assert order == ["first", "second", "first again"]


def test_the_version_changes_with_commits_of_others_only(tmp_path: Path) -> None:
    mine, other = Store(tmp_path), Store(tmp_path)
    before = mine.version()
    with mine.transaction() as connection:
        connection.execute("INSERT INTO writers VALUES ('mine', 1)")
    assert mine.version() == before
    with other.transaction() as connection:
        connection.execute("INSERT INTO writers VALUES ('other', 1)")
    assert mine.version() != before


def test_the_wal_stays_short_behind_readers_that_poll_all_the_time(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path)
    broker.create("t", 1)
    reader = broker.reader("t", {0: 0})
    writer = broker.writer("w")
    written = 0
    for _ in range(60):
        writer.begin()
        for _ in range(20):
            writer.append("t", bytes(50_000), partition=0)
            written += 50_000
        writer.commit("", "", {})
        assert len(reader.poll(1000, 0).messages) == 20
    assert written == 60_000_000
    assert (tmp_path / f"{FILE}-wal").stat().st_size < 25_000_000


def _is_locked(path: Path) -> bool:
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
