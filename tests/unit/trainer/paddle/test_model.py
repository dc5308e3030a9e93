"""The network of a task, and what PaddleNLP makes of the files we save."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddlenlp.transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification
from paddlenlp.transformers.ernie.modeling import ErnieForMaskedLM, ErnieForSequenceClassification, ErnieModel

from headrace.schemas.errors import UsageError
from headrace.trainer.checkpoint_tensors import Tensors, write_tensors
from headrace.trainer.config import ClassificationTask
from headrace.trainer.model import Built, build
from headrace.trainer.tasks.inputs import encoder_inputs
from headrace.trainer.weights import weight_hash
from tests.unit.trainer.paddle import tiny

CLASSIFICATION = tiny.settings()
MASKED_LM = tiny.settings(tiny.MASKED_LM)


def weights_of(network: Any) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in network.state_dict().items()}


def save(built: Built, folder: Path) -> Path:
    """The model folder of a checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in built.files.items():
        (folder / name).write_bytes(content)
    (folder / "model.safetensors").write_bytes(b"".join(write_tensors(Tensors(weights_of(built.network)))))
    return folder


def check_loaders(
    ours: Built,
    loaders: Iterable[Any],
    outputs: Callable[[Any], np.ndarray],
    folder: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """PaddleNLP's classes load what is saved of `ours`, whole, and give the same outputs."""
    save(ours, folder)
    expected = outputs(ours.network)
    paddlenlp_log = logging.getLogger("paddlenlp")
    paddlenlp_log.addHandler(caplog.handler)
    try:
        for loader in loaders:
            theirs = loader.from_pretrained(str(folder))
            assert type(theirs) is type(ours.network)
            np.testing.assert_array_equal(outputs(theirs), expected)
    finally:
        paddlenlp_log.removeHandler(caplog.handler)
    assert not [record.getMessage() for record in caplog.records if "newly initialized" in record.getMessage()]


def outputs(network: Any) -> np.ndarray:
    network.eval()
    with paddle.no_grad():
        found = network(**encoder_inputs(network, tiny.classification_batch(1).arrays))
    return np.array((found[0] if isinstance(found, tuple) else found).numpy())


@pytest.mark.parametrize(
    ("config", "loaders"),
    [
        (CLASSIFICATION, (ErnieForSequenceClassification, AutoModelForSequenceClassification)),
        (MASKED_LM, (ErnieForMaskedLM, AutoModelForMaskedLM)),
    ],
    ids=("classification", "masked-lm"),
)
def test_paddlenlp_loads_a_saved_model_with_the_same_outputs(
    tmp_path: Path, config: Any, loaders: tuple[Any, ...], caplog: pytest.LogCaptureFixture
) -> None:
    check_loaders(tiny.built(config), loaders, outputs, tmp_path, caplog)


def test_config_names_the_labels_in_order(tmp_path: Path) -> None:
    built = tiny.built(CLASSIFICATION)
    assert json.loads(built.config_json)["id2label"] == {"0": "a", "1": "b", "2": "c"}
    theirs = ErnieForSequenceClassification.from_pretrained(str(save(built, tmp_path)))
    assert theirs.config.id2label == dict(enumerate(tiny.LABELS))


def test_new_weights_depend_on_the_seed_alone() -> None:
    first = weight_hash(weights_of(tiny.built(CLASSIFICATION).network))
    paddle.seed(12345)
    paddle.nn.Linear(3, 3)
    assert weight_hash(weights_of(tiny.built(CLASSIFICATION).network)) == first
    assert weight_hash(weights_of(tiny.built(CLASSIFICATION.revised(seed=7)).network)) != first


def test_new_weights_have_the_configured_deviation() -> None:
    drawn = weights_of(tiny.built(CLASSIFICATION).network)["ernie.embeddings.word_embeddings.weight"]
    assert abs(drawn.std() - 0.02) < 0.002
    assert abs(drawn.mean()) < 0.002


def test_masked_lm_ties_input_and_output_embeddings() -> None:
    network = tiny.built(MASKED_LM).network
    assert network.cls.predictions.decoder.weight is network.ernie.embeddings.word_embeddings.weight


def test_masked_lm_does_not_train_the_pooler_it_never_uses() -> None:
    frozen = {name for name, tensor in tiny.built(MASKED_LM).network.named_parameters() if tensor.stop_gradient}
    assert frozen == {"ernie.pooler.dense.weight", "ernie.pooler.dense.bias"}


def test_a_saved_classifier_goes_on_as_it_was(tmp_path: Path) -> None:
    ours = tiny.built(CLASSIFICATION)
    again = build(CLASSIFICATION.task, str(save(ours, tmp_path)), tiny.VOCAB, tiny.PAD, seed=1)
    assert weight_hash(weights_of(again.network)) == weight_hash(weights_of(ours.network))


@pytest.mark.parametrize("labels", (("b", "a", "c"), ("a", "b"), ("x", "y", "z")))
def test_a_head_for_other_labels_or_another_order_comes_new(
    tmp_path: Path, labels: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    ours = tiny.built(CLASSIFICATION)
    task = ClassificationTask(type="classification", labels=labels)
    other = build(task, str(save(ours, tmp_path)), tiny.VOCAB, tiny.PAD, seed=1)
    kept, new = weights_of(ours.network), weights_of(other.network)
    assert new["classifier.weight"].shape == (16, len(labels))
    assert not np.array_equal(kept["classifier.weight"][:, :2], new["classifier.weight"][:, :2])
    body = [name for name in kept if name.startswith("ernie.")]
    assert all(np.array_equal(kept[name], new[name]) for name in body)
    assert "a new one is trained" in caplog.text


@pytest.mark.parametrize("safe", (True, False), ids=("safetensors", "pdparams"))
def test_a_bare_encoder_that_paddlenlp_saved_becomes_a_classifier(tmp_path: Path, safe: bool) -> None:
    encoder = ErnieModel(tiny.built(CLASSIFICATION).network.config)
    encoder.save_pretrained(str(tmp_path), safe_serialization=safe)
    (tmp_path / "vocab.txt").write_text("[PAD]\n")
    built = build(CLASSIFICATION.task, str(tmp_path), tiny.VOCAB, tiny.PAD, seed=1)
    expected, found = weights_of(encoder), weights_of(built.network.ernie)
    assert all(np.array_equal(expected[name], found[name]) for name in expected)
    assert built.files["vocab.txt"] == b"[PAD]\n"


def test_a_masked_lm_checkpoint_becomes_a_classifier(tmp_path: Path) -> None:
    ours = tiny.built(MASKED_LM)
    built = build(CLASSIFICATION.task, str(save(ours, tmp_path)), tiny.VOCAB, tiny.PAD, seed=1)
    name = "ernie.encoder.layers.1.linear2.weight"
    assert np.array_equal(weights_of(ours.network)[name], weights_of(built.network)[name])


def test_a_tied_weight_may_be_stored_under_one_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ours = tiny.built(MASKED_LM)
    folder = save(ours, tmp_path)
    once = {name: array for name, array in weights_of(ours.network).items() if name != "cls.predictions.decoder.weight"}
    (folder / "model.safetensors").write_bytes(b"".join(write_tensors(Tensors(once))))
    again = build(MASKED_LM.task, str(folder), tiny.VOCAB, tiny.PAD, seed=1)
    assert weight_hash(weights_of(again.network)) == weight_hash(weights_of(ours.network))
    assert "new weights" not in caplog.text


def test_a_damaged_configuration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UsageError, match="fetch it again"):
        build(CLASSIFICATION.task, str(tmp_path), tiny.VOCAB, tiny.PAD, seed=1)


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    folder = save(tiny.built(CLASSIFICATION), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 64}))
    with pytest.raises(UsageError, match=r"linear1.*same model"):
        build(CLASSIFICATION.task, str(folder), tiny.VOCAB, tiny.PAD, seed=1)


def test_an_encoder_with_missing_layers_is_refused(tmp_path: Path) -> None:
    folder = save(tiny.built(CLASSIFICATION), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(UsageError, match="lacks weights of the encoder"):
        build(CLASSIFICATION.task, str(folder), tiny.VOCAB, tiny.PAD, seed=1)


def test_an_unknown_model_key_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'num_hidden_layers'"):
        build(CLASSIFICATION.task, {"num_hidden_layer": 2}, tiny.VOCAB, tiny.PAD, seed=1)


def test_an_unknown_model_type_is_refused() -> None:
    with pytest.raises(UsageError, match="known: ernie, ernie_gram, bert, roberta, gpt"):
        build(CLASSIFICATION.task, {"model_type": "t5"}, tiny.VOCAB, tiny.PAD, seed=1)


def test_a_path_that_is_not_there_is_not_looked_up_in_a_hub() -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        build(CLASSIFICATION.task, "./no/such/model", tiny.VOCAB, tiny.PAD, seed=1)


@pytest.mark.parametrize(
    ("vocab_size", "pad_id", "message"),
    [(tiny.VOCAB + 1, tiny.PAD, "vocabulary has 60"), (tiny.VOCAB, 3, "pads with id 0")],
)
def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path, vocab_size: int, pad_id: int, message: str) -> None:
    folder = save(tiny.built(CLASSIFICATION), tmp_path)
    with pytest.raises(UsageError, match=message):
        build(CLASSIFICATION.task, str(folder), vocab_size, pad_id, seed=1)
