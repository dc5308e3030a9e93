"""What the ranks of test_ranks_*.py do: programs that run in real processes, which meet over Gloo on 127.0.0.1.

`launch` starts one process per rank, which runs programs one after the other (importing Paddle costs seconds), and
returns what each rank found. A program is a function of (ranks, folder) that returns arrays; they are written to
folder/rank-R.npz as PROGRAM/NAME. Run as `python -m tests.integration.rank_programs FOLDER PROGRAM...`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from headrace.trainer.device import rank_environment, trainer_environment
from headrace.trainer.stage import AGREE_VARIABLE, KEY_VARIABLE
from tests.integration.task_programs import every_task

ROOT = Path(__file__).parents[2]
ALLOWED_S = 180

Found = dict[str, np.ndarray]


def launch(
    programs: Sequence[str],
    folder: Path,
    ranks: int,
    codes: Sequence[int | None] = (),
    module: str = "tests.integration.rank_programs",
) -> list[Found]:
    """Run `programs` of `module` on `ranks` processes.

    `codes` are their exit codes, all 0 unless said; None ends one by a kill.
    """
    *endpoints, control = [f"127.0.0.1:{port}" for port in free_ports(ranks + 1)]
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-W", "ignore", "-m", module, str(folder), *programs]
    children = []
    for rank in range(ranks):
        environment = os.environ | rank_environment(ranks) | trainer_environment(rank, endpoints)
        environment |= {"PYTHONPATH": f"{ROOT}/src{os.pathsep}{ROOT}", AGREE_VARIABLE: control, KEY_VARIABLE: "a key"}
        with (folder / f"rank-{rank}.log").open("wb") as log:
            children.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log))
    expected = list(codes or [0] * ranks)
    try:
        found = [
            None if code is None else child.wait(ALLOWED_S) for child, code in zip(children, expected, strict=True)
        ]
    finally:
        for child in children:
            child.kill()
            child.wait()
    logs = "\n".join((folder / f"rank-{rank}.log").read_text()[-3000:] for rank in range(ranks))
    assert found == expected, f"exit codes {found}:\n{logs}"
    return [read(folder / f"rank-{rank}.npz") for rank in range(ranks) if (folder / f"rank-{rank}.npz").exists()]


def free_ports(count: int) -> list[int]:
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports


def read(path: Path) -> Found:
    with np.load(path) as stored:
        return dict(stored)


def share(batches: Sequence[Any], ranks: Any, first: int) -> Sequence[Any]:
    """Of two ranks the first takes the `first` leading batches and the second the rest; one rank takes all."""
    if ranks.world == 1:
        return batches
    return batches[:first] if ranks.rank == 0 else batches[first:]


def gradients(ranks: Any, folder: Path) -> Found:
    """The gradient of the same micro-batches, shared out unevenly, and of one batch that holds all their rows.

    With fresh moments and no clipping the first moment after one step is the gradient times a constant.
    """
    from tests.unit.trainer.paddle import tiny

    found: Found = {}
    for task, make in ((tiny.CLASSIFICATION, tiny.classification_batch), (tiny.MASKED_LM, tiny.masked_lm_batch)):
        batches = [make(number, rows=number + 1) for number in range(6)]
        count = tiny.total(batches)
        splits: dict[str, Sequence[Any]] = {
            "uneven": share(batches, ranks, 4),
            "one-empty": share(batches, ranks, 6),
            "one-big-batch": share([tiny.one_batch(batches)], ranks, 1),
        }
        for name, mine in splits.items():
            learner = tiny.learner(tiny.settings(task), ranks)
            result = learner.step(mine, count, 1e-3)
            key = f"{task['type']}/{name}"
            found[f"{key}/gradient"] = first_moments(learner)
            found[f"{key}/score"] = np.array([result.score.loss, result.score.correct, result.score.count])
            found[f"{key}/by_class"] = counted(result.score)
            found[f"{key}/hash"] = np.array(learner.weight_hash())
    return found


def counted(score: Any) -> np.ndarray:
    """[n, 4]: class, right, given, own."""
    return np.array([(number, *counts) for number, counts in score.by_class.items()], np.int64).reshape(-1, 4)


def first_moments(learner: Any) -> np.ndarray:
    arrays = learner.state().optimizer
    return np.concatenate([arrays[key].reshape(-1) for key in sorted(arrays) if key.endswith("/moment1")])


def partly_used(ranks: Any, folder: Path) -> Found:
    """A parameter that only some micro-batches use, and on one rank not the last one."""
    from tests.unit.trainer.paddle import tiny, two_branches

    batches = [two_branches.batch(number, branch=number == 1) for number in range(4)]
    found: Found = {}
    for name, first in (("used-by-rank-0", 2), ("used-by-rank-1", 1)):
        learner = two_branches.learner(ranks)
        learner.step(share(batches, ranks, first), tiny.total(batches), 1e-2)
        found[f"{name}/hash"] = np.array(learner.weight_hash())
        found[f"{name}/gradient"] = first_moments(learner)
    return found


def five_steps(ranks: Any, folder: Path) -> Found:
    """Two learners in one process train five clipped steps with dropout; an unequal, an empty share among them."""
    from tests.unit.trainer.paddle import tiny

    found: Found = {}
    for repeat in ("once", "again"):
        learner = tiny.learner(tiny.settings(dropout=0.1, clip_norm=0.1), ranks)
        hashes, losses = [learner.weight_hash()], []
        for step in range(5):
            batches = [tiny.classification_batch(10 * step + number) for number in range(4)]
            result = learner.step(share(batches, ranks, step), tiny.total(batches), 1e-2)
            hashes.append(learner.weight_hash())
            losses.append([result.score.mean_loss, result.grad_norm])
        found[f"{repeat}/hashes"] = np.array(hashes)
        found[f"{repeat}/losses"] = np.array(losses)
        found |= {f"{repeat}/weights/{name}": array for name, array in learner.state().weights.items()}
    return found


def four_steps(ranks: Any, folder: Path) -> Found:
    return trained(ranks, range(4), None)


def two_steps(ranks: Any, folder: Path) -> Found:
    return trained(ranks, range(2), None)


def two_more_steps(ranks: Any, folder: Path) -> Found:
    """Load what `two_steps` left in `first` beside this folder, in a process that built something else before."""
    import paddle

    paddle.nn.Sequential(paddle.nn.Linear(3, 3), paddle.nn.Embedding(3, 3), paddle.nn.LayerNorm(3))
    return trained(ranks, range(2, 4), folder.parent / "first" / "rank-0.npz")


def trained(ranks: Any, steps: range, start: Path | None) -> Found:
    from headrace.trainer.learner import LearnerState
    from tests.unit.trainer.paddle import tiny

    learner = tiny.learner(tiny.settings(dropout=0.1), ranks)
    if start is not None:
        stored = under(read(start), "two_steps/")
        learner.load(LearnerState(under(stored, "weights/"), under(stored, "optimizer/")))
    for step in steps:
        batches = [tiny.classification_batch(10 * step + number) for number in range(4)]
        learner.step(share(batches, ranks, 3), tiny.total(batches), 1e-2)
    state = learner.state()
    weights = {f"weights/{name}": array for name, array in state.weights.items()}
    return {**weights, **{f"optimizer/{name}": array for name, array in state.optimizer.items()}}


def under(arrays: Mapping[str, np.ndarray], prefix: str) -> Found:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def failures(ranks: Any, folder: Path) -> Found:
    """What goes wrong on one rank is an error on both, changes nothing, and leaves them in step."""
    from headrace.schemas.errors import LossNotFinite, RankLost
    from tests.unit.trainer.paddle import tiny, two_branches

    learner = two_branches.learner(ranks)
    good = [two_branches.batch(number, branch=True) for number in range(4)]
    learner.step(share(good, ranks, 2), tiny.total(good), 1e-2)
    hashes = [learner.weight_hash()]
    messages, blamed = [], []
    for bad in (two_branches.not_a_number(9), two_branches.unusable(9)):
        batches = [*good[:3], bad]
        try:
            learner.step(share(batches, ranks, 2), tiny.total(batches), 1e-2)
        except (LossNotFinite, RankLost, ValueError) as error:
            messages.append(f"{type(error).__name__}: {error}")
            blamed.append(list(getattr(error, "batches", ())))
        hashes.append(learner.weight_hash())
    try:
        learner.evaluate(share([*good, two_branches.unusable(9)], ranks, 2))
    except (RankLost, ValueError) as error:
        messages.append(f"{type(error).__name__}: {error}")
    learner.step(share(good, ranks, 2), tiny.total(good), 1e-2)
    hashes.append(learner.weight_hash())
    return {"messages": np.array(messages), "blamed": np.array(blamed[0]), "hashes": np.array(hashes)}


def half_whole(ranks: Any, folder: Path) -> Found:
    return trained_in_half(ranks, range(6), None)


def half_begun(ranks: Any, folder: Path) -> Found:
    return trained_in_half(ranks, range(3), None)


def half_resumed(ranks: Any, folder: Path) -> Found:
    """Load what `half_begun` left in `first` beside this folder, in a process that built something else before."""
    import paddle

    paddle.nn.Linear(3, 3)
    return trained_in_half(ranks, range(3, 6), folder.parent / "first" / "rank-0.npz")


def trained_in_half(ranks: Any, steps: range, start: Path | None) -> Found:
    """Accumulated steps under a schedule, with weights in half precision; each from a state in files.

    The fourth micro-batch of step 1 overflows on its way at any but a low scale: on the second rank, of two. Step 4 has
    a spike there, which is skipped; its gradient does not fit into fp16 at any scale.
    """
    from headrace.trainer.config import OptimizerConfig
    from headrace.trainer.learner import LearnerState
    from headrace.trainer.precision import Precision
    from headrace.trainer.reach import Reach
    from headrace.trainer.schedule import Bounds, learning_rate
    from tests.unit.trainer.paddle import tiny, two_branches

    found: Found = {}
    schedule = OptimizerConfig(learning_rate=1e-2, schedule="cosine", warmup_steps=2)
    for stored, scaled in (("bfloat16", False), ("float16", True)):
        settings = {"on_bad_loss": "skip", "spike_factor": 5.0, "spike_steps": 2}
        learner = two_branches.learner(ranks, Precision(scaled=scaled, stored=stored), clip_norm=2.0, **settings)
        if start is not None:
            saved = under(read(start), f"half_begun/{stored}/")
            learner.load(LearnerState(under(saved, "weights/"), under(saved, "optimizer/")))
        losses, scales, skipped = [], [], []
        for step in steps:
            batches = [two_branches.batch(10 * step + number, branch=True) for number in range(4)]
            if step == 1 and scaled:
                batches[3] = two_branches.overflowing(13)
            if step == 4:
                high = batches[3].arrays | {"rows": batches[3].arrays["rows"] * 50}
                batches[3] = replace(batches[3], arrays=high)
            rate = learning_rate(Reach(step), schedule, Bounds(steps=6))
            result = learner.step(share(batches, ranks, 2), tiny.total(batches), rate)
            losses.append([result.score.loss, result.grad_norm])
            scales.append(learner.state().optimizer.get("loss_scale", np.ones(1))[0])
            skipped.append(-1 if result.skipped is None else len(result.skipped.batches))
        state = learner.state()
        found[f"{stored}/losses"], found[f"{stored}/scales"] = np.array(losses), np.array(scales)
        found[f"{stored}/skipped"], found[f"{stored}/hash"] = np.array(skipped), np.array(learner.weight_hash())
        found |= {f"{stored}/weights/{name}": array for name, array in state.weights.items()}
        found |= {f"{stored}/optimizer/{name}": array for name, array in state.optimizer.items()}
    return found


def scored(ranks: Any, folder: Path) -> Found:
    """Evaluation with different numbers of batches per rank."""
    from tests.unit.trainer.paddle import tiny

    learner = tiny.learner(tiny.settings(dropout=0.5), ranks)
    batches = [tiny.classification_batch(number, rows=number + 1) for number in range(5)]
    found: Found = {}
    for first in (5, 1):
        score = learner.evaluate(share(batches, ranks, first))
        found[f"{first}"] = np.array([score.loss, score.correct, score.count])
        found[f"{first}/by_class"] = counted(score)
    return found


def one_dies(ranks: Any, folder: Path) -> Found:
    """Rank 1 is gone before the reduction."""
    from headrace.schemas.errors import RankLost
    from tests.unit.trainer.paddle import tiny

    learner = tiny.learner(ranks=ranks)
    batches = [tiny.classification_batch(number) for number in range(2)]
    learner.step(share(batches, ranks, 1), tiny.total(batches), 1e-2)
    before = learner.weight_hash()
    if ranks.rank == 1:
        os._exit(9)
    try:
        learner.step(share(batches, ranks, 1), tiny.total(batches), 1e-2)
    except RankLost as error:
        return {"message": np.array(str(error)), "hashes": np.array([before, learner.weight_hash()])}
    raise AssertionError("the reduction succeeded without rank 1")


def one_freezes(ranks: Any, folder: Path) -> Found:
    """Rank 1 stands still before the reduction. The control plane's wait is short then, so that it is seen soon."""
    from headrace.schemas.errors import RankLost
    from headrace.trainer.agree import meet
    from headrace.trainer.rank import meeting_of
    from tests.unit.trainer.paddle import tiny

    line = meet(meeting_of(os.environ), ["sums"], connect_s=ALLOWED_S, wait_s=ALLOWED_S)["sums"]
    learner = tiny.learner(ranks=replace(ranks, meet=lambda: line.exchange(b"")))
    batches = [tiny.classification_batch(number) for number in range(2)]
    learner.step(share(batches, ranks, 1), tiny.total(batches), 1e-2)
    before = learner.weight_hash()
    if ranks.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    line._wait_s = 3.0
    try:
        learner.step(share(batches, ranks, 1), tiny.total(batches), 1e-2)
    except RankLost as error:
        return {"message": np.array(str(error)), "hashes": np.array([before, learner.weight_hash()])}
    raise AssertionError("the reduction succeeded without rank 1")


PROGRAMS: dict[str, Callable[[Any, Path], Found]] = {
    program.__name__: program
    for program in (
        gradients,
        partly_used,
        five_steps,
        four_steps,
        two_steps,
        two_more_steps,
        failures,
        half_whole,
        half_begun,
        half_resumed,
        scored,
        one_dies,
        one_freezes,
        every_task,
    )
}


def main(folder: Path, names: Sequence[str], programs: Mapping[str, Callable[[Any, Path], Found]] = PROGRAMS) -> None:
    from headrace.trainer import distributed

    ranks = distributed.join()
    found: Found = {}
    for name in names:
        found |= {f"{name}/{key}": array for key, array in programs[name](ranks, folder).items()}
    np.savez(folder / f"rank-{ranks.rank}.npz", **found)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
