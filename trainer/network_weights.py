"""The float32 weights that are trained, and a network that may hold them in half precision.

In full precision (and under autocast, O1) both are the same tensors. With weights in half precision (O2) every tensor
of the network has a float32 *master* beside it:

1. after each micro-batch the network's gradients are added to those of the masters, in float32: accumulating in
   half precision would lose the small ones
2. sums over ranks, clipping and AdamW see the masters alone
3. after the step the masters are rounded into the network (`publish`)

Checkpoints hold the masters, so what a loader reads is float32 at any precision. Normalisation layers stay float32 in
the network as well: their weights are few, and their sums need the range.

Cost of O2: 2 bytes a weight for the network and 4 for its master instead of 4, 2 instead of 4 for a gradient on the
way, and activations in half precision where the operations allow it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import paddle

Network = Any
Tensor = Any

_NORMALISATION = (
    paddle.nn.LayerNorm,
    paddle.nn.GroupNorm,
    paddle.nn.BatchNorm1D,
    paddle.nn.BatchNorm2D,
    paddle.nn.BatchNorm3D,
)


class NetworkWeights:
    """Weights by structured name. `create` makes one."""

    def __init__(self, network: Network, masters: Mapping[str, Tensor]) -> None:
        self._network = network
        self._masters = masters  # by the generated name of the network's tensor; none in full precision

    @property
    def trainable(self) -> dict[str, Tensor]:
        """What the optimizer updates, float32, in the order of the names. A tied weight has one."""
        found = {name: tensor for name, tensor in self._network.named_parameters() if not tensor.stop_gradient}
        return {name: self._master(found[name]) for name in sorted(found)}

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Everything that a checkpoint holds; a tied weight stands under each of its names, as PaddleNLP saves it."""
        return {name: self._master(tensor) for name, tensor in self._network.state_dict().items()}

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Copies; one for all names of a tied weight."""
        tensors = self.tensors
        copies = {tensor.name: np.array(tensor.numpy()) for tensor in tensors.values()}
        return {name: copies[tensor.name] for name, tensor in tensors.items()}

    def load(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Set every weight."""
        for name, tensor in self.tensors.items():
            tensor.set_value(arrays[name])
        self.publish()

    def collect(self) -> None:
        """Move the network's gradients to the masters, adding to what is there (1)."""
        for parameter, master in self._pairs():
            gradient = parameter.grad
            if gradient is None:
                continue
            with paddle.no_grad():
                gradient = gradient.astype("float32")
                master.grad = gradient if master.grad is None else master.grad + gradient
            parameter.clear_gradient(False)

    def publish(self) -> None:
        """Round the masters into the network (3)."""
        with paddle.no_grad():
            for parameter, master in self._pairs():
                paddle.assign(master.astype(parameter.dtype), parameter)

    def clear_gradients(self) -> None:
        """Forget every gradient, of a pass that broke off as well."""
        for parameter in self._network.parameters():
            parameter.clear_gradient(False)
            self._master(parameter).clear_gradient(False)

    def _master(self, tensor: Tensor) -> Tensor:
        return self._masters.get(tensor.name, tensor)

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        if not self._masters:
            return []
        tensors = {tensor.name: tensor for tensor in self._network.state_dict().values()}
        return [(tensor, self._masters[name]) for name, tensor in tensors.items() if name in self._masters]


def create(network: Network, stored: str | None) -> NetworkWeights:
    """The weights of `network`; `stored` is Paddle's name of the type in which it keeps them, None for float32."""
    if stored is None:
        return NetworkWeights(network, {})
    full = {tensor.name: tensor for tensor in network.state_dict().values() if tensor.dtype == paddle.float32}
    copies = {name: np.array(tensor.numpy()) for name, tensor in full.items()}
    network.to(dtype=stored)
    for layer in network.sublayers():
        if isinstance(layer, _NORMALISATION):
            layer.to(dtype="float32")
    kept = {name: tensor for name, tensor in full.items() if tensor.dtype == paddle.float32}
    for name, tensor in kept.items():
        tensor.set_value(copies[name])
    masters = {}
    for name in full.keys() - kept.keys():
        master = paddle.create_parameter(full[name].shape, "float32")
        master.set_value(copies[name])
        masters[name] = master
    return NetworkWeights(network, masters)
