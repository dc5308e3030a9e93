"""The network of a task: from a configuration with new weights, from a folder, or by a PaddleNLP name.

1. Take the configuration: from the settings, or from the published model; put the task's labels in.
2. Build the network and draw *every* new weight from a generator keyed by (seed, structured name). Paddle's own
   generators would make weights depend on the device and on what was built before.
3. Put published weights over them (`pretrained.put`).
4. Freeze what the task never reaches, so that weight decay does not wear it down.

Importing this costs about 3 s beside Paddle's own 1.5 s: PaddleNLP imports all of itself, whatever is asked for.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from paddlenlp.layers import Linear as TransposedLinear

from headrace.schemas.errors import UsageError
from headrace.trainer import custom, pretrained, weights
from headrace.trainer.config import ClassificationTask, CustomTask, Task
from headrace.trainer.families import Family, family, nearest, type_of_name
from headrace.trainer.weights import Arrays


@dataclass(frozen=True, slots=True)
class Built:
    """A network (dropout on, as configured) and what a loader needs beside its weights."""

    network: Any
    config_json: str
    files: Mapping[str, bytes]  # config.json, and the tokenizer's files of a model folder
    max_tokens: int  # no row may be longer


def build(task: Task, model: str | Mapping[str, Any], vocab_size: int, pad_id: int, seed: int) -> Built:
    """The network for `task`. `model` is the setting of that name; `vocab_size` and `pad_id` are the tokenizer's.

    Raises UsageError where these do not fit each other, StoreAway where a hub does not answer.
    """
    labels = task.labels if isinstance(task, ClassificationTask) else ()
    published: Arrays = {}
    files: dict[str, bytes] = {}
    if isinstance(model, str):
        folder = pretrained.folder_of(model)
        kind = family(pretrained.model_type(folder) if folder is not None else type_of_name(model))
        config = pretrained.config_of(model, folder, kind.config)
    else:
        kind = family(model.get("model_type", "ernie"))
        config = _configured(kind, {"vocab_size": vocab_size, "pad_token_id": pad_id, **model})
    if getattr(config, "recompute_granularity", "") == "full":
        config.recompute_granularity = "core_attn"  # GPT's layers do nothing at "full", whatever train.recompute says
    make = custom.network_of(task, kind.encoder) if isinstance(task, CustomTask) else kind.network(task.type)
    if isinstance(model, str):
        published = pretrained.arrays_of(model, folder, config, kind.encoder)
        published = pretrained.without_foreign_head(published, config, labels)
        files = pretrained.companions(folder)
    _check_tokenizer(config, vocab_size, pad_id)
    _describe(config, labels, multi_label=isinstance(task, ClassificationTask) and task.multi_label)
    network = make(config)
    config.architectures = [type(network).__name__]
    _draw(network, config, kind, seed)
    if isinstance(model, str):
        pretrained.put(network, published, model, kind.encoder)
    for name, parameter in network.named_parameters():
        if name.startswith(kind.unused.get(task.type, ())):
            parameter.stop_gradient = True
    network.train()
    config_json = str(config.to_json_string())
    files[weights.CONFIG_NAME] = config_json.encode()
    return Built(network, config_json, files, kind.most_tokens(config))


def _configured(kind: Family, settings: Mapping[str, Any]) -> Any:
    """Configuration from the settings. PaddleNLP swallows unknown keys, so they are refused here."""
    known = [name for name in inspect.signature(kind.config.__init__).parameters if name not in ("self", "kwargs")]
    known += ["model_type", "classifier_dropout"]
    for key in settings:
        if key not in known:
            raise UsageError(f"model: unknown key {key!r}: {nearest(str(key), known)}")
    config = kind.config(**{key: value for key, value in settings.items() if key != "model_type"})
    if config.hidden_size % config.num_attention_heads:
        raise UsageError(
            f"model: hidden_size {config.hidden_size} is not a multiple of num_attention_heads "
            f"{config.num_attention_heads}: change one of them"
        )
    if getattr(config, "use_flash_attention", False):
        raise UsageError("model: use_flash_attention ignores the mask that keeps documents apart: remove it")
    return config


def _check_tokenizer(config: Any, vocab_size: int, pad_id: int) -> None:
    """Ids outside the embedding table read foreign memory on some devices: refuse them here, once."""
    if vocab_size > config.vocab_size:
        raise UsageError(
            f"model: its vocabulary has {config.vocab_size} entries, the tokenizer's has {vocab_size}: "
            "use the tokenizer that belongs to the model (tokenizer.path)"
        )
    if pad_id != config.pad_token_id:
        raise UsageError(
            f"model: it pads with id {config.pad_token_id}, the tokenizer with {pad_id}: "
            "use the tokenizer that belongs to the model (tokenizer.path)"
        )


def _describe(config: Any, labels: tuple[str, ...], *, multi_label: bool) -> None:
    """What users and PaddleNLP read from config.json: the labels by number, and whether a text may have several."""
    if labels:
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: number for number, label in enumerate(labels)}
        config.problem_type = "multi_label_classification" if multi_label else None
    config.dtype = "float32"


def _draw(network: Any, config: Any, kind: Family, seed: int) -> None:
    """Weights of linear and embedding layers from a normal distribution, as PaddleNLP does; the rest is constant."""
    for name, layer in network.named_sublayers():
        if isinstance(layer, paddle.nn.Linear | paddle.nn.Embedding | TransposedLinear):
            key = hashlib.sha256(f"weights {seed} {name}".encode()).digest()
            generator = np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "big")))
            drawn = generator.standard_normal(tuple(layer.weight.shape), dtype=np.float32)
            shrunk = kind.shrunk and name.endswith(kind.shrunk)
            deviation = config.initializer_range / (math.sqrt(2 * config.num_hidden_layers) if shrunk else 1.0)
            layer.weight.set_value(drawn * np.float32(deviation))
