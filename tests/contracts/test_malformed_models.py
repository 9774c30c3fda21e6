"""Files with a malformed node are refused with a GraphError, and by the reader where types show the fault.

Each example of an op is written as an ONNX file of one node and mutated: an input is dropped, gets another rank, length
or dtype, an attribute gets another type or value. A file that is read is differentiated, costed and executed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
from onnx import AttributeProto, ModelProto, helper, numpy_helper

from graph.errors import CannotExecute, GraphError
from graph.execution.interpreter import execute
from graph.formats.readers import load
from graph.ir import FLOAT_DTYPES, Graph, Role
from graph.ops.registry import work
from graph.ops.registry.onnx_fallback import onnx_dtype, type_of_array
from graph.ops.registry.registry import make_call
from graph.training.step import training_step
from tests.contracts.composite_examples import COMPOSITES
from tests.contracts.gradient_examples import EXAMPLES
from tests.contracts.node_cases import cases_by_op, ops_with_cases
from tests.contracts.op_examples import MORE

Arrays = tuple[np.ndarray | None, ...]
Attributes = Mapping[str, Any]
PARTS = 12  # of the heavy test
MAX_ELEMENTS = 5000  # of an input of an example
DTYPES = ("float32", "float16", "int64", "int32", "bool", "uint8")
VALUES = {
    "text": "abc",
    "7": 7,
    "-9": -9,
    "0": 0,
    "1.5": 1.5,
    "huge": 2**62,  # read, but not executed
    "integers": [1, 2, 3],
    "floats": [1.5],
    "texts": ["a", "b"],
    "tensor": np.ones(2, np.float32),
}
#: Ops whose faults lie in the content of an input (indices out of range, nothing to repeat), which execution finds.
BY_CONTENT = {
    "ArgMax",
    "ArgMin",
    "Compress",
    "Gather",
    "GatherElements",
    "GatherND",
    "MaxRoiPool",
    "MaxUnpool",
    "Pad",
    "Resize",
    "RoiAlign",
    "RotaryEmbedding",
    "Scatter",
    "ScatterElements",
    "ScatterND",
    "TensorScatter",
    "com.microsoft::EmbedLayerNormalization",
    "com.microsoft::GroupQueryAttention",
    "com.microsoft::RotaryEmbedding",
}
#: Ops without a gradient or a kernel of ours, whose faults `onnx.reference` finds.
BY_REFERENCE = {"Col2Im", "DFT", "STFT", "TfIdfVectorizer"}


class Sample:
    """One example: op, inputs, attributes and wanted outputs."""

    def __init__(self, op: str, inputs: Arrays, attributes: Attributes, outputs: tuple[bool, ...], opset: int):
        self.op, self.attributes, self.outputs, self.opset = op, dict(attributes), outputs, opset
        self.inputs = tuple(a.astype(np.float32) if a is not None and a.dtype == np.float64 else a for a in inputs)

    def size(self) -> int:
        return len(self.inputs) + len(self.attributes)

    def model(self, inputs: Arrays, attributes: Attributes) -> ModelProto | None:
        """The file with these inputs and attributes; None where `onnx` cannot write it."""
        domain, _, name = self.op.rpartition("::")
        given = {f"x{i}": array for i, array in enumerate(inputs) if array is not None}
        names = [f"x{i}" if array is not None else "" for i, array in enumerate(inputs)]
        outputs = [f"y{i}" if is_used else "" for i, is_used in enumerate(self.outputs)]
        node = helper.make_node(name, names, outputs, name="node", domain=domain)
        try:
            node.attribute.extend(_attribute(key, value) for key, value in attributes.items())
        except (TypeError, ValueError):
            return None
        fed = {"x0"} if "x0" in given and given["x0"].dtype.kind == "f" else set()
        graph = helper.make_graph(
            [node],
            "one node",
            [helper.make_tensor_value_info(x, onnx_dtype(type_of_array(given[x]).dtype), given[x].shape) for x in fed],
            [helper.make_empty_tensor_value_info(y) for y in outputs if y],
            [numpy_helper.from_array(array, x) for x, array in given.items() if x not in fed],
        )
        imports = [helper.make_opsetid("", self.opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _attribute(key: str, value: Any) -> AttributeProto:
    return helper.make_attribute(key, numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value)


@cache
def samples() -> dict[str, list[Sample]]:
    """Per op one example for each number of inputs and set of attributes, the one with most of both first."""
    found: dict[str, dict[object, Sample]] = {}
    every = [Sample(e.op, e.inputs, e.attributes, e.outputs, e.opset) for e in (*EXAMPLES, *COMPOSITES, *MORE)]
    for cases in cases_by_op().values():
        every += [Sample(c.op, c.inputs, c.attributes, tuple(y is not None for y in c.outputs), c.opset) for c in cases]
    for sample in every:
        arrays = [array for array in sample.inputs if array is not None]
        small = all(array.size <= MAX_ELEMENTS and array.dtype.kind in "fiub" for array in arrays)
        if small and not sample.op.startswith("remat::"):
            found.setdefault(sample.op, {}).setdefault((len(sample.inputs), *sorted(sample.attributes)), sample)
    return {op: sorted(kinds.values(), key=Sample.size, reverse=True) for op, kinds in found.items()}


#: Ops with an example; tests are collected without the examples, which take seconds to make.
OPS = sorted({e.op for e in (*EXAMPLES, *COMPOSITES, *MORE) if not e.op.startswith("remat::")} | ops_with_cases())


def test_every_op_has_an_example() -> None:
    assert sorted(samples()) == OPS


def mutations(inputs: Arrays, attributes: Attributes) -> Iterator[tuple[str, Arrays, Attributes]]:
    """(what is changed, inputs, attributes)."""
    for i, array in enumerate(inputs):
        if array is not None:
            for what, changed in _changed(array):
                yield f"input {i} {what}", (*inputs[:i], changed, *inputs[i + 1 :]), attributes
    yield "without the last input", inputs[:-1], attributes
    yield "one more input", (*inputs, np.ones((2, 3), np.float32)), attributes
    yield "without inputs", (), attributes
    for key, value in attributes.items():
        yield f"without {key}", inputs, {k: v for k, v in attributes.items() if k != key}
        for what, other in VALUES.items():
            if not (type(other) is type(value) and not isinstance(other, np.ndarray) and other == value):
                yield f"{key} {what}", inputs, {**attributes, key: other}


def _changed(array: np.ndarray) -> Iterator[tuple[str, np.ndarray | None]]:
    yield "absent", None
    yield "with an axis before", array[None]
    yield "with an axis behind", array[..., None]
    if array.ndim:
        yield "without axis 0", array[0] if len(array) else np.zeros(array.shape[1:], array.dtype)
        yield "longer on the first axis", np.concatenate([array, array[:1], array[:1]])
        yield "longer on the last axis", np.concatenate([array, array[..., :1], array[..., :1]], -1)
    yield "empty", array[:0] if array.ndim else np.zeros(0, array.dtype)
    for dtype in DTYPES:
        if array.dtype != dtype:
            yield dtype, array.astype(dtype)


def fault(model: ModelProto, executed: bool = True) -> str:
    """ "read" when the reader refuses, "run" when execution does, else "". No other exception may come."""
    try:
        graph = load(model.SerializeToString())
    except GraphError:
        return "read"
    step = _step(graph)
    for node in step.nodes:
        work(make_call(step, node))
    try:
        if executed:
            execute(step)
    except CannotExecute:
        return "run"
    return ""


def _step(graph: Graph) -> Graph:
    """The training step of all floating outputs, or the graph where they have no gradient."""
    floats = [v.name for v in (graph.values[i] for i in graph.outputs) if v.type and v.type.dtype in FLOAT_DTYPES]
    wanted = [v.name for v in graph.values if v.role in (Role.INPUT, Role.PARAMETER) and v.type.dtype in FLOAT_DTYPES]
    try:
        return training_step(graph, of=floats, with_respect_to=wanted)[0] if floats and wanted else graph
    except GraphError:
        return graph


def check(op: str, sample: Sample) -> None:
    """Require a refusal by the reader of each mutation that cannot be executed."""
    model = sample.model(sample.inputs, sample.attributes)
    if model is None or fault(model):
        return  # not of this opset, or without a kernel in float32
    for what, inputs, attributes in mutations(sample.inputs, sample.attributes):
        model = sample.model(inputs, attributes)
        if model is not None:
            found = fault(model, executed=not what.endswith("huge"))
            assert found != "run" or op in BY_CONTENT | BY_REFERENCE, f"{op}: {what} is read, but cannot be executed"


@pytest.mark.parametrize("op", OPS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_malformed_node_is_refused_by_name(op: str) -> None:
    check(op, samples()[op][0])


@pytest.mark.heavy
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_malformed_form_of_a_node_is_refused_by_name(part: int) -> None:
    for op in OPS[part::PARTS]:
        for sample in samples()[op][1:]:
            check(op, sample)


MALFORMED = {
    "a bias of rank 2": ("Conv", [(1, 3, 5, 5), (4, 3, 3, 3), (1, 4)], {}, "input 2"),
    "a bias of another length": ("Conv", [(1, 3, 5, 5), (4, 3, 3, 3), (3,)], {}, "input 2"),
    "a scale longer than the channels": ("InstanceNormalization", [(1, 3, 5), (4,), (4,)], {}, "input 1"),
    "a scale longer than the row": ("LayerNormalization", [(2, 8), (9,)], {}, "input 1"),
    "scales per group of an opset with scales per channel": (
        "GroupNormalization",
        [(1, 4, 5), (2,), (2,)],
        {"num_groups": 2},
        "4 entries",
    ),
    "a text for epsilon": ("GroupNormalization", [(1, 4, 5), (4,), (4,)], {"num_groups": 2, "epsilon": "x"}, "epsilon"),
    "a number for axes": ("ReduceMean", [(2, 3), ()], {}, "input 1"),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_the_message_names_the_node_and_the_input(what: str) -> None:
    op, shapes, attributes, expected = MALFORMED[what]
    inputs = [np.ones(shape, np.float32) for shape in shapes]
    if op == "ReduceMean":
        inputs[1] = np.array(1)
    model = Sample(op, tuple(inputs), attributes, (True,), 21).model(tuple(inputs), attributes)
    assert model is not None
    with pytest.raises(GraphError, match=expected) as refusal:
        load(model.SerializeToString())
    assert "graph.node[0]" in str(refusal.value)
    assert op in str(refusal.value)
