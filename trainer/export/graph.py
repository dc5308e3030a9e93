"""The network as a graph: traced once with any number of rows of any length, saved for Paddle Inference or as ONNX.

Inputs are `input_ids`, `token_type_ids` and `attention_mask` ([B, S] int64), as `collate.pad` makes them; a model that
has no use for one leaves it out of the graph. Outputs, in this order: `logits`, and of a classifier `probabilities`.
Of a language model the logits are of every token, [B, S, V].

paddle2onnx is told to leave out its "polygraphy" pass: that folds constants, which ONNX Runtime does by itself when it
loads a model, and it installs packages while it runs (it sets POLYGRAPHY_AUTOINSTALL_DEPS itself, over what the
environment says).
"""

from __future__ import annotations

import contextlib
import inspect
import io
from pathlib import Path
from typing import Any

import paddle
import paddle.nn.functional as F  # noqa: N812 (Paddle's own habit)

from headrace.schemas.errors import Stop, UsageError
from headrace.trainer.config import ClassificationTask, Task

INPUTS = ("input_ids", "token_type_ids", "attention_mask")
_OPSET = 17


class Serving(paddle.nn.Layer):  # type: ignore[misc]
    """A network with what its users read: scores, and probabilities where they are of classes."""

    def __init__(self, network: Any, task: Task) -> None:
        super().__init__()
        self.network = network
        self.activation = activation(task)
        self.takes = inputs_of(network)

    def forward(self, input_ids: Any, token_type_ids: Any, attention_mask: Any) -> Any:
        given = {"input_ids": input_ids, "token_type_ids": token_type_ids, "attention_mask": attention_mask}
        logits = self.network(**{name: given[name] for name in self.takes})
        return (logits, self.activation(logits)) if self.activation is not None else (logits,)


def activation(task: Task) -> Any:
    """What makes probabilities of a classifier's logits; None for other tasks."""
    if not isinstance(task, ClassificationTask):
        return None
    return F.sigmoid if task.multi_label else F.softmax


def inputs_of(network: Any) -> tuple[str, ...]:
    """Which of INPUTS a network takes: GPT knows no second texts, and some encoders have no place for one."""
    accepted = inspect.signature(network.forward).parameters
    names = [name for name in INPUTS if name in accepted]
    if getattr(network.config, "type_vocab_size", 0) < 2 and "token_type_ids" in names:
        names.remove("token_type_ids")
    return tuple(names)


def save_static(network: Any, task: Task, prefix: Path) -> None:
    """Write PREFIX.json and PREFIX.pdiparams."""
    network.eval()
    serving = Serving(network, task)
    serving.eval()
    specs = [paddle.static.InputSpec([None, None], "int64", name) for name in INPUTS]
    traced = paddle.jit.to_static(serving, input_spec=specs, full_graph=True)
    paddle.jit.save(traced, str(prefix))


def save_onnx(network: Any, task: Task, prefix: Path) -> None:
    """Write PREFIX.onnx. Raises UsageError where paddle2onnx is missing, Stop where it fails."""
    try:
        import paddle2onnx
    except ImportError as error:
        raise UsageError(f"--format onnx needs paddle2onnx ({error}): pip install 'headrace[export]'") from error
    save_static(network, task, prefix)
    graph, parameters, made = (prefix.with_suffix(suffix) for suffix in (".json", ".pdiparams", ".onnx"))
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            paddle2onnx.export(
                str(graph), str(parameters), save_file=str(made), opset_version=_OPSET, optimize_tool="none"
            )
    except Exception as error:
        raise Stop(
            f"paddle2onnx cannot convert this model ({error}): use --format static\n{said.getvalue()}"
        ) from error
    graph.unlink()
    parameters.unlink()
