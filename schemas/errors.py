"""Every error headrace raises on purpose, classed by what the caller should do.

    HeadraceError
    ├── TryAgain            retry: a service is away or slow; exit code 75
    │   ├── BrokerAway          the broker does not answer (names its address)
    │   ├── StoreAway           a file store does not answer
    │   ├── Stalled             data that is there did not arrive within `stall_s` (names what is waited for)
    │   ├── RankLost            a rank is gone or silent (names it); the ranks restart from the last checkpoint
    │   └── Fenced              another worker owns the work now: drop the buffers, go on
    ├── BadRecord           dead-letter: one record (or one message) is unusable, the run goes on
    └── Stop                stop: going on would lose, repeat or corrupt something; exit code 1
        ├── UsageError          the command line or the configuration; exit code 2
        │   ├── TopicError          a topic is missing or has another shape than configured
        │   └── ResumeRefused       the checkpoint cannot be continued with this configuration
        ├── TooLarge            a message is larger than its topic takes
        ├── PositionLost        a consumer group has no position where it must have one
        ├── RecordsLost         retention deleted records before they were trained
        ├── TokensInvalid       a token batch is damaged or was made by another tokenizer
        ├── CheckpointDamaged   a checkpoint's files do not match its manifest
        ├── ChildFailed         a stage process failed more often than it may
        └── BadLoss             a step's loss is not one to learn from (names the records)
            ├── LossNotFinite       the loss or its gradient is NaN or infinite
            └── LossSpike           the loss lies far above those of the steps before

A message says what is wrong, names the setting or the record, and ends with the cure.
"""

from __future__ import annotations

from enum import StrEnum

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_TRY_AGAIN = 75


class HeadraceError(Exception):
    """Base of the tree; never raised itself."""

    exit_code = EXIT_FAILED


class TryAgain(HeadraceError):
    """The same call may succeed later."""

    exit_code = EXIT_TRY_AGAIN


class BrokerAway(TryAgain):
    """The broker does not answer."""


class StoreAway(TryAgain):
    """A file store does not answer."""


class Fenced(TryAgain):
    """The transaction was refused because another group member owns the partitions now.

    The worker that raised it has aborted and rewound itself; the caller drops its buffers and polls again.
    """


class Reason(StrEnum):
    """Why a record was dead-lettered, dropped or skipped. The values stand in topics and ledgers: never rename one."""

    INVALID_UTF8 = "invalid-utf8"
    INVALID_JSON = "invalid-json"
    INVALID_ARROW = "invalid-arrow"
    INVALID_SPLIT = "invalid-split"
    MISSING_TEXT = "missing-text"
    EMPTY_TEXT = "empty-text"
    TEXT_TOO_LONG = "text-too-long"
    INVALID_FIELD = "invalid-field"
    UNKNOWN_LABEL = "unknown-label"
    MISSING_LABEL = "missing-label"
    TOO_LARGE = "too-large"
    LOSS_NOT_FINITE = "loss-not-finite"
    LOSS_SPIKE = "loss-spike"


class BadRecord(HeadraceError):
    """One record cannot be used. Carries what the dead letter needs."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class Stop(HeadraceError):
    """Going on would be wrong."""


class UsageError(Stop):
    """The command line or the configuration is wrong."""

    exit_code = EXIT_USAGE


class TopicError(UsageError):
    """A topic does not exist or has another shape than the configuration says."""


class ResumeRefused(UsageError):
    """A setting that defines the run differs from the checkpoint's."""


class TooLarge(Stop):
    """A message is larger than its topic's `max.message.bytes`."""


class PositionLost(Stop):
    """A consumer group has no position for a partition that it had read."""


class RecordsLost(Stop):
    """Retention deleted records that were not trained yet."""


class TokensInvalid(Stop):
    """A message on the tokens topic is not a token batch of this run."""


class CheckpointDamaged(Stop):
    """A checkpoint's files do not match its manifest."""


class Stalled(TryAgain):
    """Data that is there did not arrive within `stall_s`."""


class RankLost(TryAgain):
    """A rank closed its connection or did not answer in time."""


class ChildFailed(Stop):
    """A stage process failed more often than it may."""


class BadLoss(Stop):
    """A step's loss is not one to learn from. `batches` are the numbers of this rank's that are to blame."""

    reason: Reason

    def __init__(self, message: str, batches: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.batches = batches


class LossNotFinite(BadLoss):
    """The loss of a step, or its gradient, is NaN or infinite."""

    reason = Reason.LOSS_NOT_FINITE


class LossSpike(BadLoss):
    """The loss of a step lies far above those of the steps before."""

    reason = Reason.LOSS_SPIKE
