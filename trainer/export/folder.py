"""The folder that `headrace export` writes, and its `manifest.json`.

Everything is written into a folder beside the wanted one and renamed when it is whole, so a server never finds half a
model. The order:

1. refuse what is there already, before any work
2. the tokenizer's files and config.json, as the checkpoint has them, and the weights
3. for `static` and `onnx`: the graph, made from what was just written; the weights go, the graph holds them
4. manifest.json: what the model has seen, and the SHA-256 of every file
5. sync; with `force` what was there goes aside; rename
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headrace.schemas.errors import UsageError
from headrace.trainer.checkpoint import WEIGHTS_FILE
from headrace.trainer.checkpoint_state import FileSum
from headrace.trainer.checkpoint_store import sync_folder
from headrace.trainer.checkpoint_tensors import write_tensors
from headrace.trainer.config import ClassificationTask
from headrace.trainer.export.seen import seen
from headrace.trainer.export.source import Source, tokenizer_settings

Form = Literal["static", "onnx", "safetensors"]

MODEL = "model"  # the first part of the name of every file that holds the model
MANIFEST_FILE = "manifest.json"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be made, where, by which program."""

    form: Form
    out: Path
    force: bool
    writer: str  # "headrace 0.1.0"


def write(source: Source, order: Order) -> dict[str, Any]:
    """Make the folder; returns its manifest. Raises UsageError where something is in the way."""
    out = order.out.expanduser().absolute()
    refuse_occupied(out, force=order.force)  # 1
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(f".{out.name}.unfinished-{os.getpid()}")
    unfinished.mkdir()
    try:
        write_model(source, unfinished)  # 2
        if order.form != "safetensors":
            _trace(source, unfinished, order.form)  # 3
        manifest = _manifest(source, order, unfinished)
        (unfinished / MANIFEST_FILE).write_text(
            json.dumps(manifest, indent=1, ensure_ascii=False), encoding="utf-8"
        )  # 4
        for file in unfinished.iterdir():
            _sync(file)
        sync_folder(unfinished)
        _rename(unfinished, out)  # 5
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)  # is gone where all went well
    return manifest


def refuse_occupied(out: Path, *, force: bool) -> None:
    """Only a folder that was made here, or an empty one, is ever overwritten."""
    if not out.exists() and not out.is_symlink():
        return
    if not out.is_dir() or out.is_symlink():
        raise UsageError(f"--out: {out} is there and no folder: name another")
    if any(out.iterdir()) and (not force or read_manifest(out) is None):
        cure = (
            "name another, or add --force"
            if read_manifest(out) is not None
            else "it is no exported model: name another"
        )
        raise UsageError(f"--out: {out} is not empty: {cure}")


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of an exported folder; None for a folder of another kind."""
    try:
        found = json.loads((folder / MANIFEST_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or "form" not in found:  # a checkpoint's manifest has no form
        return None
    if found.get("version") != FORMAT_VERSION:
        raise UsageError(
            f"{folder} has format {found.get('version')}, this headrace reads {FORMAT_VERSION}: update headrace, or "
            "export the model again"
        )
    return found


def write_model(source: Source, folder: Path) -> None:
    """The checkpoint's configuration, tokenizer and weights: a folder for PaddleNLP's `from_pretrained`."""
    for name, data in source.checkpoint.extra.items():
        if Path(name).name != name:  # what a manifest says comes from outside
            raise UsageError(f"the checkpoint names a file {name!r}: it was not made by headrace")
        (folder / name).write_bytes(data)
    with (folder / WEIGHTS_FILE).open("wb") as file:
        for chunk in write_tensors(source.checkpoint.weights):
            file.write(chunk)


def _trace(source: Source, folder: Path, form: Form) -> None:
    from headrace.trainer import model
    from headrace.trainer.export import graph

    meta = source.checkpoint.state.meta
    if meta is None:
        raise UsageError(f"the checkpoint of step {source.checkpoint.step} has trained nothing yet: take a later one")
    built = model.build(source.task, str(folder), meta.vocab_size, meta.special_ids["pad"], seed=0)
    save = graph.save_onnx if form == "onnx" else graph.save_static
    save(built.network, source.task, folder / MODEL)
    (folder / WEIGHTS_FILE).unlink()


def _manifest(source: Source, order: Order, folder: Path) -> dict[str, Any]:
    state, task = source.checkpoint.state, source.task
    return {
        "version": FORMAT_VERSION,
        "form": order.form,
        "created_ms": int(time.time() * 1000),
        "writer": order.writer,
        "task": task.model_dump(mode="json"),
        "labels": list(task.labels) if isinstance(task, ClassificationTask) else [],
        "outputs": ["logits", "probabilities"] if isinstance(task, ClassificationTask) else ["logits"],
        "run": {"name": source.name, "run": source.run, "step": state.step, "checkpoints": source.store.address},
        "tokenizer": {
            "fingerprint": state.meta.fingerprint if state.meta is not None else None,
            "settings": tokenizer_settings(state.settings),
        },
        "seen": seen(source),
        "files": {name: _sum(folder / name) for name in sorted(file.name for file in folder.iterdir())},
    }


def _sum(path: Path) -> Mapping[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    found = FileSum(path.stat().st_size, digest)
    return {"size_bytes": found.size_bytes, "sha256": found.sha256}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _rename(unfinished: Path, out: Path) -> None:
    """A folder cannot be exchanged in one operation: for a moment there is none, never half of one."""
    aside = unfinished.with_name(f".{out.name}.replaced-{os.getpid()}")
    if out.exists():
        out.rename(aside)
    unfinished.rename(out)
    sync_folder(out.parent)
    shutil.rmtree(aside, ignore_errors=True)
