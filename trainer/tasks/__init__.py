"""What can be learnt: task type -> loss. A new task is a module with `loss` and a line here and in `trainer.model`."""

from headrace.trainer.tasks import classification, masked_lm
from headrace.trainer.tasks.inputs import Loss

LOSSES: dict[str, Loss] = {
    "classification": classification.loss,
    "masked-lm": masked_lm.loss,
}
