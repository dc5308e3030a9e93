"""A new run from another's weights: which checkpoint, what is recorded, and where the model is built from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from safetensors.numpy import load_file

from headrace.schemas.errors import UsageError
from headrace.trainer.beginning import Beginning
from headrace.trainer.checkpoint import OPTIMIZER_FILE, folder_of, publish
from headrace.trainer.checkpoint_load import load, whole_steps
from headrace.trainer.checkpoint_store import open_store
from headrace.trainer.ends import RunEnd
from headrace.trainer.ledger_read import Ledger
from headrace.trainer.lineage import Lineage, WeightsOf
from headrace.trainer.other_run import choose, model_of
from tests.unit.trainer.checkpoint_samples import checkpoint
from tests.unit.trainer.little import World, run_ranks


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A run `main` that has ended, with its last checkpoints whole."""
    made = World(tmp_path_factory.mktemp("runs"))
    made.fill([3] * 6)
    run_ranks(made, 2, made.plan(every_steps=1))
    return made


def test_the_new_run_says_in_every_checkpoint_whose_weights_it_began_with(world: World) -> None:
    newest = whole_steps(world.store())[-1]
    plan = world.plan(run="second", model="run:main")
    assert run_ranks(world, 2, plan).why == "end"
    store = world.store("second")
    for step in whole_steps(store):
        assert Ledger.open(store, step).state().lineage == Lineage(weights_of=WeightsOf("main", newest))
    run_ranks(world, 1, plan.model_copy(update={"train": plan.train.model_copy(update={"passes": 2})}))
    assert Ledger.open(store).state().lineage.weights_of == WeightsOf("main", newest)


def test_a_step_is_named_with_an_at_and_what_is_not_there_is_answered_with_what_is(world: World) -> None:
    steps = whole_steps(world.store())
    assert choose(world.plan(run="b", model=f"run:main@{steps[0]}")) == WeightsOf("main", steps[0])
    listed = ", ".join(map(str, steps))
    with pytest.raises(UsageError, match=rf"no such checkpoint with weights. Those there are: {listed}"):
        choose(world.plan(run="b", model="run:main@999"))
    with pytest.raises(UsageError, match="Those there are: none"):
        choose(world.plan(run="b", model="run:mian"))
    with pytest.raises(UsageError, match=r"is this run itself: set another `train\.run`"):
        choose(world.plan(model="run:main"))
    with pytest.raises(UsageError, match=r"write run:NAME or run:NAME@STEP"):
        choose(world.plan(run="b", model="run:main@last"))


def test_the_model_comes_from_the_other_run_once_and_then_from_the_runs_own_checkpoint(world: World) -> None:
    step = whole_steps(world.store())[0]
    plan = world.plan(run="third", model=f"run:main@{step}")
    new = Beginning({}, {}, RunEnd(), None, lineage=Lineage(weights_of=WeightsOf("main", step)))
    with model_of(plan, world.store("third"), new) as folder:
        assert Path(str(folder)) == world.folder / "checkpoints" / "orders" / "main" / folder_of(step)
    run_ranks(world, 1, plan)
    own = load(world.store("third"), whole_steps(world.store("third"))[-1])
    resumed = replace(new, step=own.step, checkpoint=own)
    with model_of(plan, world.store("third"), resumed) as folder:
        assert Path(str(folder)) == world.folder / "checkpoints" / "orders" / "third" / folder_of(own.step)


def test_a_checkpoint_in_an_object_store_is_copied_here_without_its_optimizer(tmp_path: Path) -> None:
    plan = World(tmp_path).plan(run="second", model="run:main")
    plan = plan.model_copy(
        update={"checkpoint": plan.checkpoint.model_copy(update={"root": f"memory://{tmp_path.name}"})}
    )
    publish(open_store(plan.checkpoint.root, "orders", "main"), checkpoint(10, None))
    new = Beginning({}, {}, RunEnd(), None, lineage=Lineage(weights_of=choose(plan)))
    with model_of(plan, open_store(plan.checkpoint.root, "orders", "second"), new) as folder:
        assert load_file(Path(str(folder)) / "model.safetensors")["layer.weight"].tolist() == [[10.0] * 3] * 2
        assert (Path(str(folder)) / "config.json").read_bytes() == b'{"step": 10}'
        assert not (Path(str(folder)) / OPTIMIZER_FILE).exists()
    assert not Path(str(folder)).exists()
    MemoryFileSystem.store.clear()


def test_any_other_model_is_passed_on(world: World) -> None:
    new = Beginning({}, {}, RunEnd(), None)
    for model in ("/models/ernie", {"hidden_size": 8}):
        with model_of(world.plan(model=model), world.store(), new) as named:
            assert named == model
