"""Conditions a case writes as text, such as `a - b < -1.0`, as rows of a program."""

from __future__ import annotations

import ast
from collections.abc import Mapping

import numpy as np

from graph.formats.document.schema import NodeRow
from graph.formats.shared.program import Program
from graph.ir import TensorType
from graph.ops.registry.onnx_fallback import numpy_dtype

_COMPARED = {ast.Lt: "Less", ast.LtE: "LessOrEqual", ast.Gt: "Greater", ast.GtE: "GreaterOrEqual", ast.Eq: "Equal"}
_COMPUTED = {ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul", ast.Div: "Div"}


def add_condition(program: Program, text: str, names: Mapping[str, str]) -> str:
    """Name of the truth value of a comparison; `names` says what each word of it is called in the program."""
    test = ast.parse(text, mode="eval").body
    assert isinstance(test, ast.Compare) and len(test.ops) == 1, text
    kinds = {program.types[names.get(node.id, node.id)].dtype for node in ast.walk(test) if isinstance(node, ast.Name)}
    (dtype,) = kinds
    left, right = (_value(program, part, names, dtype) for part in (test.left, test.comparators[0]))
    return _add(program, _COMPARED[type(test.ops[0])], [left, right], "bool")


def _value(program: Program, part: ast.expr, names: Mapping[str, str], dtype: str) -> str:
    if isinstance(part, ast.Name):
        return names.get(part.id, part.id)
    if isinstance(part, ast.BinOp):
        operands = [_value(program, side, names, dtype) for side in (part.left, part.right)]
        return _add(program, _COMPUTED[type(part.op)], operands, dtype)
    number = ast.literal_eval(part)
    return program.constant(program.free_name("number"), np.array(number).astype(numpy_dtype(dtype)))


def _add(program: Program, op: str, inputs: list[str], dtype: str) -> str:
    shape = max((program.types[name].shape for name in inputs), key=len)
    name = program.free_name(f"condition/{op}")
    program.add(NodeRow(name, op, inputs, [name]), [TensorType(dtype, shape)])
    return name
