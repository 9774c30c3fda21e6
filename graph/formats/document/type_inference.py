"""Output types of a document's nodes, inferred by the op table and cached per distinct use.

Documents repeat layers, and equal types share one record. Cache keys hold the identity of types, so a repeated node
costs one dictionary look-up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graph.ir import ABSENT, Node, TensorType
from graph.ops.registry.constant_folding import fold_constants
from graph.ops.registry.dispatch import infer
from graph.ops.registry.onnx_fallback import freeze, schema_of
from graph.ops.registry.onnx_schemas import check_present
from graph.ops.registry.registry import Call, find_op

OutputTypes = tuple[TensorType | None, ...]
#: Exceptions that a type rule may raise for unexpected attributes; reported as a fault of the node.
TYPE_RULE_ERRORS = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)


class TypeInference:
    """Type inference under one opset, with constant folding of shape arithmetic."""

    def __init__(self, opset: int, contents: Mapping[int, np.ndarray]):
        self.opset = opset
        self.contents = dict(contents)  # by value id; constant folding adds to it
        #: Cache key -> (output types, input types). The input types stay referenced because the key holds their `id`.
        self._cache: dict[tuple[Any, ...], tuple[OutputTypes | None, OutputTypes]] = {}
        self._opaque: dict[str, bool] = {}

    def is_opaque(self, op: str) -> bool:
        """True for an op without type inference in the op table and without an ONNX schema."""
        opaque = self._opaque.get(op)
        if opaque is None:
            record = find_op(op)
            opaque = (record is None or record.infer is None) and schema_of(op, self.opset) is None
            self._opaque[op] = opaque
        return opaque

    def outputs(self, node: Node, types: list[TensorType | None]) -> OutputTypes | None:
        """Types of the node's outputs; None for an opaque op. Raises one of TYPE_RULE_ERRORS."""
        if self.is_opaque(node.op):
            return None
        if ABSENT in node.inputs:
            check_present(node.op, self.opset, [v != ABSENT for v in node.inputs])
        if node.op in ("Shape", "Size") or (self.contents and any(v in self.contents for v in node.inputs)):
            return self._with_contents(node, types)
        known = self._cached(node, types)
        return infer(_call(node, types, self.opset, True)) if known is None else known

    def _cached(self, node: Node, types: list[TensorType | None]) -> OutputTypes | None:
        """Output types from the cache; None when they depend on declared output types."""
        inputs = tuple([None if v == ABSENT else types[v] for v in node.inputs])
        attributes = freeze(node.attributes) if node.attributes else ()
        key = (node.op, attributes, tuple(map(id, inputs)), tuple([v != ABSENT for v in node.outputs]))
        cached = self._cache.get(key)
        if cached is None:
            outputs = infer(_call(node, types, self.opset, False))
            complete = all(t is not None for t, v in zip(outputs, node.outputs, strict=False) if v != ABSENT)
            cached = self._cache[key] = (outputs if complete and len(outputs) >= len(node.outputs) else None, inputs)
        return cached[0]

    def _with_contents(self, node: Node, types: list[TensorType | None]) -> OutputTypes:
        """As `outputs`, for a node that reads constants or shapes; small folded outputs are added to `contents`."""
        call = _call(node, types, self.opset, True, tuple(self.contents.get(v) for v in node.inputs))
        outputs = infer(call)
        arrays = fold_constants(call, outputs)
        for v, array in zip(node.outputs, arrays or (), strict=False):
            if v != ABSENT and array is not None:
                self.contents[v] = array
        return outputs


def _call(
    node: Node, types: list[TensorType | None], opset: int, declared: bool, contents: tuple[np.ndarray | None, ...] = ()
) -> Call:
    return Call(
        node.op,
        node.attributes,
        tuple(None if v == ABSENT else types[v] for v in node.inputs),
        tuple(types[v] if declared and v != ABSENT else None for v in node.outputs),
        tuple(v != ABSENT for v in node.outputs),
        contents,
        opset,
    )
