"""Stores: the folder ROOT/NAME/RUN of one run, on a local disk or in any store that fsspec reaches.

There are two, because they can promise different things. On a disk a folder is written under another name, synced and
renamed: it appears whole. An object store has no rename, but an object appears whole: there the manifest, written last,
makes the folder a checkpoint. `checkpoint.publish` works in the order that is right for both.

A file that is not there is a `FileNotFoundError` (perhaps damage: the caller judges). Every other failure of the store
is `StoreAway`: a store that is slow or refuses must never pass for a damaged checkpoint.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import fsspec

from headrace.schemas.errors import StoreAway

Chunk = bytes | memoryview


class Store(Protocol):
    """What publishing, loading and reading ledgers need of the folder of a run."""

    address: str
    renames: bool  # whether `rename` is one atomic operation

    def folders(self) -> list[str]:
        """Names of the folders of the run; empty where there is none yet."""

    def files(self, folder: str) -> dict[str, int]:
        """Names and sizes of the files of a folder; empty where there is no such folder."""

    def read(self, folder: str, name: str) -> bytes: ...

    def read_each(self, folders: Sequence[str], name: str) -> list[bytes | None]:
        """The file `name` of many folders, read at the same time where the store can; None where there is none."""

    def write(self, folder: str, name: str, chunks: Iterable[Chunk]) -> None:
        """Write one file; it is durable when this returns."""

    def seal(self, folder: str) -> None:
        """Make the names in a folder durable."""

    def rename(self, folder: str, to: str) -> None: ...

    def remove(self, folder: str, name: str) -> None: ...

    def remove_folder(self, folder: str) -> None:
        """Remove a folder with all its files, those that make it a checkpoint first; nothing where there is none."""


def open_store(root: str, name: str, run: str) -> Store:
    """The folder of a run under `root`: a path, or any address that fsspec knows (`s3://…`, `hdfs://…`)."""
    system, path = fsspec.core.url_to_fs(root)
    folder = f"{path.rstrip('/')}/{name}/{run}"
    protocols = system.protocol if isinstance(system.protocol, tuple) else (system.protocol,)
    return LocalStore(Path(folder)) if "file" in protocols else ObjectStore(system, folder, f"{root}/{name}/{run}")


@contextmanager
def _asking(what: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreAway(f"{what}: {error}: check `checkpoint.root` (reachable, writable, space left)") from error


class LocalStore:
    """A folder on a disk of this machine."""

    renames = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self.address = str(path)

    def folders(self) -> list[str]:
        with _asking(f"cannot list {self.path}"):
            return [entry.name for entry in os.scandir(self.path) if entry.is_dir()] if self.path.is_dir() else []

    def files(self, folder: str) -> dict[str, int]:
        path = self.path / folder
        with _asking(f"cannot list {path}"):
            if not path.is_dir():
                return {}
            return {entry.name: entry.stat().st_size for entry in os.scandir(path) if entry.is_file()}

    def read(self, folder: str, name: str) -> bytes:
        path = self.path / folder / name
        with _asking(f"cannot read {path}"):
            return path.read_bytes()

    def read_each(self, folders: Sequence[str], name: str) -> list[bytes | None]:
        return [self.read(folder, name) if name in self.files(folder) else None for folder in folders]

    def write(self, folder: str, name: str, chunks: Iterable[Chunk]) -> None:
        path = self.path / folder / name
        with _asking(f"cannot write {path}"):
            _make_folders(path.parent)
            with path.open("wb") as file:
                for chunk in chunks:
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())

    def seal(self, folder: str) -> None:
        sync_folder(self.path / folder)

    def rename(self, folder: str, to: str) -> None:
        with _asking(f"cannot rename {self.path / folder}"):
            (self.path / folder).rename(self.path / to)
            sync_folder(self.path)

    def remove(self, folder: str, name: str) -> None:
        with _asking(f"cannot remove {self.path / folder / name}"):
            (self.path / folder / name).unlink(missing_ok=True)

    def remove_folder(self, folder: str) -> None:
        path = self.path / folder
        with _asking(f"cannot remove {path}"):
            if path.is_dir():
                (path / "manifest.json").unlink(missing_ok=True)
                shutil.rmtree(path)


def _make_folders(path: Path) -> None:
    """Make a folder and its parents, each of them durable."""
    if not path.is_dir():
        _make_folders(path.parent)
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    with _asking(f"cannot sync {path}"):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class ObjectStore:
    """A folder in a store behind fsspec: objects appear whole, and nothing is renamed atomically."""

    renames = False

    def __init__(self, system: Any, path: str, address: str) -> None:
        self._system = system
        self._path = path
        self.address = address

    def folders(self) -> list[str]:
        return [name for name, entry in self._list(self._path) if entry["type"] == "directory"]

    def files(self, folder: str) -> dict[str, int]:
        entries = self._list(f"{self._path}/{folder}")
        return {name: int(entry["size"]) for name, entry in entries if entry["type"] == "file"}

    def read(self, folder: str, name: str) -> bytes:
        path = self._file(folder, name)
        with _asking(f"cannot read {path}"), self._system.open(path, "rb") as file:
            data: bytes = file.read()
            return data

    def read_each(self, folders: Sequence[str], name: str) -> list[bytes | None]:
        if not folders:
            return []
        paths = [self._file(folder, name) for folder in folders]
        with _asking(f"cannot read {name} of {len(paths)} checkpoints in {self.address}"):
            found = self._system.cat(paths, on_error="return")
        return [self._found(found.get(path)) for path in paths]

    @staticmethod
    def _found(result: Any) -> bytes | None:
        if isinstance(result, Exception) and not isinstance(result, FileNotFoundError):
            raise StoreAway(f"cannot read from the checkpoint store: {result}: try again") from result
        return result if isinstance(result, bytes) else None

    def write(self, folder: str, name: str, chunks: Iterable[Chunk]) -> None:
        path = self._file(folder, name)
        with _asking(f"cannot write {path}"), self._create(path) as file:
            for chunk in chunks:
                file.write(chunk)

    def _file(self, folder: str, name: str) -> str:
        """Address of a file; without a folder that of a file of the run itself."""
        return f"{self._path}/{folder}/{name}" if folder else f"{self._path}/{name}"

    def _create(self, path: str) -> Any:
        try:
            return self._system.open(path, "wb")
        except FileNotFoundError:  # a store that has real folders
            self._system.makedirs(path.rpartition("/")[0], exist_ok=True)
            return self._system.open(path, "wb")

    def seal(self, folder: str) -> None:
        """Objects are durable once written."""

    def rename(self, folder: str, to: str) -> None:
        """In most stores a copy and a removal: only for what is damaged, where nothing is lost by half of it."""
        with _asking(f"cannot rename {self._path}/{folder}"):
            self._system.mv(f"{self._path}/{folder}", f"{self._path}/{to}", recursive=True)

    def remove(self, folder: str, name: str) -> None:
        path = f"{self._path}/{folder}/{name}"
        with _asking(f"cannot remove {path}"):
            self._system.rm_file(path)

    def remove_folder(self, folder: str) -> None:
        files = self.files(folder)
        if "manifest.json" in files:
            self.remove(folder, "manifest.json")
        with _asking(f"cannot remove {self._path}/{folder}"):
            if self._system.exists(f"{self._path}/{folder}"):
                self._system.rm(f"{self._path}/{folder}", recursive=True)

    def _list(self, path: str) -> list[tuple[str, dict[str, Any]]]:
        """Entries of a folder by name; listings that fsspec keeps in memory would hide another trainer's writes."""
        with _asking(f"cannot list {path}"):
            self._system.invalidate_cache()
            try:
                entries = self._system.ls(path, detail=True)
            except FileNotFoundError:
                return []
        named = [(str(entry["name"]).rstrip("/"), entry) for entry in entries]
        here = path.strip("/")  # some stores list the folder itself
        return [(name.rpartition("/")[2], entry) for name, entry in named if name.strip("/") != here]
