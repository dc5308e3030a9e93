"""Reading a configuration document: what YAML passes over in silence is refused here, with file, line and cure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.document import ConfigError, parse, read


def faults(text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        parse(text, "x.yaml", overrides)
    assert raised.value.exit_code == 2
    return list(raised.value.faults)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2e-5", 2e-5),
        ("1E3", 1000.0),
        (".5", 0.5),
        ("1_000_000", 1_000_000),
        ("-7", -7),
        ("0x10", 16),
        ("true", True),
        ("null", None),
        ("12:30", "12:30"),  # YAML 1.1: 750
        ("010", "010"),  # YAML 1.1: 8
        ("2026-11-23", "2026-11-23"),  # YAML 1.1: a date
        ("2026-11-23T00:00:00+08:00", "2026-11-23T00:00:00+08:00"),
        ("nobody", "nobody"),
        ("one", "one"),
        ("1.2.3", "1.2.3"),
        ("e5", "e5"),
    ],
)
def test_scalars_mean_what_people_mean(text: str, value: Any) -> None:
    assert parse(f"section: {{key: {text}}}", "x.yaml").values["section"]["key"] == value


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_survives(number: float) -> None:
    assert float(parse(f"key: {number!r}", "x.yaml").values["key"]) == number


def test_a_key_given_twice_is_refused_with_both_lines() -> None:
    assert faults("a:\n  b: 1\n  c: 2\n  b: 3\n") == ["x.yaml:4: a.b was given in line 2 already: keep one of them"]


def test_a_key_that_yaml_reads_as_a_boolean_is_refused() -> None:
    assert faults("on: 3\n") == ["x.yaml:1: the key on is not text for YAML: put it in quotes"]


def test_an_alias_inside_itself_is_refused() -> None:
    assert "contains itself" in faults("a: &x [*x]\n")[0]


def test_a_broken_document_names_the_line_and_the_cure() -> None:
    (fault,) = faults("a: 1\n\tb: 2\n")
    assert fault.startswith("x.yaml:2: is not YAML") and "spaces" in fault


@pytest.mark.parametrize("text", ["- a\n", "words", "3"])
def test_a_document_that_is_no_section_is_refused(text: str) -> None:
    assert "KEY: VALUE" in faults(text)[0]


def test_nothing_in_the_document_can_make_python_objects() -> None:
    assert "is not YAML" in faults("a: !!python/object/apply:os.getcwd []\n")[0]


def test_a_missing_file_names_init(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="headrace init"):
        read(tmp_path / "none.yaml")


def test_a_file_that_is_not_utf8_is_a_fault_not_a_crash(tmp_path: Path) -> None:
    file = tmp_path / "gbk.yaml"
    file.write_bytes("name: 工单".encode("gbk"))
    with pytest.raises(ConfigError, match="cannot be read"):
        read(file)


def test_overrides_are_yaml_and_make_the_sections_they_need() -> None:
    values = parse("a: {b: 1}\n", "x.yaml", ["a.b=[1, x]", "c.d.e=2e-5", "f=", "a.g='007'"]).values
    assert values == {"a": {"b": [1, "x"], "g": "007"}, "c": {"d": {"e": 2e-5}}, "f": None}


def test_keys_of_the_broker_client_keep_their_dots() -> None:
    assert parse("", "x", ["kafka.security.protocol=SSL"]).values == {"kafka": {"security.protocol": "SSL"}}


def test_an_override_below_a_value_is_refused() -> None:
    assert faults("a: 1\n", "a.b=2") == ["--set: a.b: a is a value, not a section: set that key itself"]


@pytest.mark.parametrize("override", ["a", "=1", ".a=1", "a..b=1"])
def test_an_override_of_another_form_is_refused(override: str) -> None:
    assert "write --set KEY=VALUE" in faults("", override)[0]


def test_places_follow_overrides() -> None:
    document = parse("a:\n  b: 1\n  c: 1\n", "x.yaml", ["a.b=2"])
    assert document.place(("a", "b")) == "--set"
    assert document.place(("a", "c")) == "x.yaml:3"
    assert document.place(("a", "missing")) == "x.yaml:1"


def test_references_are_filled_in_and_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("from file\n")
    monkeypatch.setenv("HEADRACE_TEST", "from env ${env:NOT_AGAIN}")
    document = parse(f"a: x-${{env:HEADRACE_TEST}}\nb: ['${{file:{secret}}}']\n", "x.yaml")
    assert document.values == {"a": "x-from env ${env:NOT_AGAIN}", "b": ["from file"]}
    assert set(document.secrets) == {("a",), ("b", 0)}


def test_a_missing_reference_names_key_and_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_NONE", raising=False)
    expected = "x.yaml:1: kafka.sasl.password: the environment variable HEADRACE_NONE is not set: export it first"
    assert faults("kafka: {sasl.password: '${env:HEADRACE_NONE}'}\n") == [expected]
    assert f"the file {tmp_path}/none cannot be read" in faults(f"a: ${{file:{tmp_path}/none}}\n")[0]


@pytest.mark.parametrize("text", ["${HOME}", "${env:}", "${sh:ls}", "${env:HOME"])
def test_other_references_are_refused(text: str) -> None:
    assert "is not a reference: write ${env:NAME} or ${file:PATH}" in faults(f"a: '{text}'\n")[0]
