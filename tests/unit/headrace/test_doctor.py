"""The doctor: each finding is true, has a cure, and the exit code says whether trying again helps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace import checks, cli
from headrace.checks import Finding
from headrace.config import Config, loads
from headrace.demo_text import vocabulary, work_orders
from headrace.pipeline.local import LocalBroker


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    words = vocabulary(order.text for order in work_orders(100, 1))
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    return folder


def configured(tmp_path: Path, more: str = "") -> Config:
    return loads(f"name: orders\nbroker: local:{tmp_path}/data\n{more}")


def levels(findings: Any) -> dict[str, str]:
    return {finding.subject: finding.level for finding in findings}


def only(findings: Any, subject: str) -> Finding:
    (found,) = [finding for finding in findings if finding.subject == subject]
    return found


def test_this_machine_is_fit() -> None:
    assert levels(checks.machine()) == {"python": "ok", "cores": "ok"}


def test_a_package_that_is_missing_or_broken_fails_with_a_cure() -> None:
    assert checks._package("pyarrow").level == "ok"
    missing = checks._package("no-such-distribution", missing="pip install it")
    assert (missing.level, missing.cure) == ("fail", "pip install it")
    broken = checks._package("pyarrow", "pyarrow.no_such_module")
    assert broken.level == "fail" and "No module named" in broken.text


def test_topics_that_are_not_there_are_a_warning(tmp_path: Path) -> None:
    found = levels(checks.broker_and_topics(configured(tmp_path)))
    missing = dict.fromkeys(("text.topic", "tokens.topic", "ingest.dead_letters.topic"), "warn")
    assert found == {"broker": "ok", **missing}


def test_another_number_of_lanes_fails_and_names_the_value_that_fits(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path / "data")
    broker.create("orders.tokens", 3, retention_ms=3_600_000)
    broker.close()
    findings = list(checks.broker_and_topics(configured(tmp_path)))
    finding = only(findings, "tokens.topic")
    assert finding.level == "fail" and "set tokens.lanes to 3" in finding.cure


def test_tokens_that_are_kept_too_short_are_a_warning(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path / "data")
    broker.create("orders.tokens", 8, retention_ms=3_600_000)
    broker.close()
    findings = [each for each in checks.broker_and_topics(configured(tmp_path)) if each.subject == "tokens.topic"]
    assert [finding.level for finding in findings] == ["ok", "warn"]


def test_the_tokenizer_is_loaded_and_its_origin_named(tmp_path: Path, tokenizer: Path) -> None:
    which, why = checks.tokenizer(configured(tmp_path, f"tokenizer: {{path: {tokenizer}}}"))
    assert which.level == why.level == "ok"
    assert which.text.startswith(f"compiled WordPiece over {tokenizer}/vocab.txt (from tokenizer.path): ")
    assert "lower case, fingerprint " in which.text
    assert why.text == "vocab.txt of ErnieTokenizer: the ids of PaddleNLP's"
    task = "{type: classification, labels: [a, b]}"
    by_model = configured(tmp_path, f"train: {{model: {tokenizer}, task: {task}}}")
    assert "(from train.model)" in next(checks.tokenizer(by_model)).text


def test_what_may_surprise_about_the_tokenizer_is_a_warning(tmp_path: Path, tokenizer: Path) -> None:
    config = configured(tmp_path, f"tokenizer: {{path: {tokenizer}, lowercase: false}}")
    assert [finding.level for finding in checks.tokenizer(config)] == ["ok", "ok", "warn"]


def test_a_vocabulary_that_cannot_be_downloaded_now_is_away(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PPNLP_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HEADRACE_VOCABULARIES", "http://127.0.0.1:1")
    monkeypatch.setattr("headrace.ingest.tokenizers.download.WAITS_S", ())
    (finding,) = checks.tokenizer(configured(tmp_path, "tokenizer: {path: ernie-3.0-nano-zh}"))
    assert finding.level == "fail" and finding.away and "http://127.0.0.1:1/" in finding.text


@pytest.mark.parametrize("more", ["", "tokenizer: {path: /no/such/folder}"])
def test_a_tokenizer_that_is_not_there_fails(tmp_path: Path, more: str) -> None:
    (finding,) = checks.tokenizer(configured(tmp_path, more))
    assert finding.level == "fail"


def test_the_checkpoint_store_is_written_to_and_left_clean(tmp_path: Path) -> None:
    config = configured(tmp_path, f"checkpoint: {{root: {tmp_path}/checkpoints}}")
    (finding,) = checks.checkpoints(config)
    assert finding.level == "ok"
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_store_that_cannot_be_written_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    (finding,) = checks.checkpoints(configured(tmp_path, f"checkpoint: {{root: {tmp_path}/file/checkpoints}}"))
    assert finding.level == "fail" and not finding.away


def test_what_is_not_available_fails_by_key(tmp_path: Path) -> None:
    findings = list(checks.settings(configured(tmp_path, "ingest: {interleave: 4}"), trains=False))
    assert levels(findings) == {"ingest.interleave": "fail", "train": "warn"}


# -- the verb


def test_the_report_of_a_whole_machine(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("headrace.yaml").write_text(f"name: orders\ntokenizer: {{path: {tokenizer}}}\n")
    assert cli.main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.split()[0] in {"ok", "warn"} for line in lines)
    assert cli.main(["doctor", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(lines)


def test_without_a_configuration_only_the_machine_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["doctor"]) == 0
    assert "headrace init" in capsys.readouterr().out
    assert cli.main(["doctor", "-c", "other.yaml"]) == 2


def test_an_ingest_machine_is_not_asked_for_what_only_training_needs(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    train = "{task: {type: masked-lm}, optimizer: {schedule: linear}}"
    Path("headrace.yaml").write_text(f"name: orders\ntokenizer: {{path: {tokenizer}}}\ntrain: {train}\n")
    assert cli.main(["doctor", "--stage", "ingest"]) == 0
    shown = capsys.readouterr().out
    assert "paddle" not in shown and "checkpoint.root is" not in shown and "train." not in shown


@pytest.mark.parametrize(
    ("findings", "code"),
    [
        ([Finding("fail", "broker", "away", away=True)], 75),
        ([Finding("fail", "broker", "away", away=True), Finding("fail", "tokenizer", "none")], 1),
        ([Finding("warn", "disk", "little"), Finding("ok", "python", "3.11")], 0),
    ],
)
def test_exit_codes(findings: list[Finding], code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from headrace.commands import doctor

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "_all", lambda config, stage: iter(findings))
    assert cli.main(["doctor"]) == code


def test_the_effective_configuration_masks_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PASSWORD", "hunter2")
    Path("headrace.yaml").write_text("name: orders\nkafka: {sasl.password: '${env:PASSWORD}'}\n")
    assert cli.main(["doctor", "--effective", "--set", "tokens.lanes=3"]) == 0
    shown = capsys.readouterr().out
    assert "hunter2" not in shown and "lanes: 3" in shown
