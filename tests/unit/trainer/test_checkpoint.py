"""Checkpoints: what is published is read back, damage is found and stepped around, and a run stays one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fsspec.implementations.local import LocalFileSystem
from safetensors.numpy import load as load_safetensors

from headrace.schemas.cursor import Cursor
from headrace.schemas.errors import CheckpointDamaged, ResumeRefused, Stop, StoreAway
from headrace.schemas.record import Origin
from headrace.schemas.tokens import TokensMeta
from headrace.trainer.checkpoint import (
    EVALUATED_FILE,
    HISTORY_FILE,
    KEPT_FILES,
    MANIFEST_FILE,
    OPTIMIZER_FILE,
    STATE_FILE,
    WEIGHTS_FILE,
    folder_of,
    prune,
    publish,
    published_steps,
)
from headrace.trainer.checkpoint_load import load, load_latest
from headrace.trainer.checkpoint_state import TrainerState
from headrace.trainer.checkpoint_store import LocalStore, ObjectStore, Store, open_store
from headrace.trainer.checkpoint_tensors import Tensors, read_tensors, write_tensors
from headrace.trainer.ends import RunEnd
from headrace.trainer.ledger import OUTCOMES_FILE, STEPS_FILE
from headrace.trainer.ledger_read import Ledger
from headrace.trainer.lineage import MEND_FILE
from tests.unit.trainer.checkpoint_samples import assert_same, checkpoint, memory_store, noted


@pytest.fixture(params=["local", "object", "folders"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A disk, an object store, and a store that has real folders (as HDFS has)."""
    if request.param == "folders":
        return ObjectStore(LocalFileSystem(), str(tmp_path / "orders" / "main"), "folders:orders/main")
    return open_store(str(tmp_path), "orders", "main") if request.param == "local" else memory_store()


def publish_line(store: Store, *steps: int) -> None:
    for parent, step in zip([None, *steps], steps, strict=False):
        ledger = noted({step: {0: [[Origin("orders", 0, step)]]}}, 1)
        publish(store, checkpoint(step, parent, ledger))


def overwrite(store: Store, step: int, name: str, data: bytes) -> None:
    store.write(folder_of(step), name, [data])


def test_round_trip_keeps_every_value(store: Store) -> None:
    publish_line(store, 7)
    assert_same(load(store, 7), checkpoint(7, None))
    assert_same(load_latest(store, mend=False), checkpoint(7, None))


def test_state_round_trip_with_everything_set() -> None:
    state = TrainerState(
        step=3,
        cursors={2: Cursor.at(4), 0: Cursor(1, 2)},
        progress={"rows": 5, "ages": {"3": 1}},
        settings={"train.seed": 1},
        changes=({"name": "train.stop"},),
        starts={0: 1, 2: 4},
        end=RunEnd("end", text={0: 9}, lanes={1: 8}),
        meta=TokensMeta("f", 100, {"pad": 0}, {"orders": "id"}),
    )
    assert TrainerState.from_json(state.to_json(), "here") == state


def test_a_run_without_checkpoints_has_none(store: Store) -> None:
    assert load_latest(store, mend=True) is None
    with pytest.raises(Stop, match="no checkpoint"):
        load(store, 5)


def test_weights_are_a_file_that_safetensors_reads_with_the_metadata_that_paddlenlp_asks_for(tmp_path: Path) -> None:
    from safetensors import safe_open

    store = open_store(str(tmp_path), "orders", "main")
    publish_line(store, 7)
    path = tmp_path / "orders" / "main" / "step-0000000007" / WEIGHTS_FILE
    with safe_open(path, framework="np") as file:
        assert file.metadata() == {"format": "np"}
        np.testing.assert_array_equal(file.get_tensor("layer.weight"), np.full((2, 3), 7, np.float32))


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"])
def test_tensors_of_every_dtype_and_shape_round_trip(dtype: str) -> None:
    shapes = [(), (0, 3), (5,), (2, 3, 4)]
    arrays = {f"{dtype}{shape}": np.ones(shape, dtype) for shape in shapes}
    arrays["transposed"] = np.arange(6).reshape(2, 3).T.astype(dtype)
    data = b"".join(write_tensors(Tensors(arrays)))
    found = read_tensors(data, "here").arrays
    other = load_safetensors(data)
    for name, array in arrays.items():
        for got in (found[name], other[name]):
            assert got.dtype == array.dtype
            np.testing.assert_array_equal(got, array)


def test_bfloat16_travels_as_its_bits() -> None:
    bits = np.array([0x3F80, 0xBF80], np.uint16)
    tensors = Tensors({"w": bits, "counts": bits}, {"w": "BF16"})
    read = read_tensors(b"".join(write_tensors(tensors)), "here")
    np.testing.assert_array_equal(read.arrays["w"], bits)
    assert read.dtypes == {"w": "BF16"}


@pytest.mark.parametrize(
    "tensors", [Tensors({"w": np.zeros(2, np.float32)}, {"w": "BF16"}), Tensors({"w": np.array("x")})]
)
def test_a_tensor_of_another_type_than_declared_is_refused(tensors: Tensors) -> None:
    with pytest.raises(TypeError, match="'w'"):
        list(write_tensors(tensors))


@pytest.mark.parametrize("name", [WEIGHTS_FILE, OPTIMIZER_FILE, STATE_FILE, "config.json", STEPS_FILE, OUTCOMES_FILE])
def test_damaged_file_falls_back_to_the_parent_and_is_renamed_aside(store: Store, name: str) -> None:
    publish_line(store, 10, 20, 30)
    whole = store.read(folder_of(30), name)
    overwrite(store, 30, name, whole[:-1] + bytes([whole[-1] ^ 1]))
    assert_same(load_latest(store, mend=False), checkpoint(20, 10))
    assert folder_of(30) in store.folders()
    assert_same(load_latest(store, mend=True), checkpoint(20, 10))
    assert sorted(store.folders()) == [folder_of(10), folder_of(20), folder_of(30) + ".damaged"]
    publish(store, checkpoint(30, 20))
    assert_same(load_latest(store, mend=True), checkpoint(30, 20))


@pytest.mark.parametrize("manifest", [b"", b'{"version": 1, "st', b"[]", b'{"version": 1}'])
def test_damaged_manifest_falls_back_to_the_one_before(store: Store, manifest: bytes) -> None:
    publish_line(store, 10, 20)
    overwrite(store, 20, MANIFEST_FILE, manifest)
    assert_same(load_latest(store, mend=True), checkpoint(10, None))
    assert store.folders().count(folder_of(20)) == 0


def test_missing_file_is_damage(store: Store) -> None:
    publish_line(store, 10, 20)
    store.remove(folder_of(20), OPTIMIZER_FILE)
    with pytest.raises(CheckpointDamaged, match="missing"):
        load(store, 20)
    assert load(store, 20, with_optimizer=False).step == 20
    assert_same(load_latest(store, mend=True), checkpoint(10, None))


def test_the_same_step_damaged_twice_gets_two_names(store: Store) -> None:
    publish_line(store, 10, 20)
    for _ in range(2):
        overwrite(store, 20, WEIGHTS_FILE, b"")
        assert_same(load_latest(store, mend=True), checkpoint(10, None))
        publish(store, checkpoint(20, 10))
    aside = [folder for folder in store.folders() if "damaged" in folder]
    assert sorted(aside) == [f"{folder_of(20)}.damaged", f"{folder_of(20)}.damaged.2"]


def test_falling_back_follows_the_parents_and_cannot_fork_the_ledger(store: Store) -> None:
    """Two trainers raced in an object store: 20 and 21 both have the parent 10. 21 is the live one and is damaged."""
    publish_line(store, 10, 20)
    manifest = store.read(folder_of(20), MANIFEST_FILE)
    store.rename(folder_of(20), folder_of(19))
    store.write(folder_of(19), MANIFEST_FILE, [manifest.replace(b'"step": 20', b'"step": 19')])
    publish(store, checkpoint(25, 19))
    manifest = store.read(folder_of(25), MANIFEST_FILE)
    store.write(folder_of(25), MANIFEST_FILE, [manifest.replace(b'"parent": 19', b'"parent": 10')])
    overwrite(store, 25, WEIGHTS_FILE, b"")
    assert_same(load_latest(store, mend=True), checkpoint(10, None))
    publish(store, checkpoint(30, 10))
    assert [manifest.step for manifest in Ledger.open(store).chain] == [10, 30]


def test_a_store_that_is_away_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(str(tmp_path), "orders", "main")
    publish_line(store, 10, 20)

    def away(path: Path) -> bytes:
        raise TimeoutError("no answer")

    monkeypatch.setattr(Path, "read_bytes", away)
    with pytest.raises(StoreAway, match="no answer"):
        load_latest(store, mend=True)
    assert sorted(store.folders()) == [folder_of(10), folder_of(20)]


def test_a_short_read_is_read_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_line(store, 10)
    read = type(store).read
    short = {WEIGHTS_FILE}

    def once_short(self: Store, folder: str, name: str) -> bytes:
        data: bytes = read(self, folder, name)
        if name in short:
            short.remove(name)
            return data[:10]
        return data

    monkeypatch.setattr(type(store), "read", once_short)
    assert_same(load_latest(store, mend=True), checkpoint(10, None))


def test_checkpoints_of_a_newer_headrace_are_refused_and_left_alone(store: Store) -> None:
    publish_line(store, 10, 20)
    manifest = store.read(folder_of(20), MANIFEST_FILE)
    store.write(folder_of(20), MANIFEST_FILE, [manifest.replace(b'"version": 1', b'"version": 2')])
    with pytest.raises(ResumeRefused, match="update headrace"):
        load_latest(store, mend=True)
    assert folder_of(20) in store.folders()


def test_a_run_whose_checkpoints_are_all_damaged_never_begins_again_by_itself(store: Store) -> None:
    publish_line(store, 10)
    overwrite(store, 10, WEIGHTS_FILE, b"")
    for _ in range(3):
        with pytest.raises(CheckpointDamaged, match=r"train\.run"):
            load_latest(store, mend=True)


def test_a_run_whose_only_whole_checkpoints_are_pruned_never_begins_again_by_itself(store: Store) -> None:
    publish_line(store, 10, 20)
    prune(store, 1)
    overwrite(store, 20, WEIGHTS_FILE, b"")
    for _ in range(3):
        with pytest.raises(CheckpointDamaged, match=r"train\.run"):
            load_latest(store, mend=True)
    assert folder_of(10) in store.folders()


def test_a_second_trainer_is_stopped_when_it_publishes(store: Store) -> None:
    publish_line(store, 10, 20)
    for parent in (10, None):
        with pytest.raises(Stop, match="another trainer"):
            publish(store, checkpoint(25, parent))
    assert published_steps(store) == [10, 20]


def test_a_second_trainer_is_found_even_while_we_write(store: Store) -> None:
    publish_line(store, 10)

    class Raced(type(store)):  # type: ignore[misc]
        def __init__(self) -> None:
            self.__dict__.update(store.__dict__)
            self.raced = False

        def write(self, folder, name, chunks) -> None:  # type: ignore[no-untyped-def]
            super().write(folder, name, chunks)
            if name == STATE_FILE and not self.raced:
                self.raced = True
                publish(store, checkpoint(15, 10))

    with pytest.raises(Stop, match="another trainer"):
        publish(Raced(), checkpoint(20, 10))
    assert_same(load_latest(store, mend=True), checkpoint(15, 10))


def test_a_step_follows_its_parent(store: Store) -> None:
    publish_line(store, 10)
    with pytest.raises(ValueError, match="does not follow"):
        publish(store, checkpoint(10, 10))


@pytest.mark.parametrize("name", [MANIFEST_FILE, "pruned", "a/b"])
def test_extra_files_cannot_take_our_names(store: Store, name: str) -> None:
    from dataclasses import replace

    with pytest.raises(ValueError, match="extra file"):
        publish(store, replace(checkpoint(1, None), extra={name: b""}))


def test_prune_keeps_ledgers_and_the_newest_weights(store: Store) -> None:
    steps = [10, 20, 30, 40, 50]
    publish_line(store, *steps)
    before = Ledger.open(store).hash()
    prune(store, 2)
    prune(store, 2)
    for step in steps[:-2]:
        assert set(store.files(folder_of(step))) == KEPT_FILES - {MEND_FILE, EVALUATED_FILE, HISTORY_FILE}
        with pytest.raises(Stop, match="only its ledger is kept"):
            load(store, step)
    for step in steps[-2:]:
        assert WEIGHTS_FILE in store.files(folder_of(step))
    ledger = Ledger.open(store)
    assert ledger.hash() == before
    assert [found.checkpoint for found in ledger.find(Origin("orders", 0, 20))] == [20]


def test_what_is_kept_every_so_many_steps_stays_whole_for_good(store: Store) -> None:
    steps = [0, 10, 20, 25, 30, 40, 49, 51, 60, 70]
    publish_line(store, *steps)
    for _ in range(2):
        prune(store, 2, keep_every_steps=25)
    whole = [step for step in steps if WEIGHTS_FILE in store.files(folder_of(step))]
    assert whole == [0, 25, 51, 60, 70]


def test_the_spared_checkpoint_stays_until_another_is_spared(store: Store) -> None:
    publish_line(store, 10, 20, 30, 40, 50, 60)
    prune(store, 2, spared=20)
    with_weights = [step for step in published_steps(store) if WEIGHTS_FILE in store.files(folder_of(step))]
    assert with_weights == [20, 50, 60]
    prune(store, 2, spared=50, former=20)
    with_weights = [step for step in published_steps(store) if WEIGHTS_FILE in store.files(folder_of(step))]
    assert with_weights == [50, 60]


def test_local_files_are_synced_before_the_rename_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    store = open_store(str(tmp_path), "orders", "main")
    publish_line(store, 10)
    assert isinstance(store, LocalStore)
    events: list[str] = []
    sync, rename = os.fsync, Path.rename

    def note_sync(descriptor: int) -> None:
        events.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        sync(descriptor)

    def note_rename(self: Path, to: Path) -> Path:
        events.append("rename")
        return rename(self, to)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "rename", note_rename)
    publish(store, checkpoint(20, 10))
    final = folder_of(20)
    at = events.index("rename")
    assert store.files(final).keys() <= set(events[:at])
    assert events[at - 2 :] == [MANIFEST_FILE, f"{final}.unfinished", "rename", "main"]
