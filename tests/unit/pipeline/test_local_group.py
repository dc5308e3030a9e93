"""Members of a local group share partitions out by file locks alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.local_group import Membership


def settle(members: Sequence[Membership], partitions: int) -> None:
    """Let each member look three times: to join, to give up, to take. More must not be needed."""
    for _ in range(3):
        for member in members:
            member.rebalance(partitions)


def held(members: Sequence[Membership]) -> list[int]:
    return sorted(partition for member in members for partition in member.held)


def test_a_lone_member_holds_everything(tmp_path: Path) -> None:
    member = Membership(tmp_path, "g", "t")
    assert member.held == frozenset()
    assert member.rebalance(4)
    assert member.held == {0, 1, 2, 3}
    assert not member.rebalance(4)


def test_a_member_takes_partitions_that_are_new(tmp_path: Path) -> None:
    member = Membership(tmp_path, "g", "t")
    member.rebalance(2)
    assert member.rebalance(3)
    assert member.held == {0, 1, 2}


def test_members_of_other_groups_and_topics_are_not_counted(tmp_path: Path) -> None:
    members = [Membership(tmp_path, group, topic) for group, topic in (("g", "t"), ("g", "u"), ("h", "t"))]
    settle(members, 2)
    assert [member.held for member in members] == [{0, 1}] * 3


def test_group_and_topic_names_may_be_paths_and_long(tmp_path: Path) -> None:
    member = Membership(tmp_path, "../../escape/" + "x" * 300, "文本/t")
    assert member.rebalance(1)
    assert [path.name for path in tmp_path.iterdir()] == ["groups"]


def test_the_partitions_of_a_dead_process_are_free(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from headrace.pipeline.local_group import Membership\n"
        "member = Membership(Path(sys.argv[1]), 'g', 't'); member.rebalance(3); print('held', flush=True); input()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    assert other.stdout.readline() == b"held\n"
    member = Membership(tmp_path, "g", "t")
    assert not member.rebalance(3)
    other.kill()
    other.communicate()
    assert member.rebalance(3)
    assert member.held == {0, 1, 2}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["join", "leave", "look", "grow"]), max_size=25), st.randoms(use_true_random=False))
def test_whoever_comes_and_goes_all_partitions_end_with_one_member_each(steps: list[str], chance: object) -> None:
    """Disjoint at every moment; complete and even once every member has looked three times."""
    with TemporaryDirectory() as folder:
        partitions = 3
        members: list[Membership] = []
        for step in steps:
            if step == "join":
                members.append(Membership(Path(folder), "g", "t"))
            elif step == "grow":
                partitions += 1
            elif members:
                member = chance.choice(members)  # type: ignore[attr-defined]
                if step == "leave":
                    member.leave()
                    members.remove(member)
                else:
                    member.rebalance(partitions)
            assert len(set(held(members))) == len(held(members))
        if members:
            settle(members, partitions)
            assert held(members) == list(range(partitions))
            sizes = [len(member.held) for member in members]
            assert max(sizes) - min(sizes) <= 1
        for member in members:
            member.leave()
