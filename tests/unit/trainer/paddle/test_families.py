"""Every family with every task it has: what PaddleNLP makes of what we save, losses against plain sums, refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddlenlp import transformers
from paddlenlp.transformers.gpt import modeling as gpt

from headrace.predicting import Predictor
from headrace.schemas.errors import UsageError
from headrace.trainer import pretrained, recompute
from headrace.trainer.config import CustomTask, Task
from headrace.trainer.export.graph import activation
from headrace.trainer.families import type_of_name
from headrace.trainer.model import build
from headrace.trainer.tasks import loss_of
from headrace.trainer.tasks.inputs import encoder_inputs
from tests.unit.trainer.made_up import META, VOCAB, rows_of, texts
from tests.unit.trainer.paddle import cases
from tests.unit.trainer.paddle.test_model import check_loaders, save, weights_of
from tests.unit.trainer.paddle.test_tasks import cross_entropy

OWN = [case for case in cases.CASES if case.startswith("custom")]
BUILT_IN = [case for case in cases.CASES if case not in OWN]
MASKED = [case for case in cases.CASES if case.startswith("masked-lm")]
AUTO = {
    "classification": "AutoModelForSequenceClassification",
    "multi-label": "AutoModelForSequenceClassification",
    "masked-lm": "AutoModelForMaskedLM",
    "causal-lm": "AutoModelForCausalLM",
}


def task_of(case: str) -> Task:
    return cases.settings(case).task


def outputs(network: Any) -> np.ndarray:
    network.eval()
    random = np.random.default_rng(0)
    arrays = {"input_ids": random.integers(5, VOCAB, (3, 9)), "attention_mask": np.ones((3, 9), np.int64)}
    with paddle.no_grad():
        found = network(**encoder_inputs(network, arrays))
    return np.array((found[0] if isinstance(found, tuple) else found).numpy())


def gradients(network: Any, task: Task, arrays: dict[str, np.ndarray]) -> tuple[float, np.ndarray]:
    """The loss, and the gradient of all parameters as one vector."""
    for parameter in network.parameters():
        parameter.clear_gradient(False)
    loss, _ = loss_of(task)(network, arrays)
    loss.backward()
    parts = [parameter.grad.numpy().reshape(-1) for parameter in network.parameters() if parameter.grad is not None]
    return loss.item(), np.concatenate(parts).astype(np.float64)


@pytest.mark.parametrize("case", BUILT_IN)
def test_paddlenlp_loads_a_saved_model_with_the_same_outputs(
    tmp_path: Path, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    ours = cases.built(cases.settings(case))
    loaders = (type(ours.network), getattr(transformers, AUTO[case.split("/")[0]]))
    check_loaders(ours, loaders, outputs, tmp_path, caplog)


@pytest.mark.parametrize("case", cases.CASES)
def test_a_saved_model_goes_on_as_it_was(tmp_path: Path, case: str, caplog: pytest.LogCaptureFixture) -> None:
    ours = cases.built(cases.settings(case))
    again = build(task_of(case), str(save(ours, tmp_path)), VOCAB, META.special_ids["pad"], seed=1)
    expected, found = weights_of(ours.network), weights_of(again.network)
    assert all(np.array_equal(expected[name], found[name]) for name in expected)
    assert "new" not in caplog.text


@pytest.mark.parametrize("case", OWN)
def test_a_published_encoder_goes_into_a_users_network_under_its_own_name(tmp_path: Path, case: str) -> None:
    model_type = cases.CASES[case][0]
    other = next(each for each in BUILT_IN if cases.CASES[each][0] == model_type)
    published = cases.built(cases.settings(other))
    built = build(task_of(case), str(save(published, tmp_path)), VOCAB, META.special_ids["pad"], seed=1)
    expected = weights_of(getattr(published.network, model_type))
    found = weights_of(built.network.body)
    assert all(np.array_equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize("case", MASKED)
def test_masked_lm_scores_the_masked_positions_as_the_whole_projection_would(case: str) -> None:
    network = cases.built(cases.settings(case)).network
    (batch,) = cases.batches(case, cases.rows(case), cases.WHOLE)
    labels = batch.arrays["labels"]
    logits = network(**encoder_inputs(network, batch.arrays)).numpy()
    losses = cross_entropy(logits, np.where(labels < 0, 0, labels))
    loss, right, *_ = loss_of(task_of(case))(network, batch.arrays)
    assert loss.item() == pytest.approx(losses[labels >= 0].sum(), rel=1e-5)
    assert right.item() == ((logits.argmax(-1) == labels) & (labels >= 0)).sum()


@pytest.mark.parametrize("case", ["multi-label/ernie", "multi-label/roberta"])
def test_several_labels_sum_over_the_classes_and_count_whole_sets(case: str) -> None:
    network = cases.built(cases.settings(case)).network
    network.state_dict()["classifier.bias" if "ernie" in case else "classifier.out_proj.bias"].set_value(
        np.array([0.5, -0.5, -0.5], np.float32)
    )
    (batch,) = cases.batches(case, cases.rows(case), cases.WHOLE)
    logits = network(**encoder_inputs(network, batch.arrays)).numpy().astype(np.float64)
    labels = batch.arrays["labels"]
    chances = 1 / (1 + np.exp(-logits))
    expected = -np.where(labels == 1, np.log(chances), np.log(1 - chances)).sum()
    loss, right, *_ = loss_of(task_of(case))(network, batch.arrays)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert right.item() == ((chances > 0.5) == (labels == 1)).all(axis=1).sum() > 0
    assert batch.count == len(labels)


def test_probabilities_of_several_labels_are_apart_and_every_one_above_half_is_predicted() -> None:
    one, several = (activation(task_of(case)) for case in ("classification/ernie", "multi-label/ernie"))
    logits = paddle.to_tensor([[2.0, -1.0, 1.0]])
    np.testing.assert_allclose(several(logits).numpy(), 1 / (1 + np.exp([[-2.0, 1.0, -1.0]])), rtol=1e-6)
    assert one(logits).sum().item() == pytest.approx(1)
    predictor = Predictor(lambda _: (), None, ("a", "b", "c"), multi_label=True)  # type: ignore[arg-type]
    assert predictor.chosen([0.9, 0.3, 0.7]) == ("a", "c")
    assert predictor.chosen([0.1, 0.3, 0.2]) == ()
    assert replace(predictor, multi_label=False).chosen([0.1, 0.6, 0.3]) == ("b",)


def test_recompute_of_gpt_changes_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    case, calls = "causal-lm/gpt", []
    network = cases.built(cases.settings(case)).network
    (batch,) = cases.batches(case, cases.rows(case), cases.WHOLE)
    expected = gradients(network, task_of(case), batch.arrays)
    again = gpt.recompute
    monkeypatch.setattr(gpt, "recompute", lambda *args, **more: (calls.append(1), again(*args, **more))[1])
    recompute.enable(network)
    loss, gradient = gradients(network, task_of(case), batch.arrays)
    assert len(calls) == 2, "once a layer"
    assert loss == expected[0]
    np.testing.assert_array_equal(gradient, expected[1])


def test_config_says_whether_a_text_may_have_several_labels() -> None:
    several, one = (cases.built(cases.settings(case)) for case in ("multi-label/ernie", "classification/ernie"))
    assert json.loads(several.config_json)["problem_type"] == "multi_label_classification"
    assert json.loads(one.config_json).get("problem_type") is None


def test_packed_documents_have_the_loss_and_the_gradient_of_one_document_per_row() -> None:
    case = "causal-lm/gpt"
    network = cases.built(cases.settings(case)).network
    (batch,) = cases.batches(case, rows_of(texts(24)), cases.WHOLE)
    packed = batch.arrays
    assert len(packed["input_ids"]) < 24, "nothing was packed"
    apart = [
        {
            "input_ids": packed["input_ids"][where][None],
            "position_ids": np.arange(where.sum())[None],
            "documents": np.ones((1, where.sum()), np.int64),
            "labels": packed["labels"][where][None],
        }
        for where in (packed["documents"] == number for number in range(1, 25))
    ]
    loss, gradient = gradients(network, task_of(case), packed)
    found = [gradients(network, task_of(case), arrays) for arrays in apart]
    assert loss == pytest.approx(sum(each for each, _ in found), rel=1e-6)
    expected = np.sum([each for _, each in found], axis=0)
    assert np.linalg.norm(gradient - expected) <= 1e-6 * np.linalg.norm(expected)


def test_causal_lm_is_the_cross_entropy_of_what_paddlenlp_predicts() -> None:
    case = "causal-lm/gpt"
    network = cases.built(cases.settings(case)).network
    rows = texts(5)
    (batch,) = cases.batches(case, rows_of(rows), cases.WHOLE)
    expected, right = 0.0, 0
    for row in rows:
        logits = network(paddle.to_tensor([row])).numpy()[0, :-1]
        following = np.array(row[1:])
        expected += cross_entropy(logits, following).sum()
        right += (logits.argmax(-1) == following).sum()
    loss, found = loss_of(task_of(case))(network, batch.arrays)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert found.item() == right
    assert batch.count == sum(len(row) - 1 for row in rows)


def test_causal_lm_padding_may_reach_past_the_last_position() -> None:
    case = "causal-lm/gpt"
    config = cases.settings(case)
    assert isinstance(config.model, dict)
    network = cases.built(config.revised(model={**config.model, "max_position_embeddings": 20})).network
    (batch,) = cases.batches(case, rows_of([[5] * 20, [6] * 4]), cases.WHOLE)
    assert batch.arrays["input_ids"].shape == (2, 24)
    cut = {name: array[:, :20] for name, array in batch.arrays.items()}
    longer, shorter = (loss_of(config.task)(network, arrays)[0].item() for arrays in (batch.arrays, cut))
    assert longer == shorter


def test_new_weights_of_gpt_are_smaller_where_layers_add_up() -> None:
    weights = weights_of(cases.built(cases.settings("causal-lm/gpt")).network)
    assert weights["gpt.decoder.layers.1.linear1.weight"].std() == pytest.approx(0.02, rel=0.1)
    for name in ("linear2", "self_attn.out_proj"):
        assert weights[f"gpt.decoder.layers.1.{name}.weight"].std() == pytest.approx(0.01, rel=0.15)


def test_longest_rows() -> None:
    longest = {case: cases.built(cases.settings(case)).max_tokens for case in ("masked-lm/bert", "masked-lm/roberta")}
    assert longest == {"masked-lm/bert": 68, "masked-lm/roberta": 67}


@pytest.mark.parametrize(
    ("task", "model_type", "message"),
    [
        ("causal-lm/gpt", "ernie", "causal-lm does not go with a model of type ernie: .* to one of type gpt, or the"),
        ("masked-lm/ernie", "ernie_gram", "to one of type ernie or bert or roberta, or the task to classification"),
        ("classification/bert", "gpt", "or the task to causal-lm"),
    ],
)
def test_a_task_that_the_model_cannot_have_is_refused_with_both_cures(task: str, model_type: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"train.task.type: .*{message}"):
        build(task_of(task), {"model_type": model_type}, VOCAB, META.special_ids["pad"], seed=1)


def test_attention_without_a_mask_is_refused() -> None:
    config = cases.settings("causal-lm/gpt")
    assert isinstance(config.model, dict)
    with pytest.raises(UsageError, match="use_flash_attention"):
        cases.built(config.revised(model={**config.model, "use_flash_attention": True}))


def test_a_published_model_needs_a_place_in_a_users_network(tmp_path: Path) -> None:
    folder = save(cases.built(cases.settings("classification/bert")), tmp_path)
    task = CustomTask(type="tests.unit.trainer.paddle.own_tasks:NoEncoder")
    with pytest.raises(UsageError, match="its network holds no BertModel"):
        build(task, str(folder), VOCAB, META.special_ids["pad"], seed=1)


@pytest.mark.parametrize(
    ("name", "model_type"),
    [
        ("ernie-3.0-base-zh", "ernie"),
        ("ernie-gram-zh", "ernie_gram"),
        ("bert-base-chinese", "bert"),
        ("hfl/roberta-wwm-ext", "roberta"),
        ("gpt-cpm-small-cn-distill", "gpt"),
        ("somebody/some-model", "ernie"),
    ],
)
def test_paddlenlp_names_know_their_family(name: str, model_type: str) -> None:
    assert type_of_name(name) == model_type


@pytest.mark.parametrize(
    ("config", "model_type"),
    [
        ({"model_type": "bert", "architectures": ["ErnieModel"]}, "bert"),
        ({"init_class": "ErnieGramModel"}, "ernie_gram"),
        ({"architectures": ["RobertaForMaskedLM"]}, "roberta"),
        ({"init_args": [{"init_class": "BertModel"}], "init_class": "BertForPretraining"}, "bert"),
        ({}, "ernie"),
    ],
)
def test_folders_without_a_model_type_go_by_the_name_of_the_class(
    tmp_path: Path, config: dict[str, Any], model_type: str
) -> None:
    (tmp_path / "model_config.json").write_text(json.dumps(config))
    assert pretrained.model_type(tmp_path) == model_type
