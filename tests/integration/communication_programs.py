"""Programs for test_communication.py: the same training with different ways of exchanging gradients and weights."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.integration.rank_programs import Found, main, read, share, under

#: Small, so that the little model has several.
BUCKET_MB = 0.004

STEPS = 16


def exchanges(ranks: Any, folder: Path) -> Found:
    """Clipped steps with dropout, an unequal and an empty share among them, in several ways."""
    found: Found = {}
    for name, communication in (
        ("plain", {"overlap": False}),
        ("overlap", {"overlap": True}),
        ("bf16", {"overlap": True, "compress": "bf16"}),
        ("local", {"local_steps": 8}),
        (
            "mixed",
            {"local_steps": 4, "average": "state", "groups": {"*embeddings*": 2, "*bias": 1}},
        ),
    ):
        found |= {f"{name}/{key}": value for key, value in _trained(ranks, communication).items()}
    found |= {f"sharded/{key}": value for key, value in _trained(ranks, {}, sharding="optimizer").items()}
    return found


def _trained(ranks: Any, communication: dict[str, Any], **changes: Any) -> Found:
    from tests.unit.trainer.paddle import tiny

    config = tiny.settings(
        dropout=0.1, clip_norm=0.1, communication={"bucket_mb": BUCKET_MB, **communication}, **changes
    )
    learner = tiny.learner(config, ranks)
    hashes, losses, traffic, together = [learner.weight_hash()], [], [], []
    for step in range(STEPS):
        batches = [tiny.classification_batch(10 * step + number) for number in range(4)]
        result = learner.step(share(batches, ranks, step), tiny.total(batches), 1e-2)
        hashes.append(learner.weight_hash())
        losses.append(result.score.mean_loss)
        together.append(learner.together)
        traffic.append([len(result.traffic.buckets), result.traffic.size_bytes, result.traffic.exposed_s])
    learner.collect()
    state = learner.state()
    return {
        "hashes": np.array([*hashes, learner.weight_hash()]),
        "losses": np.array(losses),
        "traffic": np.array(traffic),
        "together": np.array(together),
        "keys": np.array(sorted(state.optimizer)),
        **{f"optimizer/{name}": array for name, array in state.optimizer.items()},
    }


def resumed(ranks: Any, folder: Path) -> Found:
    """Local steps saved where the ranks are equal, and between; a sharded state.

    Each is trained on by the learner that saved and by one that loaded.
    """
    from tests.unit.trainer.paddle import tiny

    found: Found = {}
    for name, changes, steps in (
        ("equal", {"communication": {"local_steps": 4}}, 4),
        ("between", {"communication": {"local_steps": 4}}, 6),
        ("sharded", {"sharding": "optimizer"}, 3),
    ):
        config = tiny.settings(dropout=0.1, **changes)
        first, second = tiny.learner(config, ranks), tiny.learner(config, ranks)
        _train(first, ranks, range(steps))
        first.collect()
        second.load(_told_by_root(first.state(), ranks, folder / f"{name}.npz"))
        for learner, side in ((first, "went-on"), (second, "loaded")):
            _train(learner, ranks, range(steps, steps + 8))
            learner.collect()
            found[f"{name}/{side}"] = np.array(learner.weight_hash())
    return found


def _train(learner: Any, ranks: Any, steps: range) -> None:
    from tests.unit.trainer.paddle import tiny

    for step in steps:
        batches = [tiny.classification_batch(10 * step + number) for number in range(4)]
        learner.step(share(batches, ranks, 3), tiny.total(batches), 1e-2)


def _told_by_root(state: Any, ranks: Any, path: Path) -> Any:
    """The state of rank 0, as all ranks read it from a checkpoint."""
    import paddle

    from headrace.trainer.learner import LearnerState

    if ranks.rank == 0:
        np.savez(
            path,
            **{f"weights/{key}": value for key, value in state.weights.items()},
            **{f"optimizer/{key}": value for key, value in state.optimizer.items()},
        )
    if ranks.world > 1:
        paddle.distributed.barrier()
    stored = read(path)
    return LearnerState(under(stored, "weights/"), under(stored, "optimizer/"))


def partly_used(ranks: Any, folder: Path) -> Found:
    """Overlap where a parameter is unused by the last micro-batch of a rank, and where a pass fails or gives NaN."""
    from headrace.schemas.errors import LossNotFinite, RankLost
    from tests.unit.trainer.paddle import tiny, two_branches

    found: Found = {}
    good = [two_branches.batch(number, branch=number == 1) for number in range(4)]
    failing: Sequence[Any] = [*good[:3], two_branches.unusable(9)]
    for overlap in (False, True):
        communication = {"overlap": overlap, "bucket_mb": 1e-5}
        learner = two_branches.learner(ranks, communication=communication)
        hashes, messages = [], []
        for batches, first in (
            (good, 2),
            (good, 1),
            (failing, 2),
            ([*good, two_branches.not_a_number(9)], 2),
            (good, 4),
        ):
            try:
                learner.step(share(batches, ranks, first), tiny.total(batches), 1e-2)
            except (RankLost, LossNotFinite, ValueError) as error:
                messages.append(type(error).__name__)
            hashes.append(learner.weight_hash())
        found[f"{overlap}/hashes"] = np.array(hashes)
        found[f"{overlap}/messages"] = np.array(messages)
    return found


PROGRAMS: dict[str, Callable[[Any, Path], Found]] = {
    program.__name__: program for program in (exchanges, resumed, partly_used)
}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:], PROGRAMS)
