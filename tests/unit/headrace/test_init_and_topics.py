"""`init` writes what `load` reads; `topics create` makes what the configuration says, or says how."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from headrace import cli
from headrace.commands.init import render
from headrace.config import load, loads, unsupported
from headrace.pipeline.local import LocalBroker


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_init_writes_a_configuration_that_loads(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["init", "--name", "orders"]) == 0
    config = load(Path("headrace.yaml")).config
    assert (config.name, config.broker, config.text.topic) == ("orders", "local:./data", "orders")
    assert unsupported(config) == []
    assert "headrace doctor" in capsys.readouterr().out


def test_init_for_kafka() -> None:
    assert cli.main(["init", "--broker", "kafka://kafka-1:9092", "-c", "orders.yaml"]) == 0
    assert load(Path("orders.yaml")).config.broker == "kafka://kafka-1:9092"
    assert "sasl.password: ${env:" in Path("orders.yaml").read_text()


def test_init_overwrites_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Path("headrace.yaml").write_text("mine")
    assert cli.main(["init"]) == 2
    assert Path("headrace.yaml").read_text() == "mine"
    assert "was not touched" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--name", "a/b"], ["--broker", "redis://x"]])
def test_init_refuses_what_would_not_load(arguments: list[str]) -> None:
    assert cli.main(["init", *arguments]) == 2
    assert not Path("headrace.yaml").exists()


def test_the_folder_gives_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "Work orders (新)"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert cli.main(["init"]) == 0
    assert load(Path("headrace.yaml")).config.name == "Work-orders"


def test_the_template_shows_defaults_that_are_the_defaults() -> None:
    """What stands in the template uncommented may differ from a default only where it is meant to."""
    config, bare = loads(render("orders", "local:./data", "./model")), loads("name: orders")
    assert config.tokens == bare.tokens
    assert config.text == bare.text
    assert config.checkpoint == bare.checkpoint
    assert config.ingest == bare.ingest


def test_topics_are_made_once(capsys: pytest.CaptureFixture[str]) -> None:
    Path("headrace.yaml").write_text("name: orders\ntokens: {lanes: 3, retention_h: 2}\n")
    assert cli.main(["topics", "create"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "orders: 4 partitions, made", "orders.tokens: 3 partitions, made", "orders.dead: 1 partitions, made",
    ]  # fmt: skip
    assert cli.main(["topics", "create"]) == 0
    assert "was there" in capsys.readouterr().out
    with closing(LocalBroker("data")) as broker:
        made = broker.describe("orders.tokens")
    assert made is not None and made.retention_ms == 7_200_000


def test_topics_of_another_shape_are_refused() -> None:
    Path("headrace.yaml").write_text("name: orders\n")
    assert cli.main(["topics", "create", "--set", "tokens.lanes=3"]) == 0
    assert cli.main(["topics", "create"]) == 2


def test_commands_for_an_administrator(capsys: pytest.CaptureFixture[str]) -> None:
    Path("headrace.yaml").write_text("name: orders\nbroker: kafka://k1:9092,k2:9092\n")
    assert cli.main(["topics", "create", "--print"]) == 0
    text, tokens, dead = capsys.readouterr().out.splitlines()
    assert all(
        line.startswith("kafka-topics.sh --bootstrap-server k1:9092,k2:9092 --create") for line in (text, tokens)
    )
    assert "--topic orders.tokens --partitions 8" in tokens and "retention.ms=604800000" in tokens
    assert "--topic orders.dead --partitions 1" in dead and "retention.ms=-1" in dead


def test_there_is_nothing_to_print_for_a_local_broker() -> None:
    Path("headrace.yaml").write_text("name: orders\n")
    assert cli.main(["topics", "create", "--print"]) == 2
