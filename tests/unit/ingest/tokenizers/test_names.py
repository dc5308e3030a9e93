"""Built-in names: the table is PaddleNLP's own."""

from __future__ import annotations

import re
from typing import Any

import pytest

from headrace.ingest.tokenizers import layout, names

# Names of these classes that are no WordPiece over a vocab.txt.
LEFT_OUT = {"ErnieTokenizer": {"ernie-tiny"}}


@pytest.fixture(scope="module")
def paddlenlp() -> Any:
    import paddlenlp.transformers

    return paddlenlp.transformers


def path_of(url: str) -> str:
    """Path in the store. A bucket is the first part of the path, or of the host's name."""
    host, path = re.fullmatch(r"https?://([^/]+)/(.+)", url).groups()  # type: ignore[union-attr]
    return path if host == "bj.bcebos.com" else f"{host.removesuffix('.bj.bcebos.com')}/{path}"


@pytest.mark.parametrize("kind", ["ErnieTokenizer", "ErnieGramTokenizer", "BertTokenizer", "RobertaChineseTokenizer"])
def test_every_name_of_a_class_is_known_as_paddlenlp_has_it(paddlenlp: Any, kind: str) -> None:
    theirs = getattr(paddlenlp, kind)
    expected = {
        name: names.Builtin(kind, arguments["do_lower_case"], path_of(url))
        for name, url in theirs.pretrained_resource_files_map["vocab_file"].items()
        if name not in LEFT_OUT.get(kind, set())
        for arguments in [theirs.pretrained_init_configuration[name]]
        if arguments.keys() == {"do_lower_case"}
    }
    assert {name: builtin for name, builtin in names.BUILTIN.items() if builtin.kind == kind} == expected


def test_the_class_is_the_one_that_paddlenlp_takes_for_the_name(paddlenlp: Any) -> None:
    taken = {
        name: kind.__name__
        for of_class, kinds in paddlenlp.AutoTokenizer._tokenizer_mapping.items()
        for name in of_class
        for kind, _ in kinds[:1]
    }
    assert {name: builtin.kind for name, builtin in names.BUILTIN.items()} == {
        name: taken[name] for name in names.BUILTIN
    }


def test_every_class_is_one_that_is_compiled() -> None:
    assert {builtin.kind for builtin in names.BUILTIN.values()} <= layout.LIKE_ERNIE | layout.LIKE_BERT


def test_similar_names() -> None:
    assert names.similar("ernie-3.0-base")[0] == "ernie-3.0-base-zh"
    assert names.similar("gpt-4") == []
