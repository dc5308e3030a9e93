"""Agreement between ranks: everybody sees the same, a missing rank is named, strangers are turned away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from headrace.schemas.errors import RankLost
from headrace.trainer.agree import Line, Meeting, meet
from tests.services.ports import free_port


@contextmanager
def meeting_of(
    ranks: int, *, wait_s: float = 20.0, lines: tuple[str, ...] = ("steps",)
) -> Iterator[list[dict[str, Line]]]:
    port = free_port()

    def join(rank: int) -> dict[str, Line]:
        meeting = Meeting(rank, ranks, "127.0.0.1", port, b"key")
        return meet(meeting, lines, connect_s=20.0, wait_s=wait_s)

    with ThreadPoolExecutor(ranks) as pool:
        joined = list(pool.map(join, range(ranks)))
    try:
        yield joined
    finally:
        for rank in joined:
            for line in rank.values():
                line.close()


def on_all(joined: list[dict[str, Line]], call: Callable[[int, dict[str, Line]], object]) -> list[object]:
    with ThreadPoolExecutor(len(joined)) as pool:
        return list(pool.map(call, range(len(joined)), joined))


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_every_rank_sees_the_same_payloads_in_rank_order(ranks: int) -> None:
    with meeting_of(ranks) as joined:
        for turn in range(20):
            seen = on_all(
                joined, lambda rank, lines, turn=turn: lines["steps"].exchange_json({"rank": rank, "turn": turn})
            )
            expected = [{"rank": rank, "turn": turn} for rank in range(ranks)]
            assert seen == [expected] * ranks


def test_large_and_empty_payloads_arrive_whole() -> None:
    payloads = [b"", b"\n[]\n" * 500_000, b"\x00"]
    with meeting_of(3) as joined:
        assert on_all(joined, lambda rank, lines: lines["steps"].exchange(payloads[rank])) == [payloads] * 3
        assert on_all(joined, lambda rank, lines: lines["steps"].gather(payloads[rank])) == [payloads, [], []]


def test_lines_do_not_wait_for_each_other() -> None:
    with meeting_of(2, lines=("steps", "checkpoints")) as joined, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(joined[0]["steps"].exchange, b"0")  # rank 1 has not come to this one
        results = on_all(joined, lambda rank, lines: lines["checkpoints"].exchange(b"saved"))
        assert results == [[b"saved", b"saved"]] * 2
        assert not waiting.done()
        joined[1]["steps"].exchange(b"1")
        assert waiting.result() == [b"0", b"1"]


def test_a_rank_that_is_gone_is_named() -> None:
    with meeting_of(3) as joined:
        joined[2]["steps"].close()
        joined[1]["steps"].gather(b"")
        with pytest.raises(RankLost, match=r"rank 2 is gone \(steps\)"):
            joined[0]["steps"].exchange(b"")


def test_a_rank_that_is_silent_is_named_and_never_waited_for_without_bound() -> None:
    with meeting_of(3, wait_s=0.2) as joined:
        joined[1]["steps"].gather(b"")
        with pytest.raises(RankLost, match=r"rank 2 did not answer within 0\.2 s"):
            joined[0]["steps"].exchange(b"")


def test_rank_zero_gone_is_said_by_the_others() -> None:
    with meeting_of(2) as joined:
        joined[0]["steps"].close()
        with pytest.raises(RankLost, match="rank 0 is gone"):
            joined[1]["steps"].exchange(b"")


def test_a_rank_that_never_starts_is_named() -> None:
    meeting = Meeting(0, 3, "127.0.0.1", free_port(), b"key")
    turned = iter(range(0, 1000, 3))
    with pytest.raises(RankLost, match="rank 1, 2 did not start"):
        meet(meeting, ["steps"], connect_s=5.0, wait_s=1.0, clock=lambda: float(next(turned)))


def test_strangers_are_turned_away() -> None:
    port = free_port()
    with ThreadPoolExecutor(3) as pool:
        root = pool.submit(meet, Meeting(0, 2, "127.0.0.1", port, b"key"), ["steps"], connect_s=20.0, wait_s=5.0)
        stranger = pool.submit(meet, Meeting(1, 2, "127.0.0.1", port, b"guess"), ["steps"], connect_s=20.0, wait_s=5.0)
        stranger_line = stranger.result()["steps"]
        with pytest.raises(RankLost):
            stranger_line.exchange(b"let me in")
        member = pool.submit(meet, Meeting(1, 2, "127.0.0.1", port, b"key"), ["steps"], connect_s=20.0, wait_s=5.0)
        lines = [root.result(), member.result()]
        assert on_all(lines, lambda rank, line: line["steps"].exchange(b"x")) == [[b"x", b"x"]] * 2
        for line in lines:
            line["steps"].close()
