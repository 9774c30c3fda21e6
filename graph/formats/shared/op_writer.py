"""Standard ops converted to a framework's ops, for writing graphs that were read from another format.

A converter maps one node to the framework's op, its attributes and the inputs it keeps; `written` makes one from a
reader per attribute. A node without a converter is left unchanged; the writer reports it as not representable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from graph.formats.shared.rows import Origin
from graph.ir import ABSENT, Graph, Node, Phase, TensorType


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node with the types and constants of its inputs: the argument of a converter."""

    graph: Graph
    node: Node

    def type(self, position: int) -> TensorType | None:
        v = self.node.inputs[position] if position < len(self.node.inputs) else ABSENT
        return None if v == ABSENT else self.graph.values[v].type

    def content(self, position: int) -> np.ndarray | None:
        v = self.node.inputs[position] if position < len(self.node.inputs) else ABSENT
        return None if v == ABSENT else self.graph.values[v].data

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.node.attributes.get(name, default)

    def all_inputs(self) -> list[int]:
        """Positions of all inputs."""
        return list(range(len(self.node.inputs)))

    def static_shape(self) -> list[int] | None:
        """Shape of the first output; None when unknown or with a length of 0, which a Reshape attribute copies."""
        type = self.output_type
        return None if type is None or 0 in type.shape else list(type.shape)

    def permutation(self) -> list[int] | None:
        """Permutation of a Transpose, reversed axes by default; None without an input type."""
        x = self.type(0)
        return None if x is None else list(self.attribute("perm", range(len(x.shape))[::-1]))

    def reduced_axes(self) -> list[int] | None:
        """Axes of a reduction, all by default; None when they are not constant."""
        x, axes = self.type(0), self.content(1)
        if x is None or (axes is None and len(self.node.inputs) > 1):
            return None
        return [int(a) for a in axes.reshape(-1)] if axes is not None else list(range(len(x.shape)))

    def split_sizes(self) -> list[int] | None:
        """Sizes of the parts of a Split; None when they are not constant."""
        sizes = self.content(1)
        return None if sizes is None else [int(n) for n in sizes.reshape(-1)]

    def reduces_all(self) -> bool | None:
        """True for a reduction over all axes; None when the axes are unknown."""
        x, axes = self.type(0), self.reduced_axes()
        return None if x is None or axes is None else len(axes) == len(x.shape)

    def keeps_dimensions(self) -> bool:
        """True for a reduction that keeps its axes with length 1."""
        return bool(self.attribute("keepdims", 1))

    def is_unscaled_gemm(self) -> bool:
        """True for a Gemm with alpha = beta = 1 and A not transposed."""
        scaled = not self.attribute("alpha", 1.0) == self.attribute("beta", 1.0) == 1.0
        return not scaled and not self.attribute("transA", 0)

    def pools_explicitly(self) -> bool:
        """True for a convolution or pooling window with a known rank and explicit pads."""
        return self.type(0) is not None and self.attribute("auto_pad", "NOTSET") in ("NOTSET", b"NOTSET")

    @property
    def output_type(self) -> TensorType | None:
        """Type of the first output."""
        return self.graph.values[self.node.outputs[0]].type if self.node.outputs[0] != ABSENT else None


#: (op, attributes, positions of the inputs kept)
FrameworkOp = tuple[str, dict[str, Any], list[int]]
#: converter(node) -> the framework's op, or None when the node has no equivalent
OpConverter = Callable[[NodeView], FrameworkOp | None]


#: encoder(node, its op in the framework) -> the attributes as the framework's file has them
Encoder = Callable[[NodeView, FrameworkOp], dict[str, Any]]


def attribute(name: str, default: Any = None) -> Callable[[NodeView], Any]:
    """Reader of an attribute of the node, for `written`."""
    return lambda view: view.attribute(name, default)


def written(op: str, kept: int | None = 1, **attributes: Callable[[NodeView], Any]) -> OpConverter:
    """Converter to an op with the first `kept` inputs (None: all) and attributes read from the node.

    A reader that returns None means that the node has no equivalent.
    """

    def convert(view: NodeView) -> FrameworkOp | None:
        found = {name: read(view) for name, read in attributes.items()}
        if any(value is None for value in found.values()):
            return None
        return op, found, view.all_inputs() if kept is None else list(range(kept))

    return convert


def same_inputs(op: str) -> OpConverter:
    """Converter to an op with the same inputs, for nodes without attributes."""

    def convert(view: NodeView) -> FrameworkOp | None:
        return None if view.node.attributes else (op, {}, view.all_inputs())

    return convert


def same_names(names: str, framework_name: Callable[[str], str] = str) -> dict[str, OpConverter]:
    """Converters of ops without attributes whose name in the framework is `framework_name` of the standard one."""
    return {op: same_inputs(framework_name(op)) for op in names.split()}


def with_framework_ops(
    graph: Graph,
    framework: str,
    converters: Mapping[str, OpConverter],
    encode: Encoder = lambda view, converted: converted[1],
) -> Graph:
    """The graph with an annotation of the framework's op on forward nodes that lack one. O(nodes)."""
    nodes = list(graph.nodes)
    for n, node in enumerate(nodes):
        converter = converters.get(node.op)
        if framework in node.annotations or node.phase is not Phase.FORWARD or converter is None or not node.outputs:
            continue
        view = NodeView(graph, node)
        converted = converter(view)
        if converted is None:
            continue
        op, _, kept = converted
        names = ["" if v == ABSENT else graph.values[v].name for v in node.inputs]
        outputs = ["" if v == ABSENT else graph.values[v].name for v in node.outputs]
        inputs = [names[i] for i in kept if i < len(names)]
        origin = Origin(
            node.name, op, node.name, encode(view, converted), inputs, outputs, row_inputs=names, row_outputs=outputs
        )
        annotations = {**node.annotations, framework: msgspec.to_builtins(origin)}
        nodes[n] = replace(node, annotations=MappingProxyType(annotations))
    return replace(graph, nodes=tuple(nodes))
