"""Types of the outputs of a document's nodes, asked of the op table once per distinct use.

A document repeats its layers and shares one record for equal types: keys hold the identity of types, so
that a repeated node costs a dictionary look-up instead of a question.
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
#: What a type rule may raise on attributes nobody expected; told as a fault of the node.
TYPE_RULE_ERRORS = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)


class TypeInference:
    """Answers under one opset, and the contents that follow from known contents."""

    def __init__(self, opset: int, contents: Mapping[int, np.ndarray]):
        self.opset = opset
        self.contents = dict(contents)  # by value id; shape arithmetic adds to it
        #: Per question its answer and the input types, whose `id` is in the key and taken while they are kept.
        self._answers: dict[tuple[Any, ...], tuple[OutputTypes | None, OutputTypes]] = {}
        self._opaque: dict[str, bool] = {}

    def is_opaque(self, op: str) -> bool:
        """True for an op that neither the op table nor the standard types."""
        found = self._opaque.get(op)
        if found is None:
            record = find_op(op)
            found = (record is None or record.infer is None) and schema_of(op, self.opset) is None
            self._opaque[op] = found
        return found

    def outputs(self, node: Node, types: list[TensorType | None]) -> OutputTypes | None:
        """Types of the node's outputs, or None for an opaque op. Raises one of REFUSALS."""
        if self.is_opaque(node.op):
            return None
        if ABSENT in node.inputs:
            check_present(node.op, self.opset, [v != ABSENT for v in node.inputs])
        if node.op in ("Shape", "Size") or (self.contents and any(v in self.contents for v in node.inputs)):
            return self._with_contents(node, types)
        asked = tuple([None if v == ABSENT else types[v] for v in node.inputs])
        key = (
            node.op,
            freeze(node.attributes) if node.attributes else (),
            tuple(map(id, asked)),
            tuple([v != ABSENT for v in node.outputs]),
        )
        found = self._answers.get(key)
        if found is None:
            told = infer(_call(node, types, self.opset, False))
            complete = all(t is not None for t, v in zip(told, node.outputs, strict=False) if v != ABSENT)
            found = self._answers[key] = (told if complete and len(told) >= len(node.outputs) else None, asked)
        answer = found[0]
        return infer(_call(node, types, self.opset, True)) if answer is None else answer

    def _with_contents(self, node: Node, types: list[TensorType | None]) -> OutputTypes:
        """As `outputs`, for a node that reads known contents or shapes; its own contents are kept when small."""
        call = _call(node, types, self.opset, True, tuple(self.contents.get(v) for v in node.inputs))
        answer = infer(call)
        arrays = fold_constants(call, answer)
        for v, array in zip(node.outputs, arrays or (), strict=False):
            if v != ABSENT and array is not None:
                self.contents[v] = array
        return answer


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
