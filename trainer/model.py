"""The network of a task: from a configuration with new weights, from a folder, or by a PaddleNLP name.

1. Take the configuration: from the settings, or from the published model; put the task's labels in.
2. Build the network and draw *every* new weight from a generator keyed by (seed, structured name). Paddle's own
   generators would make weights depend on the device and on what was built before.
3. Put published weights over them (`pretrained.put`).
4. Freeze what the task never reaches, so that weight decay does not wear it down.

Importing this costs about 3 s beside Paddle's own 1.5 s: PaddleNLP imports all of itself, whatever is asked for.
"""

from __future__ import annotations

import difflib
import hashlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from paddlenlp.layers import Linear as TransposedLinear
from paddlenlp.transformers.ernie.configuration import ErnieConfig
from paddlenlp.transformers.ernie.modeling import ErnieForMaskedLM, ErnieForSequenceClassification

from headrace.schemas.errors import UsageError
from headrace.trainer import pretrained, weights
from headrace.trainer.config import ClassificationTask, MaskedLmTask
from headrace.trainer.weights import Arrays


@dataclass(frozen=True, slots=True)
class Built:
    """A network (dropout on, as configured) and what a loader needs beside its weights."""

    network: Any
    config_json: str
    files: Mapping[str, bytes]  # config.json, and the tokenizer's files of a model folder
    max_tokens: int  # no row may be longer


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of encoder in PaddleNLP."""

    config: type[Any]
    networks: Mapping[str, type[Any]]  # by task type
    unused: Mapping[str, tuple[str, ...]]  # by task type: prefixes of parameters that its forward pass never reaches


def _ernie() -> Family:
    return Family(
        config=ErnieConfig,
        networks={"classification": ErnieForSequenceClassification, "masked-lm": ErnieForMaskedLM},
        unused={"masked-lm": ("ernie.pooler.",)},
    )


#: `model_type` -> what it is made of.
FAMILIES: dict[str, Callable[[], Family]] = {"ernie": _ernie}


def build(
    task: ClassificationTask | MaskedLmTask, model: str | Mapping[str, Any], vocab_size: int, pad_id: int, seed: int
) -> Built:
    """The network for `task`. `model` is the setting of that name; `vocab_size` and `pad_id` are the tokenizer's.

    Raises UsageError where these do not fit each other, StoreAway where a hub does not answer.
    """
    labels = task.labels if isinstance(task, ClassificationTask) else ()
    published: Arrays = {}
    files: dict[str, bytes] = {}
    if isinstance(model, str):
        folder = pretrained.folder_of(model)
        family = _family(pretrained.model_type(folder))
        config = pretrained.config_of(model, folder, family.config)
        published = pretrained.arrays_of(model, folder, config, family.networks[task.type])
        published = pretrained.without_foreign_head(published, config, labels)
        files = pretrained.companions(folder)
    else:
        family = _family(model.get("model_type", "ernie"))
        config = _configured(family, {"vocab_size": vocab_size, "pad_token_id": pad_id, **model})
    _check_tokenizer(config, vocab_size, pad_id)
    _describe(config, family.networks[task.type], labels)
    network = family.networks[task.type](config)
    _draw(network, config.initializer_range, seed)
    if isinstance(model, str):
        pretrained.put(network, published, model)
    for name, parameter in network.named_parameters():
        if name.startswith(family.unused.get(task.type, ())):
            parameter.stop_gradient = True
    network.train()
    config_json = str(config.to_json_string())
    files[weights.CONFIG_NAME] = config_json.encode()
    return Built(network, config_json, files, int(config.max_position_embeddings))


def _family(model_type: str) -> Family:
    if model_type not in FAMILIES:
        raise UsageError(f"model: model_type {model_type!r} is not known: {_nearest(model_type, list(FAMILIES))}")
    return FAMILIES[model_type]()


def _configured(family: Family, settings: Mapping[str, Any]) -> Any:
    """Configuration from the settings. PaddleNLP swallows unknown keys, so they are refused here."""
    known = [name for name in inspect.signature(family.config.__init__).parameters if name not in ("self", "kwargs")]
    known += ["model_type", "classifier_dropout"]
    for key in settings:
        if key not in known:
            raise UsageError(f"model: unknown key {key!r}: {_nearest(str(key), known)}")
    config = family.config(**{key: value for key, value in settings.items() if key != "model_type"})
    if config.hidden_size % config.num_attention_heads:
        raise UsageError(
            f"model: hidden_size {config.hidden_size} is not a multiple of num_attention_heads "
            f"{config.num_attention_heads}: change one of them"
        )
    return config


def _nearest(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"


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


def _describe(config: Any, network_type: type[Any], labels: tuple[str, ...]) -> None:
    """What `AutoModel` and users read from config.json: the class, and the labels by number."""
    if labels:
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: number for number, label in enumerate(labels)}
    config.architectures = [network_type.__name__]
    config.dtype = "float32"


def _draw(network: Any, deviation: float, seed: int) -> None:
    """Weights of linear and embedding layers from a normal distribution, as PaddleNLP does; the rest is constant."""
    for name, layer in network.named_sublayers():
        if isinstance(layer, paddle.nn.Linear | paddle.nn.Embedding | TransposedLinear):
            key = hashlib.sha256(f"weights {seed} {name}".encode()).digest()
            generator = np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "big")))
            drawn = generator.standard_normal(tuple(layer.weight.shape), dtype=np.float32)
            layer.weight.set_value(drawn * np.float32(deviation))
