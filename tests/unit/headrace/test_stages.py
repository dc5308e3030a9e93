"""Stages as the verbs start them: the parts they get, the warnings, the lines that events become, the streams apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace import demo, stages
from headrace.config import load, loads, unsupported
from headrace.document import ConfigError
from headrace.trainer.config import RankPlan
from tests.unit.ingest.tools import write_vocabulary

CLASSES = "name: a\ntrain:\n  task: {type: classification, labels: [x, y]}\n"


def test_ranks_get_their_parts_with_names_resolved() -> None:
    plan = stages.rank_plan(loads(CLASSES + "  model: /models/m\n"))
    assert (plan.name, plan.text_topic, plan.tokens.topic, plan.tokenizer_path) == ("a", "a", "a.tokens", "/models/m")
    assert RankPlan.model_validate(json.loads(json.dumps(plan.model_dump(mode="json")))) == plan


def test_checkpoints_keep_the_vocabulary_of_a_built_in_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "models" / "ernie-gram-zh" / "vocab.txt"
    write_vocabulary(file.parent)
    monkeypatch.setenv("PPNLP_HOME", str(tmp_path))
    plan = stages.rank_plan(loads(CLASSES + "tokenizer: {path: ernie-gram-zh}\n"))
    assert plan.tokenizer_path == str(file)


def test_a_file_without_train_starts_no_ranks() -> None:
    with pytest.raises(ConfigError, match="train is missing"):
        stages.rank_plan(loads("name: a\n"))


def test_workers_get_their_parts_and_no_more() -> None:
    args = stages.ingest_args(loads(CLASSES))
    assert args.labels == ("x", "y") and args.ingest.dead_letters.topic == "a.dead"
    assert "train" not in args.model_dump()


def test_more_ranks_than_lanes_are_refused_and_uneven_ones_warned_of() -> None:
    assert stages.check_ranks(4, 8) is None
    warning = stages.check_ranks(5, 8)
    assert warning is not None and "4 do" in warning
    with pytest.raises(ConfigError, match="use 8 at most"):
        stages.check_ranks(9, 8)


@pytest.mark.parametrize(
    ("event", "line"),
    [
        ({"event": "started", "pid": 7}, "rank-0: started (pid 7)"),
        ({"event": "ended"}, "rank-0: done"),
        (
            {"event": "restarting", "why": "killed by SIGKILL", "wait_s": 2.0, "failures": 1},
            "rank-0: killed by SIGKILL; again in 2 s (failure 1)",
        ),
        ({"event": "killed", "grace_s": 60.0}, "rank-0: did not end within 60 s and was killed"),
        ({"event": "progress", "step": 3}, ""),
        ({"event": "ingest", "records": 3}, ""),
        ({"event": "finished", "why": "end", "step": 9}, "rank-0: finished: why end, step 9"),
    ],
)
def test_events_become_lines(event: dict[str, Any], line: str) -> None:
    assert stages.said("rank-0", event) == line


APART = """
import os, sys
from pathlib import Path
from headrace import stages
with stages.apart(Path("log") if sys.argv[1] == "log" else None) as output:
    print("from a library", flush=True)
    os.system("echo from a child")
    output.results.write("result\\n")
    output.progress.write("progress\\n")
print("after", flush=True)
"""


@pytest.mark.parametrize("target", ["log", "stderr"])
def test_what_children_print_never_mixes_with_results(target: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", APART, target], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "result\nafter\n"
    chatter = "from a library\nfrom a child\n"
    assert (tmp_path / "log").read_text() == chatter if target == "log" else chatter in done.stderr
    assert "progress\n" in done.stderr


def test_the_demo_has_a_configuration_like_any_other(tmp_path: Path) -> None:
    config = demo.prepare(tmp_path, demo.Scale(records=200, rate=100.0, ranks=3, workers=1))
    assert unsupported(config) == [] and config.tokens.lanes == 3
    assert config == load(tmp_path / "headrace.yaml").config
    assert len((tmp_path / "workorders.jsonl").read_text().splitlines()) == 200
    assert os.listdir(tmp_path / "tokenizer") == ["vocab.txt"]  # noqa: PTH208
