"""What is shipped about the configuration is current, complete, and true of the code."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from headrace import keys, reference, schema
from headrace.config import Config, load, unsupported
from headrace.schemas.settings import Settings

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))

#: Keys that `config.unsupported` refuses wherever they would have an effect.
NOT_READ = {"interleave"}


def test_the_schema_is_current() -> None:
    assert schema.FILE.read_text() == schema.text(), "run `make reference`"


@pytest.mark.parametrize(
    ("page", "text"), [("configuration", reference.configuration), ("commands", reference.commands)]
)
def test_the_reference_pages_are_current(page: str, text: object) -> None:
    assert callable(text)
    assert (ROOT / "docs" / f"{page}.md").read_text() == text(), "run `make reference`"


def test_every_key_has_a_sentence() -> None:
    assert [key.dotted for key in keys.walk(Config) if not key.description.strip().endswith((".", "…"))] == []


def test_every_key_is_documented() -> None:
    page = reference.configuration()
    assert [key.dotted for key in keys.walk(Config) if f"| `{key.dotted}`" not in page] == []


def test_every_key_is_read_by_the_code() -> None:
    """A key that nobody reads is a promise nobody keeps: its name must be an attribute somewhere outside the models."""
    read = {
        node.attr
        for folder in ("schemas", "pipeline", "ingest", "trainer", "src/headrace")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.name != "config.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
    }
    unread = {key.dotted for key in keys.walk(Config) if key.path[-1] not in read | NOT_READ}
    assert unread == set()


def test_every_model_of_the_configuration_is_closed() -> None:
    models = {Config, *(section for key in keys.walk(Config) for section in key.sections)}
    assert all(issubclass(model, Settings) and model.model_config["extra"] == "forbid" for model in models)


def test_the_schema_knows_every_key_and_refuses_others() -> None:
    shipped = json.loads(schema.FILE.read_text())
    assert shipped["additionalProperties"] is False
    named = {name for part in (shipped, *shipped["$defs"].values()) for name in part.get("properties", {})}
    assert {key.path[-1] for key in keys.walk(Config)} == named


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_load_and_ask_for_nothing_unavailable(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "x")
    assert unsupported(load(file).config) == []


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4
