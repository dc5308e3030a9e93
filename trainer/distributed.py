"""Ranks as Paddle sees them: joining, and sums over all ranks. NCCL on GPUs, Gloo on CPUs.

One step ends in one pass of sums. After its last micro-batch each rank puts the gradient of *every* trainable
parameter, zeros where it has none, into flat buckets in the order of the parameters, and the buckets are summed one
after the other; the step's own sums ride at the end of the last one. The buckets depend on the parameters alone, so all
ranks make the same calls whatever data they had, also none. A sum is the same bits on every rank: its parts are
computed once and handed out.

**What a failure does.** A rank whose forward or backward pass raises still takes part, with zeros and its mark in the
failure vector (one number per rank): it raises its own error after the sum, the others raise RankLost with its number,
and nobody has stepped. Gloo breaks off after 30 s of waiting, which cannot be changed, names no rank, and also strikes
a rank that is merely slow; so on CPUs the ranks first meet on the control plane (`meet`), which waits longer and names
who is gone or silent. A rank that goes after that is an error within a second, or after Gloo's 30 s if it froze. NCCL
sees neither: there the supervising parent, who sees the child end, ends the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle

from headrace.schemas.errors import RankLost

Tensor = Any

DEFAULT_BUCKET_BYTES = 25 * 2**20
_FLOAT_BYTES = 4


Meet = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Ranks:
    """Who takes part. `meet` returns when every rank has called it, or raises RankLost; it is called before sums."""

    rank: int = 0
    world: int = 1
    meet: Meet | None = None


def join(environment: Mapping[str, str] = os.environ, meet: Meet | None = None) -> Ranks:
    """Choose the device and connect to the other ranks, as `PADDLE_TRAINER_*` say. Once per process.

    The device is the GPU of `FLAGS_selected_gpus` where this Paddle has CUDA and sees one, else the CPU. GPUs need no
    `meet`: it would make the device wait for the host.
    """
    on_gpu = paddle.is_compiled_with_cuda() and paddle.device.cuda.device_count() > 0
    rank, world = int(environment.get("PADDLE_TRAINER_ID", "0")), int(environment.get("PADDLE_TRAINERS_NUM", "1"))
    ranks = Ranks(rank, world, None if on_gpu or world == 1 else meet)
    paddle.set_device(f"gpu:{environment.get('FLAGS_selected_gpus', '0')}" if on_gpu else "cpu")
    if ranks.world > 1:
        if not on_gpu:
            # Left to itself Paddle forks a key-value server for the CPU.
            os.environ["PADDLE_DISTRI_BACKEND"] = "gloo"
        try:
            paddle.distributed.init_parallel_env()
        except RuntimeError as error:
            raise RankLost(
                f"rank {ranks.rank} of {ranks.world} did not meet the others: {_first_line(error)}"
            ) from error
    return ranks


def buckets(sizes: Sequence[int], bucket_bytes: int = DEFAULT_BUCKET_BYTES) -> list[range]:
    """Cut a sequence of element counts into runs of at most `bucket_bytes`; a larger one has a run of its own."""
    runs: list[range] = []
    start, filled = 0, 0
    for position, size in enumerate(sizes):
        if position > start and (filled + size) * _FLOAT_BYTES > bucket_bytes:
            runs.append(range(start, position))
            start, filled = position, 0
        filled += size
    if start < len(sizes):
        runs.append(range(start, len(sizes)))
    return runs


def reduce_step(
    ranks: Ranks, parameters: Sequence[Tensor], sums: Tensor, bucket_bytes: int = DEFAULT_BUCKET_BYTES
) -> tuple[list[Tensor], np.ndarray]:
    """Sum every parameter's `.grad` and the float32 vector `sums` over all ranks.

    Returns the gradients in the order of `parameters`, and the sums (which waits for the device).
    Cost: two copies of the gradients and one sum of their size over the network.
    """
    gradients = [_gradient(parameter) for parameter in parameters]
    if ranks.world == 1:
        return gradients, np.array(sums.numpy())
    _meet(ranks)
    reduced: list[Tensor] = []
    runs = buckets([gradient.size for gradient in gradients], bucket_bytes)
    with paddle.no_grad():
        for number, run in enumerate(runs):
            shapes = [gradients[position].shape for position in run]
            parts = [gradients[position].reshape([-1]) for position in run]
            parts += [sums] if number == len(runs) - 1 else []
            flat = paddle.concat(parts)
            _all_reduce(flat, ranks)
            summed = paddle.split(flat, [part.size for part in parts])
            # In the last bucket one part more than parameters: the sums.
            reduced += [part.reshape(shape) for part, shape in zip(summed, shapes, strict=False)]
    return reduced, np.array(summed[-1].numpy())


def reduce_sums(ranks: Ranks, sums: np.ndarray) -> np.ndarray:
    """Sum a small float64 vector over all ranks."""
    if ranks.world == 1:
        return sums
    _meet(ranks)
    tensor = paddle.to_tensor(sums.astype(np.float64))
    _all_reduce(tensor, ranks)
    return np.array(tensor.numpy())


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


def _gradient(parameter: Tensor) -> Tensor:
    """float32 gradient, zeros where the micro-batches of this rank did not use the parameter."""
    gradient = parameter.grad
    if gradient is None:
        return paddle.zeros(parameter.shape, dtype="float32")
    return gradient.astype("float32")


def _meet(ranks: Ranks) -> None:
    if ranks.meet is not None:
        ranks.meet()


def _all_reduce(tensor: Tensor, ranks: Ranks) -> None:
    try:
        paddle.distributed.all_reduce(tensor)
    except (RuntimeError, OSError, SystemError) as error:
        raise RankLost(
            f"rank {ranks.rank}: a sum over {ranks.world} ranks broke off, another rank is gone or frozen "
            f"({_first_line(error)}): restart from the last checkpoint"
        ) from error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
