"""A task of one's own: how many stars a review gives, a regression. stars.yaml names it, docs/tasks.md explains it.

Records: {"text": "…", "label": 4}
"""

import numpy as np
import paddle
import pyarrow as pa
from paddlenlp.transformers import ErnieForSequenceClassification

from headrace.trainer.tasks.inputs import encoder_inputs


class Stars:
    def __init__(self, most=5):
        self.most = most

    def screen(self, rows):
        """Drop records that do not have exactly one label, a whole number from 0 to `most`."""
        usable = (len(labels) == 1 and labels[0] in self._known() for labels in rows.column("labels").to_pylist())
        return pa.array([None if each else "no-stars" for each in usable], pa.string())

    def collate(self, micro, padded):
        """The share of all stars; one term of the loss per row."""
        stars = [int(labels[0]) / self.most for labels in micro.rows.column("labels").to_pylist()]
        return {**padded, "stars": np.array(stars, np.float32)}, len(stars)

    def network(self, config):
        """An ERNIE with one output."""
        config.num_labels = 1
        return ErnieForSequenceClassification(config)

    def loss(self, network, arrays):
        """Squared error, summed; right is a guess that rounds to the stars given."""
        guess = network(**encoder_inputs(network, arrays))[:, 0]
        apart = guess - paddle.to_tensor(arrays["stars"])
        right = paddle.abs(apart.detach()) * self.most < 0.5
        return (apart**2).sum(), right.astype("float32").sum()

    def _known(self):
        return {str(number) for number in range(self.most + 1)}
