"""`publish`: which sources, in which order, and what is said of each."""

from __future__ import annotations

import io
import os
from contextlib import closing
from pathlib import Path

import pytest

from headrace import cli
from headrace.config import loads
from headrace.document import ConfigError
from headrace.pipeline.local import LocalBroker
from headrace.publishing import sources_of


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("headrace.yaml").write_text("name: orders\ntext: {partitions: 2}\n")


def published() -> int:
    with closing(LocalBroker("data")) as broker:
        return sum(ends.end - ends.first for ends in broker.ends("orders").values())


def write(name: str, count: int) -> None:
    Path(name).write_text("".join(f'{{"text": "{name} {number}"}}\n' for number in range(count)))


def test_a_file_is_published_once(capsys: pytest.CaptureFixture[str]) -> None:
    write("a.jsonl", 5)
    assert cli.main(["publish", "a.jsonl"]) == 0
    assert capsys.readouterr().out == "a.jsonl: 5 records published\n"
    write("a.jsonl", 7)
    assert cli.main(["publish", "a.jsonl"]) == 0
    assert capsys.readouterr().out == "a.jsonl: 2 records published, 5 lines were done before\n"
    assert published() == 7
    assert cli.main(["publish", "a.jsonl", "--again"]) == 0
    assert published() == 14


def test_files_of_the_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    write("b.jsonl", 1)
    write("a.jsonl", 2)
    assert cli.main(["publish", "--set", "text.files=['*.jsonl', 'a.jsonl']"]) == 0
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["a.jsonl", "b.jsonl"]


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    read, write_end = os.pipe()
    with os.fdopen(write_end, "wb") as stream:
        stream.write('{"text": "一"}\n\n{"text": "二"}\n'.encode())
    with os.fdopen(read, "rb") as given:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(given))
        assert cli.main(["publish", "-"]) == 0
    assert capsys.readouterr().out == "standard input: 2 records published, 1 empty lines left out\n"
    assert published() == 2


@pytest.mark.parametrize("arguments", [[], ["none.jsonl"], ["."], ["s3://bucket/a.jsonl"]])
def test_what_cannot_be_published_is_a_usage_error(arguments: list[str]) -> None:
    assert cli.main(["publish", *arguments]) == 2


def test_files_in_stores_are_refused_by_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["publish", "--set", "text.files=['hdfs://nn/a']"]) == 2
    assert "text.files" in capsys.readouterr().err


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"nothing matches 'none/\*'"):
        sources_of(loads("name: a\ntext: {files: ['none/*']}\n").text, [])


def test_the_seed_decides_the_order_of_the_files() -> None:
    for number in range(20):
        write(f"{number:02}.jsonl", 1)

    def order(more: str) -> list[str]:
        return sources_of(loads(f"name: a\ntext: {{files: ['*.jsonl']{more}}}\n").text, [])

    assert order("") == sorted(order(""))
    assert order(", shuffle_seed: 1") == order(", shuffle_seed: 1")
    orders = {tuple(order(more)) for more in ("", ", shuffle_seed: 1", ", shuffle_seed: 2")}
    assert len(orders) == 3 and len({frozenset(each) for each in orders}) == 1
