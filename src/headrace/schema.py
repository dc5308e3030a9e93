"""The JSON Schema of the configuration, for editors: `python -m headrace.schema` writes `schema.json` beside this file.

An editor finds it by the first line of a file that `headrace init` writes (`# yaml-language-server: $schema=…`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headrace.config import Config

FILE = Path(__file__).with_name("schema.json")
_REFERENCE = {"type": "string", "pattern": r"\$\{(env|file):[^}]+\}"}


def text() -> str:
    """The schema as it is shipped."""
    schema = _open(Config.model_json_schema())
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "headrace.yaml"}
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def _open(node: Any) -> Any:
    """Where a number or a boolean is meant a reference may stand as well; the loader fills it in before it checks."""
    if isinstance(node, list):
        return [_open(inner) for inner in node]
    if not isinstance(node, dict):
        return node
    node = {key: _open(inner) for key, inner in node.items()}
    if node.get("type") in ("integer", "number", "boolean") and "const" not in node:
        about = {key: node.pop(key) for key in ("default", "description", "title") if key in node}
        return {"anyOf": [node, _REFERENCE], **about}
    return node


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
