"""Run a checkpoint, or a folder that `headrace export` made: the arrays of `collate.pad` in, scores out.

Each form is run by the program that it is made for: `static` by Paddle Inference, `onnx` by ONNX Runtime (Paddle is not
imported then), `safetensors` and checkpoints by PaddleNLP's network itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headrace.schemas.errors import UsageError
from headrace.trainer.config import Task
from headrace.trainer.device import visible_gpus
from headrace.trainer.export.folder import MODEL

#: Arrays of a batch -> the outputs in the order of `graph`: logits, and of a classifier probabilities.
Runner = Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]


def static(folder: Path) -> Runner:
    """Through Paddle Inference, on the first visible GPU or on the CPU."""
    from paddle import inference

    config = inference.Config(str(folder / f"{MODEL}.json"), str(folder / f"{MODEL}.pdiparams"))
    config.disable_glog_info()
    if visible_gpus():
        config.enable_use_gpu(256, 0)
    else:
        config.disable_gpu()
    predictor = inference.create_predictor(config)
    inputs = {name: predictor.get_input_handle(name) for name in predictor.get_input_names()}
    outputs = [predictor.get_output_handle(name) for name in predictor.get_output_names()]

    def run(arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        for name, handle in inputs.items():
            handle.reshape(arrays[name].shape)
            handle.copy_from_cpu(np.ascontiguousarray(arrays[name]))
        predictor.run()
        return [handle.copy_to_cpu() for handle in outputs]

    return run


def onnx(folder: Path) -> Runner:
    """Through ONNX Runtime, on a GPU where its package can use one."""
    try:
        import onnxruntime
    except ImportError as error:
        raise UsageError(f"an ONNX model needs onnxruntime ({error}): pip install 'headrace[export]'") from error

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns of what it leaves out of a graph
    wanted = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    providers = [name for name in wanted if name in onnxruntime.get_available_providers()]
    session = onnxruntime.InferenceSession(str(folder / f"{MODEL}.onnx"), options, providers=providers)
    names = [each.name for each in session.get_inputs()]

    def run(arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return list(session.run(None, {name: arrays[name] for name in names}))

    return run


def eager(folder: Path, task: Task, vocab_size: int, pad_id: int) -> Runner:
    """Through the network itself, built from a folder with config.json and weights."""
    import paddle

    from headrace.trainer import model
    from headrace.trainer.export import graph

    serving: Any = graph.Serving(model.build(task, str(folder), vocab_size, pad_id, seed=0).network, task)
    serving.eval()

    def run(arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        with paddle.no_grad():
            return [output.numpy() for output in serving(*(paddle.to_tensor(arrays[name]) for name in graph.INPUTS))]

    return run
