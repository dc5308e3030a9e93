"""What can be learnt: task type -> loss. A new task is a module with `loss` and lines here and in `families`.

Whoever does not want to change headrace writes a class instead (`trainer.custom`).
"""

from headrace.trainer import custom
from headrace.trainer.config import ClassificationTask, CustomTask, Task
from headrace.trainer.tasks import causal_lm, classification, masked_lm
from headrace.trainer.tasks.inputs import Loss

LOSSES: dict[str, Loss] = {
    "classification": classification.loss,
    "masked-lm": masked_lm.loss,
    "causal-lm": causal_lm.loss,
}


def loss_of(task: Task) -> Loss:
    """The loss of a configured task."""
    if isinstance(task, CustomTask):
        return custom.load(task).loss
    if isinstance(task, ClassificationTask) and task.multi_label:
        return classification.multi_label_loss
    return LOSSES[task.type]
