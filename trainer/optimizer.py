"""AdamW over named parameters: decay exclusions, clipping by global norm, and a state keyed by structured names.

Paddle names parameters and accumulators by what was built before in the process (`linear_7.w_0_moment1_0`), so its own
state dict cannot be loaded by a process that built something else. Here a key is `<structured name>/<accumulator>`.
Float32 weights of a network in half precision are the parameters here (`network_weights`), not a part of the state.

Every parameter takes part in every step, with a zero gradient where it has none: then the state has the same keys from
the beginning to the end and on every rank.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import paddle

from headrace.schemas.errors import ResumeRefused, UsageError
from headrace.trainer.config import OptimizerConfig

Tensor = Any

#: The accumulators of AdamW by Paddle's names.
_ACCUMULATOR = re.compile(r"(?P<parameter>.+)_(?P<name>moment1|moment2|beta1_pow_acc|beta2_pow_acc)_\d+")


class Optimizer:
    """AdamW. `create` makes one; parameters keep the order in which they were given."""

    def __init__(self, parameters: Mapping[str, Tensor], adamw: Any, accumulators: Mapping[str, Tensor]) -> None:
        self.parameters = parameters
        self._adamw = adamw
        self._accumulators = accumulators  # by key; the tensors that AdamW updates in place

    @property
    def accumulators(self) -> Mapping[str, Tensor]:
        """The state by key: the tensors themselves."""
        return self._accumulators

    def step(self, gradients: Sequence[Tensor], learning_rate: float) -> None:
        """One update of every parameter; `gradients` in the order of `parameters`."""
        self._adamw.set_lr(learning_rate)
        with paddle.no_grad():
            self._adamw.apply_gradients(list(zip(self.parameters.values(), gradients, strict=True)))

    def arrays(self) -> dict[str, np.ndarray]:
        """A copy of the state."""
        return {key: np.array(tensor.numpy()) for key, tensor in self._accumulators.items()}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Set the state. Raises ResumeRefused where it belongs to other parameters."""
        refuse_mismatch("optimizer", self._accumulators, arrays)
        for key, tensor in self._accumulators.items():
            tensor.set_value(arrays[key])


def create(parameters: Mapping[str, Tensor], settings: OptimizerConfig) -> Optimizer:
    """AdamW over `parameters` (structured name -> tensor), with its accumulators in their initial state.

    Raises UsageError for a pattern of `no_decay` that names no parameter.
    """
    decayed = {parameters[name].name for name in decaying(parameters, settings.no_decay)}
    adamw = paddle.optimizer.AdamW(
        learning_rate=0.0,
        beta1=settings.beta1,
        beta2=settings.beta2,
        epsilon=settings.epsilon,
        parameters=list(parameters.values()),
        weight_decay=settings.weight_decay,
        apply_decay_param_fun=decayed.__contains__,
    )
    # Paddle creates accumulators in the first step. A step at rate 0 with zero gradients changes no weight.
    with paddle.no_grad():
        adamw.apply_gradients([(tensor, paddle.zeros_like(tensor)) for tensor in parameters.values()])
    structured = {tensor.name: name for name, tensor in parameters.items()}
    accumulators: dict[str, Tensor] = {}
    for generated, tensor in adamw.state_dict().items():
        match = _ACCUMULATOR.fullmatch(generated)
        if match is not None:
            accumulators[f"{structured[match['parameter']]}/{match['name']}"] = tensor
    initial = {"beta1_pow_acc": settings.beta1, "beta2_pow_acc": settings.beta2}
    for key, tensor in accumulators.items():
        tensor.set_value(np.full(tensor.shape, initial.get(key.rpartition("/")[2], 0.0), np.float32))
    return Optimizer(parameters, adamw, accumulators)


def decaying(parameters: Mapping[str, Tensor], no_decay: Sequence[str] | None) -> list[str]:
    """Names of the parameters that decay. Without patterns: those of more than one dimension, so that biases and
    normalisation weights do not."""
    if no_decay is None:
        return [name for name, tensor in parameters.items() if len(tensor.shape) > 1]
    for pattern in no_decay:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in parameters):
            raise UsageError(
                f"optimizer.no_decay: {pattern!r} names no trained parameter (names look like "
                f"{', '.join(sorted(parameters)[:3])}): correct or remove it"
            )
    return [name for name in parameters if not any(fnmatch.fnmatchcase(name, pattern) for pattern in no_decay)]


def refuse_mismatch(what: str, tensors: Mapping[str, Tensor], arrays: Mapping[str, np.ndarray]) -> None:
    """Raise ResumeRefused unless `arrays` has exactly the names and shapes of `tensors`."""
    missing, unknown = sorted(tensors.keys() - arrays.keys()), sorted(arrays.keys() - tensors.keys())
    shapes = [name for name in tensors.keys() & arrays.keys() if list(tensors[name].shape) != list(arrays[name].shape)]
    if missing or unknown or shapes:
        named = [*(f"missing {name}" for name in missing), *(f"unknown {name}" for name in unknown)]
        named += [f"another shape of {name}" for name in sorted(shapes)]
        raise ResumeRefused(
            f"the checkpoint's {what} belongs to another model ({'; '.join(named[:3])}; {len(named)} in all): "
            "keep model and task as they were, or begin a new `run`"
        )


def global_norm(gradients: Sequence[Tensor]) -> float:
    """Euclidean norm over all gradients; NaN or infinite where one of them is. Waits for the device."""
    with paddle.no_grad():
        # `x ** 2` takes 30 times as long on a CPU, `dot` loses four digits.
        squares = paddle.stack([paddle.square(gradient).sum() for gradient in gradients])
    return math.sqrt(squares.astype("float64").sum().item())


def scale_(gradients: Sequence[Tensor], factor: float) -> None:
    """Multiply in place."""
    with paddle.no_grad():
        for gradient in gradients:
            gradient.scale_(factor)
