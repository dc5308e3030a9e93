"""TokenStream is Paddle's kind of dataset, in one process, and says no to worker processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import paddle
import pytest

from headrace.pipeline.local import LocalBroker
from headrace.trainer import stream, token_stream
from headrace.trainer.stream import TokenStream
from tests.unit.trainer.made_up import publish, token_batches

TOPIC = "demo.tokens"


@pytest.fixture
def tokens(tmp_path: Path) -> token_stream.TokenStreamBase:
    broker = LocalBroker(tmp_path)
    broker.create(TOPIC, 2)
    publish(broker, TOPIC, {0: token_batches(0, 6), 1: token_batches(1, 3)})
    broker.close()
    return TokenStream(f"local:{tmp_path}", TOPIC, 128, window_tokens=600, stop="end")


def test_it_is_an_iterable_dataset_and_the_class_is_one(tokens: token_stream.TokenStreamBase) -> None:
    assert isinstance(tokens, paddle.io.IterableDataset)
    assert isinstance(tokens, TokenStream)
    assert TokenStream is stream.TokenStream
    assert type(tokens).__name__ == "TokenStream"


def test_a_data_loader_in_the_same_process_yields_the_same(tokens: token_stream.TokenStreamBase) -> None:
    loader = paddle.io.DataLoader(tokens, batch_size=None, num_workers=0)
    batches = [batch for batch in loader]  # noqa: C416 (list() asks the loader for its length, which it refuses)
    rows = sum(int(batch["input_ids"].shape[0]) for batch in batches)
    assert rows == 45
    # The loader reads ahead, so the state that was trained is the one that came with the micro-batch.
    resumed = TokenStream(tokens.broker_address, TOPIC, 128, window_tokens=600, stop="end")
    resumed.load_state_dict(batches[2]["state"])
    assert [int(batch["input_ids"].sum()) for batch in resumed] == [
        int(batch["input_ids"].numpy().sum()) for batch in batches[3:]
    ]


WORKERS = """
import sys
import paddle
from headrace.trainer.stream import TokenStream
stream = TokenStream(sys.argv[1], sys.argv[2], 128, stop="end")
for _ in paddle.io.DataLoader(stream, batch_size=None, num_workers=2):
    print("a batch came")
"""


def test_worker_processes_are_refused_because_each_would_repeat_every_record(
    tokens: token_stream.TokenStreamBase,
) -> None:
    command = [sys.executable, "-c", WORKERS, tokens.broker_address, TOPIC]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode != 0
    assert "a TokenStream cannot be read in the worker processes of a DataLoader" in done.stdout + done.stderr
    assert "a batch came" not in done.stdout


def test_importing_the_module_does_not_import_paddle() -> None:
    code = "import sys, headrace.trainer.stream, headrace.trainer.token_stream; assert 'paddle' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
