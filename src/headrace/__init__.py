"""headrace: live text into a distributed PaddlePaddle trainer, exactly once."""

__version__ = "0.1.0"
