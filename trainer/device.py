"""What a parent sets up for its ranks before they import Paddle: environment variables only. No Paddle here.

`rank_environment` is the same for every rank of a node, `trainer_environment` says who a rank is. Both must be in the
environment when the process starts: OpenMP, the C library's allocator and Paddle read them once.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

#: Allocations below this stay in the heap. glibc takes nothing above 32 MB on 64-bit machines.
_MMAP_THRESHOLD_BYTES = 32 * 2**20
#: Free memory that the heap may keep at its top before it gives it back.
_TRIM_THRESHOLD_BYTES = 2**30
_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"


def rank_environment(ranks: int, cpus: int | None = None, processor: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """Variables for each of `ranks` processes on this node.

    Threads: the node's CPUs are shared out, at least one each. More threads than CPUs cost a multiple.
    Allocator: Paddle's CPU allocator gives memory back at every operation, and glibc answers large requests by mapping
    and unmapping pages. High thresholds keep them in the heap.
    Matrix products: the MKL inside Paddle is of 2019 and gives AMD processors its slowest code, unless told the type of
    those that have AVX2. Steps are twice as fast with it.
    """
    available = cpus if cpus is not None else len(os.sched_getaffinity(0))
    threads = str(max(1, available // max(1, ranks)))
    environment = {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "MALLOC_MMAP_THRESHOLD_": str(_MMAP_THRESHOLD_BYTES),
        "MALLOC_TRIM_THRESHOLD_": str(_TRIM_THRESHOLD_BYTES),
    }
    described = processor.read_text() if processor.is_file() else ""
    if "AuthenticAMD" in described and " avx2 " in described:
        environment["MKL_DEBUG_CPU_TYPE"] = "5"
    return environment


def trainer_environment(rank: int, endpoints: Sequence[str], gpus: Sequence[str] = ()) -> dict[str, str]:
    """The variables that Paddle's launcher would set for `rank`; `endpoints` are `host:port`, one per rank.

    The ports must be free on their hosts. `gpus` are the visible device numbers of this node, none for the CPU; a
    node's ranks take them in turn.
    """
    host = endpoints[rank].rpartition(":")[0]
    local_rank = sum(endpoint.rpartition(":")[0] == host for endpoint in endpoints[:rank])
    environment = {
        "PADDLE_TRAINER_ID": str(rank),
        "PADDLE_TRAINERS_NUM": str(len(endpoints)),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        "PADDLE_CURRENT_ENDPOINT": endpoints[rank],
        "PADDLE_MASTER": endpoints[0],
        "PADDLE_RANK_IN_NODE": str(local_rank),
    }
    if gpus:
        environment["FLAGS_selected_gpus"] = gpus[local_rank % len(gpus)]
    return environment


def loopback_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """For ranks that are all on this machine: Gloo over the loopback, unless the user chose an interface.

    Left alone, Gloo binds to the address of the machine's own name, and not every container can resolve that.
    """
    loopback = next((name for _, name in socket.if_nameindex() if name in {"lo", "lo0"}), None)
    if loopback is None or _GLOO_INTERFACE in environment:
        return {}
    return {_GLOO_INTERFACE: loopback}


def visible_gpus(
    environment: Mapping[str, str] = os.environ, devices: Path = Path("/proc/driver/nvidia/gpus")
) -> tuple[str, ...]:
    """Numbers of the GPUs that ranks may use, without a driver call: `CUDA_VISIBLE_DEVICES`, else all there are.

    Ranks see the devices by position, so the numbers are 0, 1, ... whatever the variable holds.
    """
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        names = [name for name in chosen.split(",") if name.strip() and name.strip() != "-1"]
    else:
        names = [entry.name for entry in devices.iterdir()] if devices.is_dir() else []
    return tuple(str(position) for position in range(len(names)))
