"""Names of every metric headrace exports, in one place. Prometheus conventions: base units, `_total` for counters.

Every series has the label `process`: `ingest-0`, `rank-0`.
"""

from __future__ import annotations

from typing import Final

# ingest, one series per worker
RECORDS_READ: Final = "headrace_records_read_total"
TOKENS_EMITTED: Final = "headrace_tokens_emitted_total"
DEAD_LETTERS: Final = "headrace_dead_letters_total"  # also by `reason`
COMMITS: Final = "headrace_commits_total"
COMMIT_S: Final = "headrace_commit_seconds_total"  # begin to commit of ingest transactions
BACKLOG_WAIT_S: Final = "headrace_backlog_wait_seconds_total"
BACKLOG_TOKENS: Final = "headrace_backlog_tokens"

# trainer, by rank 0 for all ranks
STEP: Final = "headrace_step"
RECORDS_TRAINED: Final = "headrace_records_trained_total"
TOKENS_TRAINED: Final = "headrace_tokens_trained_total"  # real tokens, padding not counted
PADDED_TOKENS: Final = "headrace_padded_tokens_total"
LOSS: Final = "headrace_loss"  # mean over the global batch
ACCURACY: Final = "headrace_progressive_accuracy"
MACRO_F1: Final = "headrace_progressive_macro_f1"  # of tasks with classes
LEARNING_RATE: Final = "headrace_learning_rate"
FRESHNESS_S: Final = "headrace_freshness_seconds"  # also by `quantile`: 0.5 and 0.99
DATA_WAIT_SHARE: Final = "headrace_data_wait_share"  # of the last 50 steps' time
EVALUATION_ACCURACY: Final = "headrace_evaluation_accuracy"  # also by `of`: development or held_out
EVALUATION_LOSS: Final = "headrace_evaluation_loss"
LANE_TOKENS: Final = "headrace_lane_tokens"  # padded, over the last train.balance_steps steps; also by `lane`
RANK_TOKENS: Final = "headrace_rank_tokens"  # likewise, also by `rank`
LANE_SKEW: Final = "headrace_lane_skew"  # largest over mean
RANK_SKEW: Final = "headrace_rank_skew"
DATA_WAIT_S: Final = "headrace_data_wait_seconds_total"
STEP_S: Final = "headrace_step_seconds_total"  # without the wait for data
SENT_BYTES: Final = "headrace_sent_bytes_total"  # handed to sums between ranks, by one rank
SUM_S: Final = "headrace_sum_seconds_total"
EXPOSED_SUM_S: Final = "headrace_exposed_sum_seconds_total"  # not hidden behind the backward pass
BUCKET_BYTES: Final = "headrace_bucket_bytes"  # of the last step, by `bucket`
BUCKET_S: Final = "headrace_bucket_seconds"
BUCKET_EXPOSED_S: Final = "headrace_bucket_exposed_seconds"
