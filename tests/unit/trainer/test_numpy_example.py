"""examples/numpy_batches.py: killed and resumed, it trains every text once, and ends with the same weights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.unit.trainer.loops import LABELS, TOPIC, all_texts, example, lives, stream, topic


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    return topic(tmp_path_factory.mktemp("data"))


def test_killed_again_and_again_it_repeats_and_loses_nothing(address: str, tmp_path: Path) -> None:
    loop = example("numpy_batches")
    steps, trained = lives(lambda after: loop.train(stream(address), tmp_path / "whole.npz", after), every=10**6)
    assert trained == all_texts()
    assert steps > 3 * loop.SAVE_EVERY
    for every in (1 + loop.SAVE_EVERY, 2 * loop.SAVE_EVERY - 1):
        file = tmp_path / f"{every}.npz"
        found, trained = lives(lambda after, file=file: loop.train(stream(address), file, after), every)
        assert trained == all_texts()
        assert found == steps
        with np.load(file) as killed, np.load(tmp_path / "whole.npz") as whole:
            assert np.array_equal(killed["weights"], whole["weights"])


def test_as_people_run_it(address: str, tmp_path: Path) -> None:
    script = Path(__file__).parents[3] / "examples" / "numpy_batches.py"
    done = subprocess.run(
        [sys.executable, str(script), address, TOPIC, *LABELS],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" steps\n")
    assert (tmp_path / "numpy-model.npz").exists()
