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
_OPTIONAL = ("pooler.", "embeddings.task_type_embeddings.")


def folder_of(model: str) -> Path | None:
    """The model's folder; None for a hub name."""
    folder = Path(model).expanduser()
    if model and folder.is_dir():
        return folder
    if not model or model.startswith(("/", ".", "~")):
        raise UsageError(f"model: there is no folder {model!r}: correct the path, or give a PaddleNLP name")
    return None


def model_type(folder: Path | None) -> str:
    """What a folder's configuration says it is; hubs and old folders say nothing and mean ERNIE."""
    if folder is None:
        return "ernie"
    for name in (weights.CONFIG_NAME, _LEGACY_CONFIG_NAME):
        if (folder / name).is_file():
            try:
                return str(json.loads((folder / name).read_text()).get("model_type", "ernie"))
            except (ValueError, AttributeError) as error:
                raise UsageError(f"model: {folder / name} is not a JSON object ({error}): fetch it again") from error
    raise UsageError(f"model: {folder} holds no {weights.CONFIG_NAME}: name a folder in PaddleNLP's layout")


def config_of(model: str, folder: Path | None, config_type: type[Any]) -> Any:
    """PaddleNLP's configuration object."""
    try:
        return config_type.from_pretrained(str(folder or model))
    except Exception as error:
        raise _unreachable("configuration", model, error) from error


def arrays_of(model: str, folder: Path | None, config: Any, network_type: type[Any]) -> dict[str, np.ndarray]:
    """The published weights."""
    if folder is not None:
        return weights.read(weights.find(folder))
    try:
        path, shards, _, _ = network_type._resolve_model_file_path(model, config=config)
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
    head = arrays.get("classifier.bias")
    if head is None or not labels:
        return arrays
    found = {int(number): str(label) for number, label in (config.id2label or {}).items()}
    unnamed = all(label == f"LABEL_{number}" for number, label in found.items())
    if head.shape == (len(labels),) and (unnamed or found == dict(enumerate(labels))):
        return arrays
    _log.warning("model: its classifier was made for %s: a new one is trained", list(found.values()))
    return {name: array for name, array in arrays.items() if not name.startswith("classifier.")}


def put(network: Any, arrays: Arrays, model: str) -> None:
    """Set the network's weights. Published files name an encoder's weights with or without the model's prefix.

    The encoder must be there as a whole; what else is missing (a head) keeps its new weights.
    """
    prefix = f"{network.base_model_prefix}."
    bare = not any(name.startswith(prefix) for name in arrays)
    tensors = network.state_dict()
    stored = {name: name.removeprefix(prefix) if bare else name for name in tensors}
    placed = set()
    for name, tensor in tensors.items():
        array = arrays.get(stored[name])
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


def _unreachable(what: str, model: str, error: Exception) -> StoreAway:
    return StoreAway(
        f"model: no {what} for {model!r} ({error}): it is no folder here and PaddleNLP's hub did not give it; "
        "check the name and the network, or download the model and name its folder"
    )
