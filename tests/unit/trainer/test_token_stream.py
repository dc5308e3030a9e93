"""TokenStream without Paddle: a training loop of one's own, its state, and its ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.pipeline.local import LocalBroker
from headrace.schemas.cursor import Cursor
from headrace.schemas.errors import ResumeRefused, TopicError, UsageError
from headrace.trainer.token_stream import TokenStreamBase
from tests.unit.trainer.made_up import publish, token_batches

TOPIC = "demo.tokens"
LANES = 3
BATCHES = {0: 14, 1: 0, 2: 6}


@pytest.fixture
def address(tmp_path: Path) -> str:
    broker = LocalBroker(tmp_path)
    broker.create(TOPIC, LANES)
    publish(broker, TOPIC, {lane: token_batches(lane, count) for lane, count in BATCHES.items()})
    broker.close()
    return f"local:{tmp_path}"


def stream(address: str, **more: Any) -> TokenStreamBase:
    settings = {"window_tokens": 600, "seed": 7, "stop": "end", "flush_s": 0.01, **more}
    return TokenStreamBase(address, TOPIC, 128, **settings)


def comparable(batches: Iterator[dict[str, Any]]) -> list[tuple[int, list[Any]]]:
    return [(batch["lane"], batch["input_ids"].tolist()) for batch in batches]


def test_it_yields_numpy_micro_batches_with_their_cursor(address: str) -> None:
    batches = list(stream(address))
    assert sum(int(batch["attention_mask"].any(axis=1).sum()) for batch in batches) == 5 * 20
    for batch in batches:
        assert {"input_ids", "token_type_ids", "attention_mask", "lane", "cursor", "state"} == set(batch)
        assert batch["input_ids"].dtype == np.int64
        assert batch["input_ids"].size <= 128
        assert isinstance(batch["cursor"], Cursor)


def test_labels_become_class_numbers_and_rows_without_one_are_left_out(address: str) -> None:
    assert {int(label) for batch in stream(address, labels=("b", "a")) for label in batch["labels"]} == {1}
    assert list(stream(address, labels=("x", "y"))) == []


def test_resume_at_every_micro_batch_gives_the_same_rest(address: str) -> None:
    whole = list(stream(address))
    states = [json.loads(json.dumps(batch["state"])) for batch in whole]
    for number, state in enumerate(states, start=1):
        resumed = stream(address)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert comparable(iter(resumed)) == comparable(iter(whole[number:]))


def test_resumed_after_every_micro_batch_again_and_again(address: str) -> None:
    whole = comparable(iter(stream(address)))
    state, found = None, []
    for _ in whole:
        resumed = stream(address)
        if state is not None:
            resumed.load_state_dict(state)
        batches = iter(resumed)
        found += comparable(islice(batches, 1))
        state = json.loads(json.dumps(resumed.state_dict()))
        batches.close()  # type: ignore[attr-defined]
    assert found == whole


def test_iterating_again_goes_on_where_it_was(address: str) -> None:
    whole = comparable(iter(stream(address)))
    one = stream(address)
    first = comparable(islice(one, 4))
    assert first + comparable(iter(one)) == whole
    assert list(one) == []


def test_ranks_come_from_paddle_s_variables_and_share_the_lanes(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known failure 8: automatic and disjoint."""
    lanes = []
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "2")
    for rank in range(2):
        monkeypatch.setenv("PADDLE_TRAINER_ID", str(rank))
        lanes.append({batch["lane"] for batch in stream(address)})
    assert lanes == [{0, 2}, set()]
    assert {batch["lane"] for batch in stream(address, rank=0, ranks=3)} == {0}


def test_states_of_all_ranks_together_resume_at_another_number_of_ranks(address: str) -> None:
    ranks = [stream(address, rank=rank, ranks=3) for rank in range(3)]
    seen = [lane_ids for one in ranks for lane_ids in comparable(islice(one, 3))]
    merged = ranks[0].state_dict()
    for one in ranks[1:]:
        merged["cursors"] |= one.state_dict()["cursors"]
    alone = stream(address)
    alone.load_state_dict({**merged, "served": []})
    rest = comparable(iter(alone))
    assert sorted(seen + rest) == sorted(comparable(iter(stream(address))))
    narrow = stream(address)
    narrow.load_state_dict(ranks[0].state_dict())
    with pytest.raises(ResumeRefused, match="no cursor for lane 1"):
        list(narrow)


def test_a_state_of_another_stream_is_refused_by_name(address: str) -> None:
    state = stream(address).state_dict()
    with pytest.raises(ResumeRefused, match=r"seed 7, this stream has 8"):
        stream(address, seed=8).load_state_dict(state)
    with pytest.raises(ResumeRefused, match=r"topic 'other'"):
        stream(address).load_state_dict({**state, "topic": "other"})


def test_start_latest_and_a_stream_without_end(address: str, tmp_path: Path) -> None:
    endless = iter(stream(address, start="latest", stop="never"))
    assert list(stream(address, start="latest")) == []
    broker = LocalBroker(tmp_path)
    one = stream(address, start="latest", stop="never")
    one._begin(broker, (0, 1, 2))
    publish(broker, TOPIC, {1: token_batches(1, 1)})
    broker.close()
    assert next(iter(one))["lane"] == 1
    endless.close()  # type: ignore[attr-defined]


def test_a_topic_that_is_not_there_is_named(address: str) -> None:
    with pytest.raises(TopicError, match=r"no topic 'no\.such'"):
        list(TokenStreamBase(address, "no.such"))
    with pytest.raises(UsageError, match="4 ranks cannot share 3 lanes"):
        list(stream(address, rank=0, ranks=4))


def test_making_one_does_no_work(tmp_path: Path) -> None:
    TokenStreamBase(f"local:{tmp_path / 'nowhere'}", "t")
    assert not (tmp_path / "nowhere").exists()
