"""`vocab build`: from files, standard input and the text topic to a folder, and what is said on the way."""

from __future__ import annotations

import io
import json
import os
import pty
import random
import signal
import socket
import string
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from headrace import cli
from headrace.demo_text import work_orders
from headrace.pipeline.local import LocalBroker

SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]"]


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps(order.fields(), ensure_ascii=False) for order in work_orders(300, seed=7)]
    Path("orders.jsonl").write_text("\n".join([*lines, "{broken"]) + "\n")


def vocabulary(folder: str = "tokenizer") -> list[str]:
    return Path(folder, "vocab.txt").read_text(encoding="utf-8").splitlines()


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["vocab", "build", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == "" and "Traceback" not in said.err
    return said.err


def test_a_file_becomes_a_vocabulary(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["vocab", "build", "orders.jsonl", "--size", "600"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[:2] == [
        "tokenizer/vocab.txt: 600 tokens",
        "300 records read, 1 records skipped (1 invalid-json)",
    ]
    assert "100.00 % of its words are not [UNK]" in said.out
    assert "training" in said.err and "training" not in said.out
    assert len(vocabulary()) == 600 and vocabulary()[:5] == SPECIAL


@pytest.mark.parametrize(
    "given", [("--size", "1000000000"), *((name, str(2**64)) for name in ("--min-frequency", "--records"))]
)
def test_numbers_beyond_any_use_are_refused(given: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """For a size that no memory holds the library ends the whole process."""
    said = refused(capsys, "orders.jsonl", "--size", "600", *given)
    assert f"'{given[0]}'" in said and "is not in the range" in said


def test_two_processes_write_the_same_bytes() -> None:
    """Hash tables of Python and of the library begin with another seed in each."""
    arguments = ["orders.jsonl", "--size", "900", "--min-frequency", "1"]
    for out in ("a", "b"):
        command = [sys.executable, "-m", "headrace", "vocab", "build", *arguments, "--out", out]
        subprocess.run(command, check=True, capture_output=True)
    assert Path("a/vocab.txt").read_bytes() == Path("b/vocab.txt").read_bytes()
    assert sum(1 for token in vocabulary("a") if len(token.removeprefix("##")) > 1) > 100


def test_the_topic_gives_what_its_file_gives(capsys: pytest.CaptureFixture[str]) -> None:
    Path("headrace.yaml").write_text("name: orders\ntext: {partitions: 3}\n")
    assert cli.main(["publish", "orders.jsonl"]) == 0
    with closing(LocalBroker("data")) as broker:
        before = {path: path.stat().st_size for path in Path("data").rglob("*") if path.is_file()}
        positions = broker.positions("orders.ingest", "orders")
    assert cli.main(["vocab", "build", "--size", "600", "--out", "topic"]) == 0
    assert "300 records read, 1 records skipped (1 invalid-json)" in capsys.readouterr().out
    assert cli.main(["vocab", "build", "--size", "600", "--out", "file", "orders.jsonl"]) == 0
    assert vocabulary("topic") == vocabulary("file")
    with closing(LocalBroker("data")) as broker:
        assert broker.positions("orders.ingest", "orders") == positions == {}
    logs = {path: size for path, size in before.items() if path.suffix not in (".db", ".db-wal", ".db-shm")}
    assert {path: path.stat().st_size for path in logs} == logs

    capsys.readouterr()
    assert cli.main(["vocab", "build", "--size", "600", "--out", "few", "--records", "30"]) == 0
    assert "\n30 records read" in capsys.readouterr().out


def test_patterns_and_several_files(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.txt", "b.txt", "[c].txt"):
        Path(name).write_text(f"word{name[0]} 字\n")
    assert cli.main(["vocab", "build", "?.txt", "[c].txt", "a.txt", "--size", "100"]) == 0
    assert "3 records read" in capsys.readouterr().out
    assert cli.main(["vocab", "build", "?.txt", "--size", "100", "--records", "1", "--out", "one"]) == 0
    assert "1 records read" in capsys.readouterr().out
    assert "TEXT: nothing matches 'none*.txt'" in refused(capsys, "none*.txt", "--size", "100", "--out", "none")


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    read, write_end = os.pipe()
    with os.fdopen(write_end, "wb") as stream:
        stream.write(b'{"text": "one"}\n\ntwo\n')
    with os.fdopen(read, "rb") as given:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(given))
        assert cli.main(["vocab", "build", "-", "--size", "100", "--min-frequency", "1"]) == 0
    assert "2 records read\n" in capsys.readouterr().out
    assert {"one", "two"} <= set(vocabulary())


def test_fields_of_the_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.jsonl").write_text('{"body": "Ä"}\n')
    Path("mine.yaml").write_text("name: mine\ntext: {fields: {text: body}}\n")
    assert "1 missing-text" in refused(capsys, "a.jsonl", "--size", "10")
    assert cli.main(["vocab", "build", "a.jsonl", "--size", "10", "-c", "mine.yaml"]) == 0
    assert vocabulary() == [*SPECIAL, "a", "##a"]
    cased = ["a.jsonl", "--size", "10", "--cased", "--force", "--set", "text.fields.text=body"]
    assert cli.main(["vocab", "build", *cased]) == 0
    assert vocabulary() == [*SPECIAL, "Ä", "##Ä"]
    assert json.loads(Path("tokenizer/tokenizer_config.json").read_text())["do_lower_case"] is False
    assert "no other pieces" in capsys.readouterr().out


def test_the_limits(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.txt").write_text("好好好天天路 ab ab ab xy\n")
    assert cli.main(["vocab", "build", "a.txt", "--size", "50", "--limit-characters", "3", "--min-frequency", "3"]) == 0
    assert vocabulary() == [*SPECIAL, "a", "b", "好", "##a", "##b", "ab"]
    said = capsys.readouterr().out
    assert "3 of 7 characters, 2 of them also inside words, 1 pieces" in said
    assert "64.28 % of the text's characters are known" in said  # 9 of 14: rounded down
    assert "60.00 % of its words are not [UNK]" in said  # 6 of 10


def test_what_is_there_is_not_overwritten_and_nothing_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tokenizer").mkdir()
    Path("tokenizer/vocab.txt").write_text("mine")
    assert "--force" in refused(capsys, "none.txt", "--size", "100")
    assert vocabulary() == ["mine"]
    assert cli.main(["vocab", "build", "orders.jsonl", "--size", "600", "--force"]) == 0
    assert len(vocabulary()) == 600


def test_what_cannot_be_built_is_a_usage_error_that_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty.txt").write_text("\n \n")
    Path("bad.jsonl").write_text("{\n[]\n")
    assert "there is no text in empty.txt" in refused(capsys, "empty.txt", "--size", "100")
    bad = refused(capsys, "bad.jsonl", "--size", "100")
    assert "2 records skipped (2 invalid-json)" in bad and "text.fields.text" in bad
    small = refused(capsys, "orders.jsonl", "--size", "6")
    assert "--size 6 is too small" in small and "--limit-characters" in small
    assert refused(capsys, "orders.jsonl", "--size", "0")
    Path("orders.gz").write_bytes(b"")
    assert "headrace vocab build -" in refused(capsys, "orders.gz", "--size", "9")
    assert not Path("tokenizer").exists()


def test_a_topic_that_is_missing_or_empty(capsys: pytest.CaptureFixture[str]) -> None:
    assert "headrace.yaml" in refused(capsys, "--size", "100")
    Path("headrace.yaml").write_text("name: orders\n")
    assert "topic 'orders' does not exist" in refused(capsys, "--size", "100")
    assert cli.main(["topics", "create"]) == 0
    capsys.readouterr()
    assert "there is no text in topic 'orders': publish texts, or name files" in refused(capsys, "--size", "100")


def test_a_file_that_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.txt")
    assert "socket.txt cannot be read (" in refused(capsys, "socket.txt", "--size", "100")


def test_ctrl_c_while_it_trains_writes_nothing() -> None:
    pick = random.Random(3)
    words = ("".join(pick.choices(string.ascii_lowercase, k=8)) for _ in range(60_000))
    Path("many.txt").write_text("\n".join(words))
    command = [sys.executable, "-m", "headrace", "vocab", "build", "many.txt", "--size", "30000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = next(line for line in process.stderr if "training" in line)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130 and process.stderr.read() == "headrace: interrupted\n"
    assert "60000 records read" in said and not Path("tokenizer").exists()


def test_a_bar_on_a_terminal(tmp_path: Path) -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-m", "headrace", "vocab", "build", "orders.jsonl", "--size", "600"])
    drawn = b""
    try:
        while chunk := os.read(terminal, 65_536):
            drawn += chunk
    except OSError:
        pass  # a terminal whose process has ended
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert b"100%" in drawn and b"300 records" in drawn and b"vocab.txt: 600 tokens" in drawn
