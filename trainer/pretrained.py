"""Published models: where their configuration and weights lie, and how they go into a network.

Folders go before hub names, and what looks like a path is never looked up in the hub. PaddleNLP's hub is asked through
PaddleNLP, which locks its cache: one download per node, the other ranks wait for it. Its files are read by
`weights.read`, because PaddleNLP would unpickle them. No import of Paddle: the caller hands in its classes.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np

from headrace.schemas.errors import StoreAway, UsageError
from headrace.trainer import weights
from headrace.trainer.weights import Arrays

_log = logging.getLogger(__name__)

_LEGACY_CONFIG_NAME = "model_config.json"
#: Files of a model folder that travel with the checkpoints, where they are there.
_COMPANIONS = ("vocab.txt", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.json", "added_tokens.json")
#: Parts of an encoder that not every published model has.
_OPTIONAL = ("pooler.", "embeddings.task_type_embeddings.", "embeddings.rel_pos_embeddings.")
#: How the names of PaddleNLP's classes begin, and the model type that they mean.
_CLASSES = {"ErnieGram": "ernie_gram", "Ernie": "ernie", "Bert": "bert", "Roberta": "roberta", "GPT": "gpt"}
#: Biases of the last layer of a classifier.
_HEADS = ("classifier.bias", "classifier.out_proj.bias")


def folder_of(model: str) -> Path | None:
    """The model's folder; None for a hub name."""
    folder = Path(model).expanduser()
    if model and folder.is_dir():
        return folder
    if not model or model.startswith(("/", ".", "~")):
        raise UsageError(f"model: there is no folder {model!r}: correct the path, or give a PaddleNLP name")
    return None


def model_type(folder: Path) -> str:
    """What a folder's configuration says it is. Old folders name a class only; one that says nothing means ERNIE."""
    for name in (weights.CONFIG_NAME, _LEGACY_CONFIG_NAME):
        if (folder / name).is_file():
            try:
                config = json.loads((folder / name).read_text())
                network = str(config.get("init_class") or (config.get("architectures") or [""])[0])
                by_class = next((kind for prefix, kind in _CLASSES.items() if network.startswith(prefix)), "ernie")
                return str(config.get("model_type", by_class))
            except (ValueError, AttributeError) as error:
                raise UsageError(f"model: {folder / name} is not a JSON object ({error}): fetch it again") from error
    raise UsageError(f"model: {folder} holds no {weights.CONFIG_NAME}: name a folder in PaddleNLP's layout")


def config_of(model: str, folder: Path | None, config_type: type[Any]) -> Any:
    """PaddleNLP's configuration object."""
    try:
        return config_type.from_pretrained(str(folder or model))
    except Exception as error:
        raise _unreachable("configuration", model, error) from error


def arrays_of(model: str, folder: Path | None, config: Any, encoder_type: type[Any]) -> dict[str, np.ndarray]:
    """The published weights."""
    if folder is not None:
        return weights.read(weights.find(folder))
    try:
        path, shards, _, _ = encoder_type._resolve_model_file_path(model, config=config)
    except Exception as error:
        raise _unreachable("weights", model, error) from error
    arrays: dict[str, np.ndarray] = {}
    for file in shards or [path]:
        arrays.update(weights.read(Path(file)))
    return arrays


def companions(folder: Path | None) -> dict[str, bytes]:
    """The tokenizer's files of a model folder."""
    if folder is None:
        return {}
    return {name: (folder / name).read_bytes() for name in _COMPANIONS if (folder / name).is_file()}


def without_foreign_head(arrays: Arrays, config: Any, labels: tuple[str, ...]) -> Arrays:
    """Leave out a classifier that was trained for other labels, or for these in another order."""
    head = next((arrays[name] for name in _HEADS if name in arrays), None)
    if head is None or not labels:
        return arrays
    found = {int(number): str(label) for number, label in (config.id2label or {}).items()}
    unnamed = all(label == f"LABEL_{number}" for number, label in found.items())
    if head.shape == (len(labels),) and (unnamed or found == dict(enumerate(labels))):
        return arrays
    _log.warning("model: its classifier was made for %s: a new one is trained", list(found.values()))
    return {name: array for name, array in arrays.items() if not name.startswith("classifier.")}


def put(network: Any, arrays: Arrays, model: str, encoder_type: type[Any]) -> None:
    """Set the network's weights. Published files name an encoder's weights with or without the model's prefix.

    The encoder must be there as a whole; what else is missing (a head) keeps its new weights. A user's network may hold
    the encoder under another name.
    """
    published = f"{encoder_type.base_model_prefix}."
    bare = not any(name.startswith(published) for name in arrays)
    prefix = _prefix(network, encoder_type)
    tensors = network.state_dict()
    placed = set()
    for name, tensor in tensors.items():
        array = arrays.get(name)
        if array is None and name.startswith(prefix):
            array = arrays.get(("" if bare else published) + name.removeprefix(prefix))
        if array is None:
            continue
        if list(array.shape) != list(tensor.shape):
            raise UsageError(
                f"model: {name} has shape {list(array.shape)} in {model!r}, its configuration says "
                f"{list(tensor.shape)}: config.json and weights must come from the same model"
            )
        tensor.set_value(array.astype(np.float32))
        placed.add(tensor.name)
    missing = [name for name, tensor in tensors.items() if tensor.name not in placed]  # a tied weight has two names
    lost = [name for name in missing if name.startswith(prefix) and not name[len(prefix) :].startswith(_OPTIONAL)]
    if lost:
        raise UsageError(
            f"model: {model!r} lacks weights of the encoder ({', '.join(lost[:3])}; {len(lost)} in all): "
            "config.json and weights must come from the same model"
        )
    if missing:
        _log.warning("model: new weights for %s, which %s does not have", ", ".join(missing), model)


def _prefix(network: Any, encoder_type: type[Any]) -> str:
    """How the names of the encoder's weights begin in the network."""
    for name, layer in network.named_sublayers(include_self=True):
        if isinstance(layer, encoder_type):
            return f"{name}." if name else ""
    raise UsageError(
        f"train.task.type: its network holds no {encoder_type.__name__}, so published weights have no place in it: "
        "build one from the configuration that it is given, or set train.model to a configuration"
    )


def _unreachable(what: str, model: str, error: Exception) -> StoreAway:
    return StoreAway(
        f"model: no {what} for {model!r} ({error}): it is no folder here and PaddleNLP's hub did not give it; "
        "check the name and the network, or download the model and name its folder"
    )
