"""Scoring without training: dropout off, no gradients, sums over all ranks.

Ranks may bring different numbers of batches, also none: they meet once, at the end. A rank that fails takes part in
that sum and raises its own error after it; the others raise RankLost.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import paddle

from headrace.trainer.collate import Batch
from headrace.trainer.distributed import Ranks, failure_vector, raise_failure, reduce_sums
from headrace.trainer.learner import Score
from headrace.trainer.tasks.inputs import Loss, Network


def score(network: Network, loss: Loss, batches: Sequence[Batch], ranks: Ranks) -> Score:
    """Loss and right predictions over every rank's `batches`. Leaves the network in training mode, as it was."""
    sums = np.zeros(3)  # float64: many batches add up
    error: Exception | None = None
    network.eval()
    try:
        with paddle.no_grad():
            for batch in batches:
                if batch.count:
                    loss_sum, right = loss(network, batch.arrays)
                    sums += (loss_sum.item(), right.item(), batch.count)
    except Exception as caught:  # noqa: BLE001 raised below, after the sum that the other ranks wait in
        error = caught
    finally:
        network.train()
    total = reduce_sums(ranks, np.concatenate([sums, failure_vector(ranks, error is not None)]))
    raise_failure(ranks, total[3:], error)
    return Score(loss=float(total[0]), correct=float(total[1]), count=round(total[2]))
