"""Exported models give what the checkpoint gives, for any number of rows of any length, and the same labels."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from bench.reviews import reviews, write_vocabulary
from paddlenlp.transformers import AutoModelForSequenceClassification

from headrace import cli, predicting
from headrace.pipeline.config import FieldNames
from headrace.pipeline.topics import Message
from headrace.schemas.errors import UsageError
from headrace.schemas.record import TextFormat
from headrace.trainer.collate import pad
from headrace.trainer.export import folder, runners, source
from headrace.trainer.export.graph import INPUTS
from tests.unit.trainer.paddle.exported import LABELS, MAX_TOKENS, Made, checkpoint

COUNT = 1000
FORMS = ("static", "onnx", "safetensors")
CLASSIFICATION = {"type": "classification", "labels": LABELS}


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [text for text, _ in reviews()[:COUNT]]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> Path:
    made = tmp_path_factory.mktemp("models")
    write_vocabulary([(text, "") for text in texts], made / "vocab.txt")
    return made


@pytest.fixture(scope="module")
def classifier(root: Path) -> Made:
    return checkpoint(root, "reviews", CLASSIFICATION, root / "vocab.txt")


def export(made: Made, form: Any, out: Path, *, force: bool = False) -> dict[str, Any]:
    return folder.write(source.find(made.address), folder.Order(form, out, force, "headrace test"))


@pytest.fixture(scope="module")
def folders(root: Path, classifier: Made) -> dict[str, Path]:
    made = {form: root / f"out-{form}" for form in FORMS}
    for form, out in made.items():
        export(classifier, form, out)
    return made


def arrays_of(made: Made, texts: list[str], rows: int) -> list[dict[str, np.ndarray]]:
    """Batches of `rows` texts in their order, each as long as its longest."""
    import pyarrow as pa

    encoded = made.tokenizer.encode(pa.array(texts, pa.string()), None).input_ids
    batch = pa.record_batch({"input_ids": encoded, "pair_start": pa.nulls(len(texts), pa.uint16())})
    pad_id = made.tokenizer.special_ids["pad"]
    return [pad(batch.slice(at, rows), pad_id, 1) for at in range(0, len(texts), rows)]


def eager(made: Made, arrays: dict[str, np.ndarray]) -> np.ndarray:
    with paddle.no_grad():
        logits: np.ndarray = made.network(**{name: paddle.to_tensor(arrays[name]) for name in INPUTS}).numpy()
    return logits


@pytest.mark.parametrize(("form", "run"), [("static", runners.static), ("onnx", runners.onnx)])
def test_a_graph_agrees_with_the_checkpoint_on_a_thousand_reviews(
    form: str, run: Any, classifier: Made, folders: dict[str, Path], texts: list[str]
) -> None:
    graph = run(folders[form])
    shapes = set()
    for rows in (1, 7, 64):
        for arrays in arrays_of(classifier, texts if rows == 64 else texts[:40], rows):
            logits, probabilities = graph(arrays)
            expected = eager(classifier, arrays)
            assert np.abs(logits - expected).max() < 1e-5
            assert np.abs(probabilities - np.exp(expected) / np.exp(expected).sum(-1, keepdims=True)).max() < 1e-5
            shapes.add(arrays["input_ids"].shape)
    assert len(shapes) > 20 and max(length for _, length in shapes) == MAX_TOKENS


def test_every_form_gives_the_same_labels(classifier: Made, folders: dict[str, Path], texts: list[str]) -> None:
    messages = [Message(0, number, 0, text.encode()) for number, text in enumerate(texts, 1)]
    rules = predicting.rules_of(FieldNames(), TextFormat.TEXT)
    found = {}
    for address in (classifier.address, *map(str, folders.values())):
        with predicting.opened(address) as predictor:
            found[address] = list(predictor.predict(messages, rules))
        assert [each.line for each in found[address]] == list(range(1, COUNT + 1))
    expected = found.pop(classifier.address)
    logits = np.concatenate([eager(classifier, arrays) for arrays in arrays_of(classifier, texts, 50)])
    assert [each.labels for each in expected] == [(LABELS[best],) for best in logits.argmax(-1)]
    assert len({label for each in expected for label in each.labels}) > 1
    for other in found.values():
        assert [each.labels for each in other] == [each.labels for each in expected]
        apart = np.array([each.probabilities for each in other]) - np.array([each.probabilities for each in expected])
        assert np.abs(apart).max() < 1e-5


def test_the_folders_hold_what_a_server_needs_and_every_file_s_sum(folders: dict[str, Path]) -> None:
    own = {
        "static": {"model.json", "model.pdiparams"},
        "onnx": {"model.onnx"},
        "safetensors": {"model.safetensors"},
    }
    for form, out in folders.items():
        manifest = json.loads((out / "manifest.json").read_bytes())
        assert {file.name for file in out.iterdir()} == own[form] | {"manifest.json", "config.json", "vocab.txt"}
        assert manifest["files"].keys() == {file.name for file in out.iterdir()} - {"manifest.json"}
        for name, sums in manifest["files"].items():
            data = (out / name).read_bytes()
            assert sums == {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        assert manifest["labels"] == list(LABELS) and manifest["form"] == form
        assert manifest["run"] | {"checkpoints": ""} == {"name": "reviews", "run": "main", "step": 7, "checkpoints": ""}
        assert manifest["seen"]["cursors"].keys() == {"0", "1"}


def test_paddlenlp_loads_the_safetensors_form(classifier: Made, folders: dict[str, Path], texts: list[str]) -> None:
    network = AutoModelForSequenceClassification.from_pretrained(str(folders["safetensors"]))
    network.eval()
    (arrays,) = arrays_of(classifier, texts[:20], 20)
    loaded = Made("", network, classifier.tokenizer)
    assert np.abs(eager(loaded, arrays) - eager(classifier, arrays)).max() < 1e-6
    assert network.config.id2label == dict(enumerate(LABELS))


def test_a_masked_language_model_gives_the_logits_of_every_token(root: Path, texts: list[str]) -> None:
    made = checkpoint(root, "words", {"type": "masked-lm"}, root / "vocab.txt", initializer_range=0.05)
    for form, run in (("static", runners.static), ("onnx", runners.onnx)):
        export(made, form, root / f"words-{form}")
        graph = run(root / f"words-{form}")
        for arrays in [*arrays_of(made, texts[:6], 2), *arrays_of(made, texts[:9], 9)]:
            (logits,) = graph(arrays)
            assert logits.shape == (*arrays["input_ids"].shape, made.tokenizer.vocab_size)
            assert np.abs(logits - eager(made, arrays)).max() < 1e-5
    with pytest.raises(UsageError, match="masked-lm, which gives no labels"), predicting.opened(made.address):
        pass


def test_what_is_there_is_replaced_by_force_only_and_foreign_folders_never(
    tmp_path: Path, classifier: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model"
    arguments = ["export", classifier.address, "--format", "safetensors", "--out", str(out)]
    assert cli.main(arguments) == 0
    (out / "left-over").touch()
    assert cli.main(arguments) == 2
    assert "add --force" in capsys.readouterr().err
    assert (out / "left-over").exists()
    assert cli.main([*arguments, "--force"]) == 0
    assert not (out / "left-over").exists()
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "to-grandmother").touch()
    arguments[-1] = str(tmp_path / "letters")
    assert cli.main([*arguments, "--force"]) == 2
    assert "it is no exported model" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"model", "letters"}


def test_an_export_that_fails_leaves_nothing(tmp_path: Path, classifier: Made) -> None:
    found = source.find(classifier.address)
    found.checkpoint.extra["config.json"] = b"{}"  # type: ignore[index]
    with pytest.raises(Exception):  # noqa: B017 - whatever PaddleNLP says of it
        folder.write(found, folder.Order("static", tmp_path / "model", False, "headrace test"))
    assert list(tmp_path.iterdir()) == []


WITHOUT_PADDLE = """
import sys
from headrace import cli
code = cli.main(sys.argv[1:])
print("PADDLE" if {"paddle", "paddlenlp"} & sys.modules.keys() else "NO PADDLE")
sys.exit(code)
"""


def test_predict_answers_every_line_in_order_and_an_onnx_model_needs_no_paddle(
    tmp_path: Path, folders: dict[str, Path], texts: list[str]
) -> None:
    lines = [json.dumps({"body": text}, ensure_ascii=False) for text in texts[:30]]
    lines[3:3] = ["", "{broken", '{"body": " "}']
    (tmp_path / "new.jsonl").write_text("\n".join(lines) + "\n")
    arguments = ["predict", str(folders["onnx"]), "new.jsonl", "--json", "--set", "text.fields.text=body"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PADDLE, *arguments],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *answers, last = done.stdout.splitlines()
    assert last == "NO PADDLE"
    found = [json.loads(line) for line in answers]
    assert [each["line"] for each in found] == list(range(1, len(lines) + 1))
    assert [number for number, each in enumerate(found) if "error" in each] == [3, 4, 5]
    assert "invalid-json" in found[4]["error"]
    assert "3 lines hold no text" in done.stderr
    with predicting.opened(str(folders["static"])) as predictor:
        messages = [Message(0, number, 0, line.encode()) for number, line in enumerate(lines, 1)]
        rules = predicting.rules_of(FieldNames(text="body"), TextFormat.JSON)
        expected = list(predictor.predict(messages, rules))
    assert [each.get("label") for each in found] == [each.labels[0] if each.labels else None for each in expected]
