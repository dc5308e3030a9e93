"""Scoring without training: dropout off, no gradients, sums over all ranks.

Ranks may bring different numbers of batches, also none: they meet once, at the end. A rank that fails takes part in
that sum and raises its own error after it; the others raise RankLost.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import paddle

from headrace.trainer.collate import Batch
from headrace.trainer.distributed import Ranks, failure_vector, raise_failure, reduce_sums
from headrace.trainer.learner import Score, by_class_of
from headrace.trainer.tasks.inputs import Loss, Network, Terms


def score(network: Network, loss: Loss, batches: Iterable[Batch], ranks: Ranks, classes: int = 0) -> Score:
    """Loss and right predictions over every rank's `batches`, and counts of the `classes` of a task that has some.

    Leaves the network in training mode, as it was.
    """
    sums = np.zeros(3 + 3 * classes)  # float64: many batches add up
    error: Exception | None = None
    network.eval()
    try:
        with paddle.no_grad():
            for batch in batches:
                if batch.count:
                    terms = Terms(*loss(network, batch.arrays))
                    sums[:3] += (terms.loss.item(), terms.right.item(), batch.count)
                    if terms.by_class is not None:
                        sums[3:] += terms.by_class.numpy().reshape(-1)
    except Exception as caught:  # noqa: BLE001 raised below, after the sum that the other ranks wait in
        error = caught
    finally:
        network.train()
    total = reduce_sums(ranks, np.concatenate([sums, failure_vector(ranks, error is not None)]))
    raise_failure(ranks, total[len(sums) :], error)
    return Score(float(total[0]), float(total[1]), round(total[2]), by_class_of(total[3 : len(sums)]))
