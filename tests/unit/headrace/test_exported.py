"""The public surface is explicit, and costs nothing until it is used."""

from __future__ import annotations

import subprocess
import sys

import headrace


def test_everything_exported_is_there() -> None:
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None


def test_token_stream_is_a_paddle_dataset() -> None:
    from paddle.io import IterableDataset

    assert issubclass(headrace.TokenStream, IterableDataset)


def test_import_headrace_brings_nothing_heavy() -> None:
    code = "import sys, headrace; print(sorted({'paddle', 'pyarrow', 'numpy', 'confluent_kafka'} & set(sys.modules)))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
