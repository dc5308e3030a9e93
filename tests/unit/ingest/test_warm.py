"""What was warmed up in one process is loaded, not compiled, in the next."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.ingest import tokenizers
from headrace.ingest.config import LongText
from headrace.ingest.warm import warm_up
from headrace.pipeline.config import FieldNames

_WORKER = """
import sys
from headrace.ingest import bucket, scan, tokenizers
from headrace.ingest.tokenizers.wordpiece import assemble, kernel
from headrace.ingest.config import LongText
from headrace.ingest.warm import warm_up
from headrace.pipeline.config import FieldNames

tokenizer = tokenizers.load(sys.argv[1], max_tokens=32, split=sys.argv[2] == "split")
warm_up(tokenizer, FieldNames(), LongText(sys.argv[2]))
functions = [kernel.encode, scan._scan, bucket._crc32, assemble._write, assemble._plan_pairs, assemble._plan_parts]
print(sum(sum(function.stats.cache_misses.values()) for function in functions))
print(sum(sum(function.stats.cache_hits.values()) for function in functions))
"""


@pytest.mark.parametrize("long_text", [LongText.TRUNCATE, LongText.SPLIT])
def test_a_worker_loads_what_its_parent_compiled(vocabulary: Path, long_text: LongText) -> None:
    split = long_text is LongText.SPLIT
    warm_up(tokenizers.load(str(vocabulary), max_tokens=32, split=split), FieldNames(), long_text)
    command = [sys.executable, "-c", _WORKER, str(vocabulary), str(long_text)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    misses, hits = map(int, done.stdout.split())
    assert (misses, hits >= 4) == (0, True)
