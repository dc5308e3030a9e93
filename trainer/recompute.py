"""Activation recompute: keep the inputs of each encoder layer, compute the rest again in the backward pass.

The layers do it themselves where they know how: PaddleNLP's have a switch `enable_recompute`. Dropout draws the same
numbers both times, because the random state goes with the inputs; so the gradients are those without recompute.
"""

from __future__ import annotations

from typing import Any

from headrace.schemas.errors import UsageError


def enable(network: Any) -> None:
    """Switch it on in every layer of `network` that has the switch. Raises UsageError where none has."""
    layers = [layer for layer in network.sublayers(include_self=True) if hasattr(layer, "enable_recompute")]
    if not layers:
        raise UsageError(
            f"train.recompute: {type(network).__name__} cannot recompute activations: set it to false, "
            "and lower batch.micro_tokens to save memory"
        )
    for layer in layers:
        layer.enable_recompute = True
