"""Settings of the trainer: model, task, global batch, optimizer, ends, checkpoints."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from headrace.pipeline.config import BrokerConfig, TokensConfig
from headrace.schemas.settings import Number, Settings, Start
from headrace.trainer.communication import CommunicationConfig


class ClassificationTask(Settings):
    """Labels of a text or of a pair of texts."""

    type: Literal["classification"]
    """`classification`."""
    labels: tuple[str, ...] = Field(min_length=2)
    """The classes, in the order of the model's outputs."""
    multi_label: bool = False
    """Whether a record may have several of the labels, or none; else it has exactly one."""

    @model_validator(mode="after")
    def _distinct(self) -> ClassificationTask:
        if len(set(self.labels)) != len(self.labels):
            raise ValueError("labels: each label once")
        return self


class MaskedLmTask(Settings):
    """Predict masked tokens."""

    type: Literal["masked-lm"]
    """`masked-lm`."""
    mask_share: float = Field(default=0.15, gt=0, lt=1)
    """Share of a row's tokens that is masked: 80 % by [MASK], 10 % by a random token, 10 % kept."""
    mask_unit: Literal["token", "word"] = "token"
    """What is masked together."""


class CausalLmTask(Settings):
    """Predict the next token of a document."""

    type: Literal["causal-lm"]
    """`causal-lm`."""


class CustomTask(Settings):
    """A task of your own (docs/tasks.md)."""

    type: str = Field(examples=["package.module:Class"])
    """Import path of the class; its module lies in the working directory or is installed."""
    options: dict[str, Any] = Field(default_factory=dict)
    """What the class is made with: its keyword arguments."""

    @field_validator("type")
    @classmethod
    def _an_import_path(cls, path: str) -> str:
        module, _, name = path.partition(":")
        if not all(part.isidentifier() for part in [*module.split("."), name]):
            raise ValueError(f"{path!r} is no import path: write `package.module:Class`")
        return path


def _kind(task: Any) -> str | None:
    """Which kind of task a section is, by its `type`."""
    type_ = task.get("type") if isinstance(task, dict) else getattr(task, "type", None)
    return ("custom" if ":" in type_ else type_) if isinstance(type_, str) else None


Task = Annotated[
    Annotated[ClassificationTask, Tag("classification")]
    | Annotated[MaskedLmTask, Tag("masked-lm")]
    | Annotated[CausalLmTask, Tag("causal-lm")]
    | Annotated[CustomTask, Tag("custom")],
    Discriminator(_kind),
]


class BatchConfig(Settings):
    """The global batch: what one step trains, over all ranks."""

    tokens: int = Field(default=65_536, ge=64)
    """Padded tokens of a global batch; a step takes the same part of it from every lane."""
    min_tokens: int = Field(default=0, ge=0)
    """At the end of the stream, wait up to `flush_s` for a batch of at least this size."""
    flush_s: float = Field(default=5.0, gt=0)
    """Longest wait for more records once a lane is at its end: bounds freshness and how long a rank can be held up."""
    micro_tokens: int = Field(default=16_384, ge=64)
    """Most padded tokens in one forward pass, for memory: a smaller one gives the same global batch in more passes."""
    pad_multiple: int = Field(default=1, ge=1, le=128)
    """Rows are padded to a multiple of it. 8 suits the tensor cores of GPUs, and costs some 4 % on short texts."""


class OptimizerConfig(Settings):
    """AdamW."""

    learning_rate: Number = Field(default=2e-5, gt=0)
    """Highest learning rate."""
    schedule: Literal["auto", "constant", "linear", "cosine"] = "auto"
    """After warm-up; `auto` is linear for a bounded run and constant for an endless one."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps of linear warm-up."""
    warmup_share: Number = Field(default=0.0, ge=0, lt=1)
    """Warm-up as a share of the run, where its length is known when it begins."""
    total_steps: int | None = Field(default=None, ge=1)
    """Where the schedule ends; unset takes it from `stop`: its steps, or the end of the lanes once that is fixed."""
    warmup_tokens: int = Field(default=0, ge=0)
    """Warm-up in tokens (without padding) instead of steps."""
    total_tokens: int | None = Field(default=None, ge=1)
    """Where the schedule ends, in tokens (without padding) instead of steps."""
    weight_decay: Number = Field(default=0.01, ge=0)
    """Decoupled decay."""
    no_decay: tuple[str, ...] | None = None
    """Parameters that do not decay, as patterns of their names such as `"*.bias"`; unset: all of one dimension (biases,
    normalisation)."""
    beta1: Number = Field(default=0.9, ge=0, lt=1)
    """Decay of the first moment."""
    beta2: Number = Field(default=0.999, ge=0, lt=1)
    """Decay of the second moment."""
    epsilon: Number = Field(default=1e-8, gt=0)
    """Added to the denominator."""
    clip_norm: Number = Field(default=1.0, gt=0)
    """Gradients are scaled down to this global norm."""

    @model_validator(mode="after")
    def _one_measure(self) -> OptimizerConfig:
        if self.total_steps is not None and self.total_tokens is not None:
            raise ValueError("total_steps and total_tokens both say where the schedule ends: set one")
        if self.warmup_tokens and (self.warmup_steps or self.warmup_share):
            raise ValueError("warmup_tokens takes the place of warmup_steps and warmup_share: set one")
        return self


class StopSteps(Settings):
    """End after a number of steps."""

    steps: int = Field(ge=1)
    """Optimizer steps, counted from the run's first."""


class StopTime(Settings):
    """End at the token batches that ingest appended to the lanes before a moment."""

    time: AwareDatetime
    """With an offset, such as 2026-11-30T00:00+08:00."""


def _not_a_boolean(value: Any) -> Any:
    """YAML 1.1 reads `no` and `off` as booleans: say so instead of a type error."""
    if isinstance(value, bool):
        raise ValueError("YAML read this as a boolean: put the word in quotes")
    return value


Stop = Annotated[Literal["never", "end"] | StopSteps | StopTime, BeforeValidator(_not_a_boolean)]


#: Settings of Fleet's hybrid parallelism, as a PaddleNLP model's configuration spells them.
HYBRID = ("tensor_parallel_degree", "pipeline_parallel_degree", "sep_parallel_degree", "context_parallel_degree")


class TrainConfig(Settings):
    """The trainer stage."""

    run: str = Field(default="main", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """A lineage of checkpoints with a ledger of its own."""
    model: str | dict[str, Any] = Field(default_factory=dict)
    """Directory with weights (a checkpoint is one), a PaddleNLP name, `run:NAME` or `run:NAME@STEP` for the weights of
    another run, or a model configuration (then weights are random)."""
    task: Task
    """What is learnt."""
    seed: int = Field(default=42, ge=0, lt=2**63)
    """Decides shuffling, masking, dropout and new weights."""
    start: Start = "earliest"
    """Where a new run starts in the lanes: `earliest`, `latest` or `{time: T}`. Resolved once."""
    stop: Stop = "never"
    """`never`, `end` (what is in the text topic when the run starts), `{steps: N}` or `{time: T}`."""
    passes: int = Field(default=1, ge=1)
    """How often a run that stops at `end` or at a time goes over its records, each time in another order."""
    batch: BatchConfig = BatchConfig()
    """The global batch."""
    window_tokens: int = Field(default=1_048_576, ge=64)
    """Tokens of one lane that are shuffled and sorted by length together."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """AdamW and its schedule."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Arithmetic of forward and backward pass; `auto` is bf16 where the device supports it, fp32 on CPUs."""
    amp_level: Literal["O1", "O2"] = "O1"
    """With bf16 and fp16. O1: weights are float32 and are cast for each operation; O2: the network keeps them in half
    precision, the optimizer in float32."""
    recompute: bool = False
    """Keep fewer activations and compute the rest again in the backward pass: less memory, a second forward pass."""
    on_bad_loss: Literal["stop", "skip"] = "stop"
    """What to do with a step whose loss is not finite, or a spike: stop and name the records, or go on without them."""
    spike_factor: Number | None = Field(default=None, gt=1)
    """A loss above this many times the median of the last `spike_steps` is a spike; unset: only what is not finite is
    bad."""
    spike_steps: int = Field(default=100, ge=1, le=10_000)
    """Steps whose median loss a spike is measured by; nothing is a spike before there are so many."""
    most_skips: int = Field(default=10, ge=1)
    """With `skip`: stop all the same after so many bad steps in a row."""
    communication: CommunicationConfig = CommunicationConfig()
    """What ranks send each other."""
    sharding: Literal["none", "optimizer"] = "none"
    """`optimizer`: each rank keeps the optimizer's state of its share of the parameters only."""
    stall_s: float = Field(default=300.0, gt=0)
    """Fail after waiting so long for data that the broker has but does not deliver."""
    restarts: int = Field(default=3, ge=0)
    """How often the ranks are restarted from the last checkpoint before the stage stops."""
    balance_steps: int = Field(default=100, ge=1)
    """Tell rows, tokens and padding of every lane and rank after the first step, and then every N steps."""
    skew_warning: Number = Field(default=1.5, gt=1)
    """Warn when a lane or a rank had more than this many times the mean of their tokens over `balance_steps`."""
    visualdl: str = ""
    """Folder for VisualDL logs, FOLDER/NAME/RUN; empty: none. `visualdl` comes with PaddleNLP."""

    @field_validator("model")
    @classmethod
    def _whole_on_every_rank(cls, model: str | dict[str, Any]) -> str | dict[str, Any]:
        for name in HYBRID:
            if isinstance(model, dict) and model.get(name, 1) not in (1, -1):
                raise ValueError(
                    f"{name} is {model[name]}, and headrace has data parallelism only, the whole model on every rank: "
                    f"remove {name}; train.sharding: optimizer saves memory instead"
                )
        return model

    @model_validator(mode="after")
    def _passes_have_an_end(self) -> TrainConfig:
        if self.passes > 1 and (self.stop == "never" or isinstance(self.stop, StopSteps)):
            raise ValueError(
                "passes: going over records again needs an end to go back from: set stop to end or {time: T}"
            )
        return self


class EvaluateConfig(Settings):
    """Evaluation beside training."""

    data: str = ""
    """A .jsonl file of labelled records, the development set: fields as in `text.fields`."""
    hold_out_share: Number = Field(default=0.0, ge=0, le=0.5)
    """Share of the records that is never trained on; chosen by a hash of the id, else of the text."""
    hold_out_rows: int = Field(default=4096, ge=1)
    """The newest held-out records that an evaluation uses, the same number of every lane."""
    every_steps: int | None = Field(default=None, ge=1)
    """Evaluate every N steps; unset: at the end only."""
    keep_best: bool = False
    """Save when an evaluation is the best so far, and keep that checkpoint beside the newest ones: `best.json` names
    it. The development set decides where there is one, else the held-out part."""


class CheckpointConfig(Settings):
    """Checkpoints."""

    root: str = "./checkpoints"
    """Folder or fsspec address; a run's checkpoints are ROOT/NAME/RUN/step-N."""
    every_steps: int | None = Field(default=None, ge=1)
    """Save every N steps."""
    every_s: float = Field(default=600.0, gt=0)
    """Save at least so often while there are unsaved steps."""
    keep: int = Field(default=3, ge=1)
    """Checkpoints whose weights are kept; ledgers are kept for ever."""
    keep_every_steps: int | None = Field(default=None, ge=1)
    """Also keep the weights of the first checkpoint at or behind each multiple of N steps, for good."""


class RankPlan(Settings):
    """Everything one rank is told: the parts of the configuration that it uses, with names resolved."""

    name: str
    """The configuration's name."""
    broker: BrokerConfig
    """How the broker is reached."""
    text_topic: str
    """Topic whose end `stop: end` means."""
    tokens: TokensConfig
    """The lanes."""
    train: TrainConfig
    """The trainer's settings."""
    evaluate: EvaluateConfig = EvaluateConfig()
    """Evaluation beside training."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Checkpoints."""
    tokenizer_path: str = ""
    """Vocabulary files to put beside the weights, where this machine has them."""
    tokenizer: dict[str, Any] = Field(default_factory=dict)
    """The tokenizer's settings without its path: checkpoints keep them for those who serve the model."""
    max_tokens: int
    """Longest row."""
    development: str = ""
    """File with the development set as one token batch; empty: none."""
    end_on_command: bool = False
    """With `stop: end`: the end is what lies in the text topic when the parent says so, not when the run starts."""
