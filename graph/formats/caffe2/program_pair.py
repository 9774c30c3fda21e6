"""The two nets that Caffe2 deploys: an init net that fills the blobs, and the net that runs.

parameter   the fill of the file, with its values; else zeros of its shape and type, listed in `shapes_only`
constant    its values
input       the exporters' placeholder of one zero
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from graph.errors import quoted
from graph.formats.caffe2.ops import DTYPES, GIVEN_DTYPES
from graph.formats.caffe2.proto import caffe2, net_of
from graph.formats.caffe2.reader import SHAPES_ONLY
from graph.formats.caffe2.writer import dump
from graph.formats.shared.groups import not_representable
from graph.ir import Graph, Role, Value

_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
_GIVEN_FILLS = {dtype: op for op, dtype in GIVEN_DTYPES.items()}


def program_pair(graph: Graph) -> tuple[bytes, bytes]:
    """(init net, net) as bytes; written one after the other they are one model. Raises BadGraph."""
    net, init = net_of(dump(graph)), caffe2()["NetDef"](name=f"{graph.name}_init")
    externals = set(net.external_input)
    fills = itertools.takewhile(lambda op: not op.input and externals.issuperset(op.output), net.op)
    init.op.extend(list(fills))
    del net.op[: len(init.op)]
    filled = {name for op in init.op for name in op.output}
    values = {value.name: value for value in graph.values}
    missing = [values[name] for name in net.external_input if name not in filled and name in values]
    for value in missing:
        _add_fill(init, value)
    if without := [value.name for value in missing if value.role in (Role.PARAMETER, Role.STATE)]:
        init.arg.add(name=SHAPES_ONLY).strings.extend(name.encode() for name in without)
    init.external_output.extend(name for op in init.op for name in op.output)
    return init.SerializeToString(deterministic=True), net.SerializeToString(deterministic=True)


def _add_fill(init: Any, value: Value) -> None:
    if value.role is Role.INPUT:
        _given(init, value.name, np.zeros((1, 1), np.float32))
    elif value.data is not None:
        _given(init, value.name, value.data)
    else:
        type = value.type
        if type is None or type.dtype not in _NUMBERS:
            raise not_representable(f"values.{value.name}", f"{quoted(value.name)} of {type}", "a type that Caffe2 has")
        op = init.op.add(type="ConstantFill", output=[value.name])
        op.arg.add(name="shape").ints.extend(type.shape)
        op.arg.add(name="dtype").i = _NUMBERS[type.dtype]


def _given(init: Any, name: str, data: np.ndarray) -> None:
    """Add a fill with the values of an array."""
    if data.dtype.name not in _GIVEN_FILLS:
        raise not_representable(f"values.{name}", f"{quoted(name)} of {data.dtype.name}", "a type that a fill has")
    op = init.op.add(type=_GIVEN_FILLS[data.dtype.name], output=[name])
    op.arg.add(name="shape").ints.extend(data.shape)
    values = op.arg.add(name="values")
    (values.floats if data.dtype.kind == "f" else values.ints).extend(data.reshape(-1).tolist())
