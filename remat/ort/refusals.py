"""What a build of ONNX Runtime cannot run, by op, place and element types, which its own errors do not name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import onnxruntime
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, defs, helper
from onnxruntime.capi import onnxruntime_pybind11_state

from remat.ort.errors import NotRunnable

_NODE = re.compile(
    r"implementation for \S+ node with name '(?P<kernel>.*?)'|of operator \(.*?\) in node \((?P<type>.*?)\) is"
)
_OP = re.compile(r"Fatal error: (?P<function>\S+?)\(|No Op registered for (?P<op>\S+) with")
_OPSET = re.compile(r"Opset (\d+) is")
_KINDS = "biuf"  # of numpy types that ONNX Runtime takes and returns


class _Place(NamedTuple):
    node: NodeProto
    where: str
    types: dict[str, int]  # of all values in scope


def refuse_foreign_arrays(model: ModelProto) -> None:
    """Raise NotRunnable for an input or output whose element type numpy and ONNX Runtime do not exchange."""
    graph = model.graph
    for kind, infos in (("input", graph.input), ("output", graph.output)):
        for info in infos:
            element = info.type.tensor_type.elem_type
            if element and helper.tensor_dtype_to_np_dtype(element).kind not in _KINDS:
                raise NotRunnable(
                    f"{kind} {info.name!r} is {_name(element)}, which ONNX Runtime does not exchange with numpy; "
                    "export the model with float16 or float32 inputs, parameters and outputs"
                )


def refusal(model: ModelProto, error: Exception, providers: Sequence[str]) -> NotRunnable | None:
    """The error of a session in terms of the file: node, place, op and element types; None if it is another error."""
    text = " ".join(str(error).split())
    build = f"ONNX Runtime {onnxruntime.__version__}"
    if found := _OPSET.search(text):
        return NotRunnable(
            f"the file has opset {found[1]}, which {build} does not know; "
            "export the model for an older opset, or install a newer ONNX Runtime"
        )
    if found := _NODE.search(text):
        name = found["kernel"] or found["type"]
        place = next((each for each in _places(model) if each.node.name == name), None)
    elif found := _OP.search(text):
        domain, _, op = (found["function"] or found["op"]).rpartition(":")
        place = next((each for each in _places(model) if (each.node.domain, each.node.op_type) == (domain, op)), None)
    elif "NOT_IMPLEMENTED" in text:
        place = None
    else:
        return None
    if place is None:
        return NotRunnable(f"{build} cannot run the step: {text}; use a newer ONNX Runtime, or other providers")
    node = place.node
    op = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    head = f"node {node.name!r}{place.where}: {build} has no {op}"
    kernels = _kernel_types(node, providers)
    if not kernels:
        return NotRunnable(
            f"{head} on {', '.join(providers)}; replace the op by ops that it has, register its library in `options` "
            "(register_custom_ops_library), or install a build that has it"
        )
    given = ", ".join(dict.fromkeys(_types_of(place))) or "its types"
    return NotRunnable(
        f"{head} of {given} on {', '.join(providers)}, but of {', '.join(kernels)}; "
        "export the model in one of these, or cast before the op"
    )


def _places(model: ModelProto) -> Iterator[_Place]:
    return _nodes_of(model.graph, "", {})


def _nodes_of(graph: GraphProto, where: str, outside: dict[str, int]) -> Iterator[_Place]:
    types = outside | {tensor.name: tensor.data_type for tensor in graph.initializer}
    infos = (*graph.input, *graph.value_info, *graph.output)
    types |= {info.name: info.type.tensor_type.elem_type for info in infos if info.type.HasField("tensor_type")}
    for node in graph.node:
        yield _Place(node, where, types)
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _nodes_of(body, f" in {attribute.name} of {node.op_type} {node.name!r}{where}", types)


def _types_of(place: _Place) -> list[str]:
    values: Iterable[str] = (*place.node.input, *place.node.output)
    return [_name(place.types[value]) for value in values if place.types.get(value)]


def _name(element: int) -> str:
    return TensorProto.DataType.Name(element).lower()  # type: ignore[no-any-return]


def _kernel_types(node: NodeProto, providers: Sequence[str]) -> list[str]:
    """Element types of the first input in kernels of an op, of any version; empty without a kernel."""
    found = [
        kernel
        for kernel in onnxruntime_pybind11_state.get_all_opkernel_def()
        if (kernel.domain, kernel.op_name) == (node.domain, node.op_type) and kernel.provider in providers
    ]
    inputs = defs.get_schema(node.op_type, node.domain).inputs if defs.has(node.op_type, node.domain) else ()
    keys = [inputs[0].type_str] if inputs else [key for kernel in found for key in kernel.type_constraints]
    types = {text for kernel in found for key in keys for text in kernel.type_constraints.get(key, ())}
    return sorted(text.removeprefix("tensor(").removesuffix(")") for text in types if text.startswith("tensor("))
