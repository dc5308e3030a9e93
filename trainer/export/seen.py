"""What a model has seen: positions, counts and ranges of offsets, as JSON values.

Cost: one pass over the run's ledger.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from headrace.trainer.export.source import Source
from headrace.trainer.ledger_read import Ledger


def seen(source: Source) -> dict[str, Any]:
    """By topic: the broker's id of it and, by partition, ranges of offsets (both ends included) and rows by outcome.

    Rows are records, or parts of long ones. `cursors` is where the run stands in its lanes.
    """
    state = source.checkpoint.state
    ids = dict(state.meta.topic_ids) if state.meta is not None else {}
    outcomes: Counter[str] = Counter()
    topics: dict[str, Any] = {}
    for (topic, partition), entry in Ledger.open(source.store, state.step).ranges().items():
        outcomes.update(entry.rows)
        of_topic = topics.setdefault(topic, {"id": ids.get(topic), "partitions": {}})
        of_topic["partitions"][str(partition)] = {
            "offsets": entry.ranges.tolist(),
            "rows": dict(sorted(entry.rows.items())),
        }
    return {
        "cursors": {str(lane): cursor.to_json() for lane, cursor in sorted(state.cursors.items())},
        "rows": dict(sorted(outcomes.items())),
        "topics": topics,
    }
