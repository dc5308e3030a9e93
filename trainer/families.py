"""The families of PaddleNLP models that can be trained: their classes, and where they differ.

Nothing of PaddleNLP is imported before a family is asked for: its model modules cost seconds.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.schemas.errors import UsageError


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of model in PaddleNLP."""

    config: type[Any]
    encoder: type[Any]  # without a head
    networks: Mapping[str, type[Any]]  # by task type
    unused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By task type: prefixes of parameters that its forward pass never reaches."""
    shrunk: tuple[str, ...] = ()
    """Ends of names of weights whose deviation is divided by sqrt(2 * layers) when they are new."""
    positions_from_padding: bool = False
    """Whether positions are counted from the padding's id + 1, as in RoBERTa, and not from 0."""

    def network(self, task_type: str) -> type[Any]:
        """The class for a task. Raises UsageError with what goes with the task, and with the model."""
        if task_type in self.networks:
            return self.networks[task_type]
        others = [name for name, make in FAMILIES.items() if task_type in make().networks]
        raise UsageError(
            f"train.task.type: {task_type} does not go with a model of type {self.config.model_type}: set train.model "
            f"to one of type {' or '.join(others)}, or the task to {' or '.join(self.networks)}"
        )

    def most_tokens(self, config: Any) -> int:
        """Longest row that the position embeddings hold."""
        skipped = config.pad_token_id + 1 if self.positions_from_padding else 0
        return int(config.max_position_embeddings) - skipped


def _ernie() -> Family:
    from paddlenlp.transformers.ernie.configuration import ErnieConfig
    from paddlenlp.transformers.ernie.modeling import ErnieForMaskedLM, ErnieForSequenceClassification, ErnieModel

    return Family(
        config=ErnieConfig,
        encoder=ErnieModel,
        networks={"classification": ErnieForSequenceClassification, "masked-lm": ErnieForMaskedLM},
        unused={"masked-lm": ("ernie.pooler.",)},
    )


def _ernie_gram() -> Family:
    """PaddleNLP has no masked-lm head for it, and its forward pass does not use the relative positions."""
    from paddlenlp.transformers.ernie_gram.configuration import ErnieGramConfig
    from paddlenlp.transformers.ernie_gram.modeling import ErnieGramForSequenceClassification, ErnieGramModel

    return Family(
        config=ErnieGramConfig,
        encoder=ErnieGramModel,
        networks={"classification": ErnieGramForSequenceClassification},
        unused={"classification": ("ernie_gram.embeddings.rel_pos_embeddings.",)},
    )


def _bert() -> Family:
    from paddlenlp.transformers.bert.configuration import BertConfig
    from paddlenlp.transformers.bert.modeling import BertForMaskedLM, BertForSequenceClassification, BertModel

    return Family(
        config=BertConfig,
        encoder=BertModel,
        networks={"classification": BertForSequenceClassification, "masked-lm": BertForMaskedLM},
        unused={"masked-lm": ("bert.pooler.",)},
    )


def _roberta() -> Family:
    from paddlenlp.transformers.roberta.configuration import RobertaConfig
    from paddlenlp.transformers.roberta.modeling import (
        RobertaForMaskedLM,
        RobertaForSequenceClassification,
        RobertaModel,
    )

    return Family(
        config=RobertaConfig,
        encoder=RobertaModel,
        networks={"classification": RobertaForSequenceClassification, "masked-lm": RobertaForMaskedLM},
        positions_from_padding=True,
    )


def _gpt() -> Family:
    from paddlenlp.transformers.gpt.configuration import GPTConfig
    from paddlenlp.transformers.gpt.modeling import GPTForCausalLM, GPTModel

    return Family(
        config=GPTConfig,
        encoder=GPTModel,
        networks={"causal-lm": GPTForCausalLM},
        shrunk=(".linear2", ".out_proj"),
    )


#: `model_type` -> what it is made of.
FAMILIES: dict[str, Callable[[], Family]] = {
    "ernie": _ernie,
    "ernie_gram": _ernie_gram,
    "bert": _bert,
    "roberta": _roberta,
    "gpt": _gpt,
}


def family(model_type: str) -> Family:
    """Raises UsageError for a model type that cannot be trained."""
    if model_type not in FAMILIES:
        raise UsageError(f"model: model_type {model_type!r} is not known: {nearest(model_type, list(FAMILIES))}")
    return FAMILIES[model_type]()


def type_of_name(name: str) -> str:
    """The family of a model that PaddleNLP knows by name; what it does not know means ERNIE."""
    for model_type, make in FAMILIES.items():
        if name in make().config.pretrained_init_configuration:
            return model_type
    return "ernie"


def nearest(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
