"""Export a network of `app/zoo/networks` to ONNX without weights. Needs the extra `torch`.

The module is built and traced with fake tensors, which have shapes but no storage. In the file, weights are external
tensors, which importers read as parameters.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

from app.zoo.catalogue import ZooNetwork

# Imports inside functions: torch and onnxscript are extras.

OPSET = 20
EXAMPLE_LENGTH = 2  # of a symbolic dimension while tracing; a sequence is 8 times as long
NOISY_LOGGERS = ("torch.onnx", "onnx_ir", "onnxscript", "torch.export")


def export_onnx(network: ZooNetwork) -> bytes:
    """ONNX file of the network, with symbolic dimensions for its named lengths. Raises ImportError."""
    import onnx_ir
    import onnxscript.optimizer
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    module, _, name = network.module.partition(".")
    build = getattr(importlib.import_module(f"{__package__}.networks.{module}"), name)
    with _quiet(), FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        program: Any = torch.onnx.export(
            build(**network.arguments).eval(),
            kwargs={name: _example(name, shape) for name, shape in network.inputs.items()},
            input_names=list(network.inputs),
            output_names=[network.output],
            dynamic_shapes={
                name: {axis: length for axis, length in enumerate(shape) if isinstance(length, str)}
                for name, shape in network.inputs.items()
            },
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
            optimize=False,
        )
        model = program.model
        weights = {}
        for value in model.graph.initializers.values():
            if value.name in program.exported_program.state_dict:
                weights[value.name], value.const_value = value.const_value, None  # prevents constant folding
        onnxscript.optimizer.optimize_ir(model)
    for value in model.graph.initializers.values():
        if (weight := weights.get(value.name)) is not None:
            value.const_value = onnx_ir.ExternalTensor(
                "weights", 0, weight.nbytes, weight.dtype, shape=weight.shape, name=value.name
            )
    proto = onnx_ir.serde.serialize_model(model)
    proto.graph.name = network.name
    for part in (
        proto,
        proto.graph,
        *proto.graph.node,
        *proto.graph.value_info,
        *proto.graph.input,
        *proto.graph.output,
    ):
        del part.metadata_props[:]  # stack traces
        part.doc_string = ""
    del proto.graph.value_info[:]
    return bytes(proto.SerializeToString(deterministic=True))


def _example(name: str, shape: tuple[str | int, ...]) -> Any:
    import torch

    lengths = [EXAMPLE_LENGTH * (8 if n == "sequence" else 1) if isinstance(n, str) else n for n in shape]
    return torch.zeros(lengths, dtype=torch.float32 if name == "pixels" else torch.int64)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress log messages and warnings of torch."""
    loggers = [logging.getLogger(name) for name in NOISY_LOGGERS]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
