"""Device rules of Caffe2: copies between host and accelerator, and blobs that stay on the host.

x ──▶ CopyGPUToCPU (gpu:1) ──▶ y        x is on gpu:1, y on the cpu; operands of other ops are on the op's device
"""

from __future__ import annotations

from collections.abc import Sequence

from graph.ir import Node
from graph.transforms.device_placement import (
    COPIED_FROM,
    OperandDevices,
    base_op,
    copy_route,
    device_of,
    uniform_devices,
)

HOST, ACCELERATOR = "cpu", "gpu"
#: Positions of inputs on the host for every device of the op: iteration counts and lengths.
HOST_INPUTS = {"Adam": (5,), "SparseAdam": (6,), "LearningRate": (0,), "SplitByLengths": (1,)}
HOST_OUTPUTS = ("EnsureCPUOutput",)
COPY_OPS = {(HOST, ACCELERATOR): "CopyCPUToGPU", (ACCELERATOR, HOST): "CopyGPUToCPU"}
COPY_BETWEEN = "CopyGPUToGPU"


def operand_devices(node: Node, device: str) -> OperandDevices:
    """Devices of the inputs and outputs of an op placed on `device`."""
    route = copy_route(node)
    if route is not None:
        return uniform_devices(node, *(end if end != ACCELERATOR else device for end in route))
    inputs, outputs = uniform_devices(node, device, device)
    for slot in HOST_INPUTS.get(base_op(node), ()):
        inputs[slot : slot + 1] = [HOST] * len(inputs[slot : slot + 1])
    if base_op(node) in HOST_OUTPUTS:
        outputs = [HOST] * len(outputs)
    return inputs, outputs


def copy_op(source: str, target: str) -> str:
    """Op that copies from one device to another."""
    return "caffe2::" + COPY_OPS.get((_family(source), _family(target)), COPY_BETWEEN)


def copy_name(name: str, target: str) -> str:
    """Name of the copy: `data_cuda_1` for gpu:1, `data_cpu` for the host."""
    family, _, index = target.partition(":")
    return f"{name}_{'cuda' if family == ACCELERATOR else family}" + (f"_{index or 0}" if family != HOST else "")


def op_device(node: Node) -> str:
    """Device on which Caffe2 runs an op: for a copy from or to the host the other side; "" when unspecified."""
    source, target = node.annotations.get(COPIED_FROM), device_of(node) or ""
    return str(source) if source and target == HOST else target


def read_route(op: str, device: str, source: str) -> tuple[str, str]:
    """(device of the result, device that a copy reads from) of an op that runs on `device`; "" where unknown."""
    if op == COPY_OPS[HOST, ACCELERATOR]:
        return device, HOST if device else ""
    if op == COPY_OPS[ACCELERATOR, HOST] and device != HOST:
        return (HOST, device) if device else ("", "")
    return device, source


def device_rule(
    node: Node, inputs: Sequence[str | None], outputs: Sequence[str | None]
) -> tuple[list[str | None], list[str | None]]:
    """Device families of the inputs and outputs of an op, for `status_propagation`.

    Copies change the family; all operands of any other op share one. Device numbers are ignored.
    """
    route = copy_route(node)
    if route is not None:
        ends = [None if end is None else _family(end) for end in route]
        return [ends[0]] * len(inputs), [ends[1]] * len(outputs)
    known = [status for status in (*inputs, *outputs) if status is not None]
    family = known[0] if known else None
    return [family] * len(inputs), [family] * len(outputs)


def device_prefix(device: str) -> str:
    """Device name with "cuda" for "gpu"."""
    return device.replace(ACCELERATOR, "cuda", 1) if _family(device) == ACCELERATOR else device


def _family(device: str) -> str:
    return device.partition(":")[0]


__all__ = [
    "COPY_BETWEEN",
    "COPY_OPS",
    "copy_name",
    "copy_op",
    "device_of",
    "device_prefix",
    "device_rule",
    "op_device",
    "operand_devices",
    "read_route",
]
