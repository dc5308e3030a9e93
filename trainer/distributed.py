"""Ranks as Paddle sees them: joining, and sums over all ranks.

NCCL sums on GPUs, Gloo on CPUs, BKCL on XPUs, and whatever a custom device brings (Paddle calls it `xccl`; on Ascend it
is HCCL). Only Gloo was tried.

One step ends in one pass of sums (`reduce.Reducer`): the gradient of *every* trainable parameter, zeros where a rank
has none, in flat buckets, then the step's own sums. The buckets depend on the parameters alone, so all ranks make the
same calls whatever data they had, also none. A sum is the same bits on every rank: its parts are computed once and
handed out.

**What a failure does.** A rank whose forward or backward pass raises still takes part, with zeros and its mark in the
failure vector (one number per rank): it raises its own error after the sum, the others raise RankLost with its number,
and nobody has stepped. Gloo breaks off after 30 s of waiting, which cannot be changed, names no rank, and also strikes
a rank that is merely slow; so on CPUs the ranks first meet on the control plane (`meet`), which waits longer and names
who is gone or silent. A rank that goes after that is an error within a second, or after Gloo's 30 s if it froze. NCCL
sees neither: there the supervising parent, who sees the child end, ends the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle

from headrace.schemas.errors import RankLost

Tensor = Any

Meet = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Ranks:
    """Who takes part. `meet` returns when every rank has called it, or raises RankLost; it is called before sums."""

    rank: int = 0
    world: int = 1
    meet: Meet | None = None
    on_device: bool = False  # sums run beside the host, in a stream of the device


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum that has started. The tensor must not be touched before `wait`."""

    tensor: Tensor
    task: Any
    ranks: Ranks

    def wait(self) -> Tensor:
        """The tensor with the sum. Raises RankLost where it broke off."""
        with _naming(self.ranks):
            self.task.wait()
        return self.tensor


def join(environment: Mapping[str, str] = os.environ, meet: Meet | None = None) -> Ranks:
    """Choose the device and connect to the other ranks, as `PADDLE_TRAINER_*` say. Once per process.

    The device is the first kind that this Paddle has and that is there: GPU, XPU, a custom device (such as Ascend's
    NPU), CPU. Which one of them is in `FLAGS_selected_gpus`, `FLAGS_selected_npus` …; devices need no `meet`: it
    would make them wait for the host.
    """
    kind, backend = _kind()
    rank, world = int(environment.get("PADDLE_TRAINER_ID", "0")), int(environment.get("PADDLE_TRAINERS_NUM", "1"))
    on_device = kind != "cpu"
    ranks = Ranks(rank, world, None if on_device or world == 1 else meet, on_device)
    if on_device:
        variable = f"FLAGS_selected_{kind}s"
        number = environment.get(variable) or environment.get("PADDLE_RANK_IN_NODE", "0")
        os.environ[variable] = number
        paddle.set_device(f"{kind}:{number}")
    else:
        paddle.set_device("cpu")
    if ranks.world > 1:
        # Left to itself Paddle forks a key-value server for the CPU, and does not find custom devices.
        os.environ["PADDLE_DISTRI_BACKEND"] = backend
        try:
            paddle.distributed.init_parallel_env()
        except RuntimeError as error:
            raise RankLost(
                f"rank {ranks.rank} of {ranks.world} did not meet the others: {_first_line(error)}"
            ) from error
    return ranks


def _kind() -> tuple[str, str]:
    """Paddle's name of this process's kind of device, and of the library that sums on it."""
    if paddle.is_compiled_with_cuda() and paddle.device.cuda.device_count() > 0:
        return "gpu", "nccl"
    if paddle.is_compiled_with_xpu():
        return "xpu", "bkcl"
    for custom in paddle.device.get_all_custom_device_type():
        return str(custom), "xccl"
    return "cpu", "gloo"


def reduce_sums(ranks: Ranks, sums: np.ndarray) -> np.ndarray:
    """Sum a small float64 vector over all ranks."""
    if ranks.world == 1:
        return sums
    meet(ranks)
    return np.array(start_sum(paddle.to_tensor(sums.astype(np.float64)), ranks).wait().numpy())


def failure_vector(ranks: Ranks, failed: bool) -> np.ndarray:
    """Zeros, and a one at this rank's place if it failed: to be summed."""
    vector = np.zeros(ranks.world)
    vector[ranks.rank] = float(failed)
    return vector


def raise_failure(ranks: Ranks, failures: np.ndarray, error: BaseException | None) -> None:
    """After the sum: this rank's own error, or RankLost naming those that failed."""
    if error is not None:
        raise error
    failed = [str(rank) for rank in np.flatnonzero(failures)]
    if failed:
        raise RankLost(
            f"rank {', '.join(failed)} failed in this step: its own log has the reason; no weight has changed"
        )


def meet(ranks: Ranks) -> None:
    """Wait for every rank before a sum, where the sum itself would not wait long enough."""
    if ranks.meet is not None:
        ranks.meet()


def start_sum(tensor: Tensor, ranks: Ranks) -> Sum:
    """Start to sum `tensor` over all ranks, in place. Every rank starts the same sums in the same order."""
    with _naming(ranks):
        return Sum(tensor, paddle.distributed.all_reduce(tensor, sync_op=False), ranks)


def broadcast(tensor: Tensor, source: int, ranks: Ranks) -> Tensor:
    """Overwrite `tensor` with that of rank `source`."""
    with _naming(ranks):
        paddle.distributed.broadcast(tensor, source)
    return tensor


@contextmanager
def _naming(ranks: Ranks) -> Iterator[None]:
    """Turn what Paddle raises when a rank is gone into RankLost."""
    try:
        yield
    except (RuntimeError, OSError, SystemError) as error:
        raise RankLost(
            f"rank {ranks.rank}: a sum over {ranks.world} ranks broke off, another rank is gone or frozen "
            f"({_first_line(error)}): restart from the last checkpoint"
        ) from error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
