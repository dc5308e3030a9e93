"""Texts to labels: through an exported folder or a checkpoint, with the tokenizer that stands beside the model.

    messages ──decode, tokenize as ingest does──> rows ──by length──> batches ──model──> probabilities ──> input's order

Every text gives one prediction or the reason why it has none. Rows are sorted by length within a run of texts (some
thousands) and cut into batches of `BATCH_TOKENS` padded tokens.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.ingest import tokenizers
from headrace.ingest.config import LongText, TokenizerConfig
from headrace.ingest.decode import decode
from headrace.ingest.fields import FieldRules
from headrace.ingest.formats import Rules
from headrace.ingest.rows import tokenize
from headrace.ingest.tokenizers import Tokenizer
from headrace.pipeline.child import Channel
from headrace.pipeline.config import FieldNames
from headrace.pipeline.topics import Message
from headrace.schemas.errors import BadRecord, UsageError
from headrace.schemas.record import TextFormat
from headrace.trainer.collate import pad
from headrace.trainer.config import ClassificationTask
from headrace.trainer.export import folder as exported
from headrace.trainer.export import runners, source
from headrace.trainer.window import row_lengths

BATCH_TOKENS = 16_384
_MAX_TEXT_BYTES = 1_000_000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a model makes of one text; or `error`, why it has nothing to say."""

    line: int  # of the input, from 1
    text: str = ""
    labels: tuple[str, ...] = ()  # the most probable one; where a text may have several, those above one half
    probabilities: tuple[float, ...] = ()  # of every class, in the model's order
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Predictor:
    """A classifier that is loaded, with its tokenizer."""

    run: runners.Runner
    tokenizer: Tokenizer
    classes: tuple[str, ...]
    multi_label: bool = False

    def predict(self, messages: Sequence[Message], rules: Rules) -> Iterator[Prediction]:
        """One prediction a message, in their order; `line` is the message's offset."""
        for decoded in decode(messages, rules, {}):
            rows, bad = tokenize(decoded, self.tokenizer, LongText.TRUNCATE)
            found = [
                Prediction(letter.origin.offset, error=str(BadRecord(letter.reason, letter.detail))) for letter in bad
            ]
            probabilities = self.probabilities(rows).tolist()
            lines = rows.column("offset").to_pylist()
            texts = decoded.records.column("text").to_pylist()
            for line, text, row in zip(lines, texts, probabilities, strict=True):
                found.append(Prediction(line, text, self.chosen(row), tuple(row)))
            yield from sorted(found, key=lambda each: each.line)

    def chosen(self, probabilities: Sequence[float]) -> tuple[str, ...]:
        """The labels of a text with these probabilities."""
        if self.multi_label:
            return tuple(label for label, each in zip(self.classes, probabilities, strict=True) if each > 0.5)
        return (self.classes[max(range(len(probabilities)), key=probabilities.__getitem__)],)

    def probabilities(self, rows: pa.RecordBatch) -> np.ndarray:
        """[B, C] float32, of rows of the tokens schema, in their order."""
        scores = np.zeros((rows.num_rows, len(self.classes)), np.float32)
        for chosen in batches(row_lengths(rows)):
            arrays = pad(rows.take(pa.array(chosen)), self.tokenizer.special_ids["pad"], 1)
            scores[chosen] = self.run(arrays)[1]
        return scores


def batches(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Numbers of rows that go through the model together: like lengths, at most BATCH_TOKENS with padding."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        count = max(1, BATCH_TOKENS // max(1, int(lengths[order[start]])))
        yield order[start : start + count]
        start += count


@contextmanager
def opened(address: str) -> Iterator[Predictor]:
    """The predictor of an exported folder, or of a checkpoint or run as `export.source` finds it.

    Raises UsageError for what is neither, and for a model that has no classes.
    """
    with ExitStack() as stack:
        path = Path(address).expanduser()
        manifest = exported.read_manifest(path) if "://" not in address else None
        if manifest is not None:
            task = source.task_of({f"train.task.{name}": value for name, value in manifest["task"].items()})
            settings, fingerprint, form = (
                manifest["tokenizer"]["settings"],
                manifest["tokenizer"]["fingerprint"],
                manifest["form"],
            )
        else:
            found = source.find(address)
            path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-")))
            exported.write_model(found, path)
            state = found.checkpoint.state
            task, settings, form = found.task, source.tokenizer_settings(state.settings), "safetensors"
            fingerprint = state.meta.fingerprint if state.meta is not None else None
        if not isinstance(task, ClassificationTask):
            raise UsageError(
                f"{address} is a model for {task.type}, which gives no labels: predict takes classifiers; "
                "others are run through the exported graph (docs/serving.md)"
            )
        tokenizer = tokenizer_of(path, settings, fingerprint)
        yield Predictor(_runner(path, form, task, tokenizer), tokenizer, task.labels, task.multi_label)


def _runner(folder: Path, form: str, task: ClassificationTask, tokenizer: Tokenizer) -> runners.Runner:
    if form == "static":
        return runners.static(folder)
    if form == "onnx":
        return runners.onnx(folder)
    return runners.eager(folder, task, tokenizer.vocab_size, tokenizer.special_ids["pad"])


def tokenizer_of(folder: Path, settings: Mapping[str, Any], fingerprint: str | None) -> Tokenizer:
    """The tokenizer beside a model, as it was set for training.

    One text is one row here, whatever `long_text` and `words` made of it there: neither changes ids.
    """
    config = TokenizerConfig.model_validate({**(settings or _guessed(folder)), "path": str(folder)})
    tokenizer = tokenizers.find(str(folder), tokenizers.options(config)).load()
    if fingerprint is not None and tokenizer.fingerprint != fingerprint:
        _log.warning(
            "the tokenizer in %s is not the one that the model was trained with: its files or settings differ, and "
            "predictions may be worse",
            folder,
        )
    whole = config.model_copy(update={"long_text": LongText.TRUNCATE, "words": ""})
    return tokenizers.find(str(folder), tokenizers.options(whole)).load() if whole != config else tokenizer


def _guessed(folder: Path) -> dict[str, Any]:
    """For checkpoints that do not keep the tokenizer's settings: the longest row that the model takes."""
    config = json.loads((folder / "config.json").read_bytes())
    return {"max_tokens": int(config["max_position_embeddings"])}


def rules_of(fields: FieldNames, form: TextFormat, max_text_bytes: int = _MAX_TEXT_BYTES) -> Rules:
    """How texts that are to be predicted are read. Any label will do: it is not looked at."""
    return Rules("input", form, FieldRules(fields, max_text_bytes))


def work(args: dict[str, Any], channel: Channel) -> None:
    """The same in a process of its own: reports `labels`, one for each of `texts`, by the `model` at an address."""
    messages = [Message(0, number, 0, text.encode()) for number, text in enumerate(args["texts"], 1)]
    with opened(args["model"]) as predictor:
        found = list(predictor.predict(messages, rules_of(FieldNames(), TextFormat.TEXT)))
    channel.report({"event": "predicted", "labels": [" ".join(each.labels) for each in found]})
