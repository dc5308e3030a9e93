"""Names of every metric headrace exports, in one place. Prometheus conventions: base units, `_total` for counters."""

from __future__ import annotations

from typing import Final

# ingest, one series per worker
RECORDS_READ: Final = "headrace_records_read_total"  # records decoded from the text topic
TOKENS_EMITTED: Final = "headrace_tokens_emitted_total"  # tokens committed to the tokens topic
DEAD_LETTERS: Final = "headrace_dead_letters_total"  # by reason
COMMIT_S: Final = "headrace_commit_seconds"  # begin to commit of one ingest transaction
BACKLOG_WAIT_S: Final = "headrace_backlog_wait_seconds_total"  # time ingest waited for the trainer

# trainer, rank 0 unless said otherwise
STEP: Final = "headrace_step"
RECORDS_TRAINED: Final = "headrace_records_trained_total"
TOKENS_TRAINED: Final = "headrace_tokens_trained_total"  # real tokens, padding not counted
LOSS: Final = "headrace_loss"  # mean over the global batch
ACCURACY: Final = "headrace_progressive_accuracy"  # scored before training on it
FRESHNESS_S: Final = "headrace_freshness_seconds"  # publish to gradient, per step, quantiles 0.5 and 0.99
DATA_WAIT_S: Final = "headrace_data_wait_seconds_total"  # per rank: time the step waited for data
PADDING_SHARE: Final = "headrace_padding_share"

# both
BACKLOG_TOKENS: Final = "headrace_backlog_tokens"
