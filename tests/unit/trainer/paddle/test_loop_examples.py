"""examples/bare_loop.py and paddlenlp_trainer.py: killed and resumed, each trains every text once, in one order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paddle.utils import unique_name
from paddlenlp.trainer import TrainerCallback

from headrace import TokenStream
from headrace.trainer.model import build
from tests.unit.trainer.loops import LABELS, all_texts, example, lives, stream, topic
from tests.unit.trainer.made_up import VOCAB
from tests.unit.trainer.paddle.tiny import settings

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    return topic(tmp_path_factory.mktemp("data"))


@contextmanager
def process() -> Iterator[None]:
    """Paddle's optimizer states go by names that count what was built before: count from nothing, as a new process."""
    with unique_name.guard():
        yield


def weights(network: Any) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in network.state_dict().items()}


def test_a_bare_loop(address: str, tmp_path: Path) -> None:
    loop = example("bare_loop")

    def live(folder: Path) -> Callable[..., Any]:
        def train(after: Callable[[int, dict[str, Any]], None]) -> dict[str, np.ndarray]:
            with process():
                return weights(loop.train(stream(address, TokenStream), folder, after))

        return train

    whole, trained = lives(live(tmp_path / "whole"), every=10**6)
    assert trained == all_texts()
    again, trained = lives(live(tmp_path / "killed"), every=loop.SAVE_EVERY + 3)
    assert trained == all_texts()
    assert all(np.array_equal(again[name], whole[name]) for name in whole)


KILLED_FOR_GOOD = """
import os, signal, sys
sys.path.insert(0, os.environ["TREE"])
from headrace import TokenStream
from tests.unit.trainer.loops import example, stream
def kill(step, batch):
    if step == 17:
        os.kill(os.getpid(), signal.SIGKILL)
from pathlib import Path
example("bare_loop").train(stream(sys.argv[1], TokenStream), Path("killed"), kill)
"""


def test_a_bare_loop_whose_process_is_killed(address: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED_FOR_GOOD, address], cwd=tmp_path, env={**os.environ, "TREE": str(ROOT)},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    loop = example("bare_loop")
    steps: list[int] = []
    with process():
        resumed = loop.train(stream(address, TokenStream), tmp_path / "killed", lambda step, _: steps.append(step))
    assert steps[0] == loop.SAVE_EVERY + 1
    whole = loop.train(stream(address, TokenStream), tmp_path / "whole")
    assert all(np.array_equal(weights(resumed)[name], found) for name, found in weights(whole).items())


class AfterStep(TrainerCallback):
    """Tells of every step, with the batch that it took."""

    def __init__(self, tell: Callable[[int, dict[str, Any]], None]) -> None:
        self.tell = tell
        self.batch: dict[str, Any] = {}

    def on_load_data_end(self, args: Any, state: Any, control: Any, inputs: dict[str, Any], **_: Any) -> None:
        self.batch = {name: tensor.numpy() for name, tensor in inputs.items()}

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Logged after every step, before it is saved: the worst moment."""
        if self.batch:
            self.tell(state.global_step, self.batch)
            self.batch = {}


def test_paddlenlp_s_trainer(address: str, tmp_path: Path) -> None:
    loop = example("paddlenlp_trainer")
    config = settings({"type": "classification", "labels": LABELS})
    model = {**config.model, "max_position_embeddings": 64}

    def live(output: Path) -> Callable[..., Any]:
        def train(after: Callable[[int, dict[str, Any]], None]) -> dict[str, np.ndarray]:
            with process():
                network = build(config.task, model, VOCAB, 0, seed=3).network
            options = {"save_steps": 8, "logging_steps": 1, "learning_rate": 1e-3, "disable_tqdm": True}
            options |= {"max_steps": 500, "device": "cpu"}
            with process():
                loop.train(stream(address, TokenStream), network, output, (AfterStep(after),), **options)
            return weights(network)

        return train

    whole, trained = lives(live(tmp_path / "whole"), every=10**6)
    assert trained == all_texts()
    again, trained = lives(live(tmp_path / "killed"), every=13)
    assert trained == all_texts()
    assert all(np.allclose(again[name], whole[name], atol=1e-6) for name in whole)
    ended = loop.newest_checkpoint(tmp_path / "killed")
    live(tmp_path / "killed")(lambda step, batch: pytest.fail("the stream was at its end"))
    assert loop.newest_checkpoint(tmp_path / "killed") == ended
