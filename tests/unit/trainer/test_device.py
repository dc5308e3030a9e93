from __future__ import annotations

import socket
from pathlib import Path

import pytest

from headrace.trainer.device import loopback_environment, rank_environment, trainer_environment, visible_gpus


def test_ranks_share_the_cpus_and_keep_at_least_one_thread() -> None:
    assert rank_environment(2, cpus=8)["OMP_NUM_THREADS"] == "4"
    assert rank_environment(16, cpus=8)["OMP_NUM_THREADS"] == "1"


def test_large_allocations_stay_in_the_heap() -> None:
    environment = rank_environment(1, cpus=1)
    assert int(environment["MALLOC_MMAP_THRESHOLD_"]) == 2**25
    assert int(environment["MALLOC_TRIM_THRESHOLD_"]) > 2**25


@pytest.mark.parametrize(
    ("vendor", "flags", "told"),
    [
        ("AuthenticAMD", "avx avx2 bmi", True),
        ("AuthenticAMD", "sse avx", False),
        ("GenuineIntel", "avx avx2 bmi", False),
    ],
)
def test_mkl_is_told_of_avx2_on_amd_only(tmp_path: Path, vendor: str, flags: str, told: bool) -> None:
    processor = tmp_path / "cpuinfo"
    processor.write_text(f"vendor_id : {vendor}\nflags : fpu {flags} nx\n")
    assert ("MKL_DEBUG_CPU_TYPE" in rank_environment(1, 1, processor)) is told
    assert "MKL_DEBUG_CPU_TYPE" not in rank_environment(1, 1, tmp_path / "none")


def test_each_rank_has_its_own_endpoint_and_the_first_is_the_meeting_place() -> None:
    environment = trainer_environment(1, ["a:1", "a:2"])
    assert environment["PADDLE_TRAINER_ID"] == "1"
    assert environment["PADDLE_TRAINERS_NUM"] == "2"
    assert environment["PADDLE_CURRENT_ENDPOINT"] == "a:2"
    assert environment["PADDLE_MASTER"] == "a:1"
    assert "FLAGS_selected_gpus" not in environment


def test_gpus_are_counted_from_zero_on_every_node() -> None:
    endpoints = ["a:1", "a:2", "b:1", "b:2"]
    chosen = [trainer_environment(rank, endpoints, ("0", "1"))["FLAGS_selected_gpus"] for rank in range(4)]
    assert chosen == ["0", "1", "0", "1"]


def test_visible_gpus_follow_the_variable_else_the_driver(tmp_path: Path) -> None:
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    assert visible_gpus({}, tmp_path) == ("0", "1")
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "3"}, tmp_path) == ("0",)
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == ()
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "-1"}, tmp_path) == ()
    assert visible_gpus({}, tmp_path / "none") == ()


def test_ranks_of_one_machine_meet_on_the_loopback_even_where_its_name_cannot_be_resolved() -> None:
    loopback = loopback_environment({})["GLOO_SOCKET_IFNAME"]
    assert loopback in {name for _, name in socket.if_nameindex()}
    assert loopback_environment({"GLOO_SOCKET_IFNAME": "eth1"}) == {}
