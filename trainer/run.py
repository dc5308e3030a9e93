"""A run on one rank: what follows from its configuration and its beginning, and training from there to its end.

Nothing here imports Paddle: the learner is given. So a whole run, over real topics, with kills and resumes, is tested
with a learner of a few lines.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from headrace.pipeline.child import Channel
from headrace.pipeline.topics import Broker
from headrace.schemas.cursor import CuttingPlan
from headrace.schemas.tokens import TokensMeta
from headrace.trainer import custom
from headrace.trainer.agree import Line
from headrace.trainer.batch import BatchShape, batch_shape, check_min_tokens, owned
from headrace.trainer.beginning import Beginning, Look
from headrace.trainer.best import DEVELOPMENT, HELD_OUT
from headrace.trainer.checkpoint_store import Store
from headrace.trainer.collate import (
    Collate,
    classification_collate,
    classification_screen,
    masked_lm_collate,
    masked_lm_screen,
    multi_label_collate,
    multi_label_screen,
)
from headrace.trainer.config import CausalLmTask, ClassificationTask, CustomTask, MaskedLmTask, RankPlan, TrainConfig
from headrace.trainer.development import Development, development, load_development
from headrace.trainer.held_out import HeldOut
from headrace.trainer.lane import LaneRules
from headrace.trainer.learner import Learner, Score
from headrace.trainer.ledger import LedgerRows
from headrace.trainer.loop import Loop, LoopParts
from headrace.trainer.masking import Masking
from headrace.trainer.packing import causal_lm_collate, causal_lm_screen
from headrace.trainer.progress import Progress
from headrace.trainer.reach import Odometer, Reach
from headrace.trainer.resume import RunFacts, compare, run_settings
from headrace.trainer.root import Root
from headrace.trainer.save import Checkpointer
from headrace.trainer.schedule import Bounds, learning_rate, measured_by_range
from headrace.trainer.source import StepRules, StepSource
from headrace.trainer.stream import LaneStream
from headrace.trainer.window import Screen

_log = logging.getLogger(__name__)

#: Files of a tokenizer's folder that are put beside the weights, so that a checkpoint serves by itself.
VOCABULARY_FILES = ("vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def task_functions(train: TrainConfig, meta: TokensMeta) -> tuple[Collate, Screen]:
    """How the task makes arrays of rows, and which rows it cannot use."""
    pad_id = meta.special_ids["pad"]
    match train.task:
        case ClassificationTask(multi_label=True) as task:
            return multi_label_collate(task.labels, pad_id), multi_label_screen(task.labels)
        case ClassificationTask() as task:
            return classification_collate(task.labels, pad_id), classification_screen(task.labels)
        case MaskedLmTask() as task:
            masking = Masking.of(meta, train.seed, task.mask_share, task.mask_unit)
            return masked_lm_collate(masking, pad_id), masked_lm_screen(masking)
        case CausalLmTask():
            return causal_lm_collate(pad_id), causal_lm_screen
        case CustomTask() as task:
            return custom.collate(task, pad_id), custom.screen(task)


@dataclass(frozen=True, slots=True)
class Run:
    """What follows from the configuration and the beginning: the same on every rank."""

    plan: RankPlan
    broker: Broker
    beginning: Beginning
    meta: TokensMeta
    shape: BatchShape
    cutting: CuttingPlan
    collate: Collate
    screen: Screen
    settings: Mapping[str, Any]
    changes: tuple[Mapping[str, Any], ...]

    @classmethod
    def prepare(cls, plan: RankPlan, broker: Broker, beginning: Beginning, meta: TokensMeta) -> Self:
        """Raises UsageError for a batch that the lanes cannot give, ResumeRefused for another run's checkpoint."""
        train = plan.train
        lanes = plan.tokens.lanes
        shape = batch_shape(
            train.batch.tokens,
            train.batch.micro_tokens,
            lanes,
            max_tokens=plan.max_tokens,
            pad_multiple=train.batch.pad_multiple,
        )
        check_min_tokens(train.batch.min_tokens, shape)
        cutting = CuttingPlan(
            seed=train.seed,
            micro_tokens=shape.micro_tokens,
            window_tokens=train.window_tokens,
            hold_out_share=plan.evaluate.hold_out_share,
            pad_multiple=train.batch.pad_multiple,
            exclusions=len(beginning.lineage.exclusions),
        )
        collate, screen = task_functions(train, meta)
        topic = broker.describe(plan.tokens.topic)
        topic_id = topic.id if topic is not None else ""
        facts = RunFacts(plan.tokens.topic, topic_id, shape, meta.fingerprint, plan.tokenizer)
        settings = run_settings(facts, train=train, evaluate=plan.evaluate, checkpoint=plan.checkpoint)
        return cls(
            plan, broker, beginning, meta, shape, cutting, collate, screen, settings, _changes(beginning, settings)
        )

    def train(
        self, learner: Learner, lines: Mapping[str, Line], store: Store, channel: Channel, look: Look | None
    ) -> tuple[int, str]:
        """Train to the end of the run; returns the last step and why it ended. `look` is given on rank 0."""
        with ExitStack() as stack:
            stream = stack.enter_context(self.stream(lines["steps"].rank, lines["steps"].ranks))
            root = Root.open(self, store, channel, look, stack) if look is not None else None
            held_out = self._held_out(stream.cursors().keys())
            evaluate = self._evaluator(learner, held_out, lines["steps"])
            ledger = LedgerRows()
            parent = self.beginning.checkpoint.step if self.beginning.checkpoint is not None else None
            checkpointer = Checkpointer(
                lines["results"], learner, (ledger, held_out), stream.cursors, parent, root.parts if root else None
            )
            if parent is None:
                checkpointer.save(0)
                if root is not None:
                    root.saver.wait()  # the others wait in the first agreement
            loop = Loop(
                LoopParts(
                    source=self._source(stream, lines["steps"], channel, root),
                    lanes=stream,
                    learner=learner,
                    ledger=ledger,
                    held_out=held_out,
                    results=lines["results"],
                    learning_rate=self.learning_rate,
                    evaluate=evaluate,
                    save=checkpointer.save,
                    keep_best=self.plan.evaluate.keep_best,
                    watcher=root.watcher if root else None,
                ),
                self._left(stream),
                self.plan.evaluate.every_steps,
            )
            step, why = loop.run(self.beginning.step)
            if root is not None:
                root.finish(step)
            return step, why

    def learning_rate(self, reach: Reach) -> float:
        return learning_rate(reach, self.plan.train.optimizer, self._bounds)

    @property
    def _bounds(self) -> Bounds:
        end = self.beginning.end
        return Bounds(end.steps, by_range=end.rule in {"end", "time"})

    def _odometer(self, stream: LaneStream) -> Odometer:
        progress = self.progress()
        begun = Reach(self.beginning.step, progress.taken_tokens, range=progress.range)
        measured = measured_by_range(self.plan.train.optimizer, self._bounds)
        odometer = Odometer(stream.cursors(), begun, measured=measured, passes=self.plan.train.passes)
        if self.beginning.end.lanes is not None:
            odometer.set_ends(self.beginning.end.lanes)
        return odometer

    def progress(self) -> Progress:
        """Figures as the checkpoint has them, or fresh ones."""
        saved = self.beginning.checkpoint
        offsets = {lane: cursor.start for lane, cursor in self.beginning.cursors.items()}
        if saved is None:
            return Progress(offsets=offsets, skipped_tokens=self.beginning.skipped_tokens)
        return Progress.from_json(saved.step, offsets, saved.state.progress)

    def stream(self, rank: int, ranks: int) -> LaneStream:
        """The lanes of one rank, from the beginning on."""
        train = self.plan.train
        lanes = owned(self.shape.lanes, rank, ranks)
        stream = LaneStream(
            self.broker,
            self.plan.tokens.topic,
            {lane: self.beginning.cursors[lane] for lane in lanes},
            LaneRules(
                self.cutting,
                self.screen,
                train.batch.flush_s,
                train.stall_s,
                self.meta.fingerprint,
                self.beginning.lineage.exclusions,
            ),
        )
        if self.beginning.end.lanes is not None:
            stream.set_ends(self.beginning.end.lanes)
        return stream

    def _source(self, stream: LaneStream, line: Line, channel: Channel, root: Root | None) -> StepSource:
        rules = StepRules(
            self.shape.lanes,
            self.shape.accumulate,
            self.plan.train.batch.min_tokens,
            self.beginning.end.steps,
            self.plan.train.passes,
            self.beginning.starts,
        )
        return StepSource(
            stream,
            self.collate,
            line,
            rules,
            channel.stopping,
            step=self.beginning.step,
            pass_number=self.beginning.pass_number,
            conductor=root.conductor if root else None,
            odometer=self._odometer(stream),
        )

    def _held_out(self, lanes: Collection[int]) -> HeldOut:
        saved = self.beginning.checkpoint.held_out if self.beginning.checkpoint is not None else None
        rows_per_lane = -(-self.plan.evaluate.hold_out_rows // self.shape.lanes)
        return HeldOut(lanes, rows_per_lane, saved, self.beginning.lineage.exclusions)

    def _evaluator(self, learner: Learner, held_out: HeldOut, line: Line) -> Callable[[], Mapping[str, Score]]:
        """A function that scores the development set and the held-out rows, those that there are, on all ranks."""
        given: Development | None = None
        if self.plan.development:
            rows = load_development(self.plan.development, self.meta)
            given = development(rows, self.cutting, self.screen, self.collate, (line.rank, line.ranks))

        def evaluate() -> dict[str, Score]:
            scores = {}
            if given is not None:
                scores[DEVELOPMENT] = learner.evaluate(given.batches())
            if self.plan.evaluate.hold_out_share:
                scores[HELD_OUT] = learner.evaluate(held_out.batches(self.cutting, self.collate))
            return scores

        return evaluate

    def _left(self, stream: LaneStream) -> dict[int, int]:
        left = self.progress().left
        return {lane: left.get(lane, 0) for lane in stream.cursors()}

    def vocabulary(self) -> dict[str, bytes]:
        """The tokenizer's files, where this machine has them."""
        path = Path(self.plan.tokenizer_path)
        if not self.plan.tokenizer_path or not path.exists():
            _log.warning("tokenizer.path %r is not here: checkpoints hold no vocabulary", self.plan.tokenizer_path)
            return {}
        folder = path if path.is_dir() else path.parent
        found = [folder / name for name in VOCABULARY_FILES] if path.is_dir() else [path]
        return {file.name: file.read_bytes() for file in found if file.is_file()}


def _changes(beginning: Beginning, settings: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """What was changed on purpose since the run began, with what is changed now; that is also warned of."""
    if beginning.checkpoint is None:
        return ()
    state = beginning.checkpoint.state
    fresh = compare(state.settings, settings)
    for change in fresh:
        _log.warning("changed since step %d: %s", state.step, change)
    return (*state.changes, *(change.to_json(state.step) for change in fresh))
