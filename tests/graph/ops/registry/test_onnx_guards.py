"""No use of a standard op ends the process, whatever its attributes, types and number of outputs."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest
from onnx import defs

from graph.ir import TensorType
from graph.ops.registry.onnx_fallback import infer
from graph.ops.registry.registry import Call

DTYPES = {
    "float32": "float",
    "int64": "int64",
    "bool": "bool",
    "int32": "int32",
    "float16": "float16",
    "uint8": "uint8",
}
KINDS = defs.OpSchema.AttrType
INTEGERS = [-3, -2, -1, 0, 1, 2, 3, 7, 100, 2**31, -(2**63), 2**63 - 1]
WORDS = ["", "SAME_UPPER", "VALID", "linear", "ij,jk->ik", "...i->i", "i->", "bidirectional", "forward", "DCR"]
OPS = sorted({s.name for s in defs.get_all_schemas() if s.domain == "" and not s.deprecated})


def random_attribute(rng: random.Random, kind: Any) -> Any:
    if kind == KINDS.INT:
        return rng.choice(INTEGERS)
    if kind == KINDS.INTS:
        return [rng.choice(INTEGERS) for _ in range(rng.randint(0, 6))]
    if kind == KINDS.FLOAT:
        return rng.choice([-1.0, 0.0, 0.5, 3.0])
    if kind == KINDS.FLOATS:
        return [rng.random() for _ in range(rng.randint(0, 5))]
    if kind == KINDS.STRING:
        return rng.choice(WORDS)
    if kind == KINDS.TENSOR:
        return np.zeros([rng.randint(0, 2) for _ in range(rng.randint(0, 2))], np.int64)
    return None


def random_call(rng: random.Random, schema: Any, opset: int) -> Call:
    """A call whose dtypes and counts the schema allows; everything else is anything."""
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    dtype_of: dict[str, str] = {}
    inputs: list[TensorType | None] = []
    contents: list[np.ndarray | None] = []
    most = min(schema.max_input, schema.min_input + 5)
    for i in range(rng.choice([schema.min_input, most, rng.randint(schema.min_input, most)])):
        formal = schema.inputs[min(i, len(schema.inputs) - 1)]
        fits = [d for d, own in DTYPES.items() if f"tensor({own})" in allowed.get(formal.type_str, [formal.type_str])]
        dtype = dtype_of.setdefault(formal.type_str, rng.choice(fits or ["float32"]))
        shape = tuple(rng.choice([0, 1, 2, 3, 4, 8]) for _ in range(rng.randint(0, 5)))
        is_known = dtype in ("int64", "int32", "float32") and len(shape) < 2 and rng.random() < 0.5
        draws = [rng.choice([-5, -2, -1, 0, 1, 2, 3, 4, 50]) for _ in range(shape[0] if shape else 1)]
        inputs.append(TensorType(dtype, shape))
        contents.append(np.array(draws, dtype).reshape(shape) if is_known else None)
    attributes = {
        key: value
        for key, attribute in schema.attributes.items()
        if (attribute.required or rng.random() < 0.5) and (value := random_attribute(rng, attribute.type)) is not None
    }
    outputs = rng.randint(schema.min_output, min(schema.max_output, schema.min_output + 4))
    wanted = tuple(rng.random() < 0.9 for _ in range(outputs))
    return Call(schema.name, attributes, tuple(inputs), (None,) * outputs, wanted, tuple(contents), opset)


def ask_in_a_child(op: str, count: int, seed: int = 0) -> tuple[int, str]:
    """(status of a child that asks `count` random calls, the last call it asked)."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.close(reader)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        rng = random.Random(f"{op} {seed}")
        for _ in range(count):
            opset = rng.choice([13, 18, 21, 23])
            try:
                call = random_call(rng, defs.get_schema(op, opset, ""), opset)
            except defs.SchemaError:
                continue  # this opset does not have the op
            os.write(writer, f"\n{call}"[:2000].encode())
            try:
                infer(call)
            except ValueError:
                pass
            except BaseException as error:
                os.write(writer, f" raised {error!r}".encode()[:500])
                os._exit(1)
        os._exit(0)
    os.close(writer)
    told = b""
    while piece := os.read(reader, 1 << 16):
        told = (told + piece)[-4000:]
    os.close(reader)
    return os.waitpid(child, 0)[1], told.decode("utf-8", "replace").rpartition("\n")[2]


@pytest.mark.parametrize("op", ["Split", "GatherND", "LayerNormalization", "RMSNormalization"])
def test_guarded_ops_are_refused_and_not_crashed_on(op: str) -> None:
    status, last = ask_in_a_child(op, 300)
    assert status == 0, last


@pytest.mark.heavy
@pytest.mark.parametrize("op", OPS)
def test_no_op_ends_the_process(op: str) -> None:
    status, last = ask_in_a_child(op, 300)
    assert status == 0, last


@pytest.mark.parametrize(
    "call",
    [
        Call("Split", {"num_outputs": 2}, (TensorType("float32", (3, 4)),), (None,) * 3, (True,) * 3),
        Call("Split", {"num_outputs": 2**31}, (TensorType("float32", (3, 4)),), (None,) * 2, (True,) * 2),
        Call(
            "GatherND",
            {"batch_dims": -2},
            (TensorType("float32", (0, 4, 8, 3)), TensorType("int64", (1,))),
            (None,),
            (True,),
        ),
        Call(
            "LayerNormalization",
            {"axis": 2**31},
            (TensorType("float32", (8, 1)), TensorType("float32", (1,))),
            (None,) * 3,
            (True,) * 3,
        ),
    ],
    ids=lambda call: call.op,
)
def test_contradictions_are_reported(call: Call) -> None:
    with pytest.raises(ValueError):
        infer(call)
