"""No call and no file ends the process, keeps it busy or fills its memory: each is asked in a child process."""

from __future__ import annotations

import functools
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import GraphProto, NodeProto, helper, numpy_helper

from graph.errors import BadGraph
from graph.formats.readers import load
from graph.ir import TensorType
from graph.limits import ShapeOverrides
from graph.ops.registry import infer, work
from graph.ops.registry.constant_folding import fold_constants
from graph.ops.registry.dtypes import onnx_dtype
from graph.ops.registry.onnx_fallback import type_of_array
from graph.ops.registry.registry import Call

SECONDS = 5  # for one call
MEGABYTES = 200  # that one call may add to what the process holds
HUGE = 2**62


def of(op: str, *inputs: Any, outputs: int = 1, opset: int = 21, declared: Any = None, **attributes: Any) -> Call:
    """A call whose inputs are shapes of float32 tensors, types, contents that are known, or None."""
    types, contents = [], []
    for given in inputs:
        content = given if isinstance(given, np.ndarray) else None
        kind = TensorType("float32", given) if isinstance(given, tuple) else given
        types.append(kind if content is None else type_of_array(content))
        contents.append(content)
    return Call(op, attributes, tuple(types), (declared,) * outputs, (True,) * outputs, tuple(contents), opset)


def int64(*shape: int) -> TensorType:
    return TensorType("int64", shape)


REFUSED: dict[str, tuple[Call, str]] = {
    "more outputs than parts": (of("Split", (6,), outputs=3, num_outputs=2), "3 outputs and num_outputs 2"),
    "fewer outputs than lengths": (of("Split", (6,), np.array([1, 2, 3]), outputs=2), "2 outputs for 3 lengths"),
    "batch axes below zero": (of("GatherND", (0, 4, 8), int64(1), batch_dims=-2), "batch_dims -2"),
    "an axis past all": (of("LayerNormalization", (8, 1), (1,), outputs=3, axis=2**31), "axis 2147483648"),
    "a shape of 2^31 lengths": (of("Expand", (4,), int64(2**31)), "at most 64"),
    "a shape of 2^24 lengths": (of("Reshape", (4,), int64(2**24)), "at most 64"),
    "a shape of 2^31 lengths to fill": (of("ConstantOfShape", int64(2**31)), "at most 64"),
    "a tensor of 4096 axes": (of("Relu", (1,) * 4096), "at most 64"),
    "more than 64 axes made": (of("Unsqueeze", (1,) * 64, np.array([0])), "65 axes"),
    "two dots": (of("Einsum", (2, 3), (3, 2), equation="i..j"), "write letters"),
    "a length below zero": (of("Pad", (4,), np.array([-HUGE, -HUGE])), "below 0"),
    "a window larger than its input": (of("Conv", (1, 2, 2, 2), (1, 2, 9, 9)), "below 0"),
    "a weight without channels": (of("Conv", (1, 2, 2, 2), ()), "rank at least 2"),
    "a product of numbers": (of("Gemm", (), (), (), opset=9), "rank 2"),
    "a product of a number and something nobody knows": (of("Gemm", (), None, opset=13), "rank 2"),
    "an image resized into another number of axes": (
        of("Resize", (1, 2, 4), None, None, int64(2), declared=TensorType("float32", (1, 2))),
        "",
    ),
    "words for lengths, of a tensor nobody knows": (of("MaxPool", None, kernel_shape=["a", "b"]), "kernel_shape"),
    "a recurrent layer of numbers": (of("LSTM", (), (), ()), "rank 3"),
    "groups of nothing": (of("GroupNormalization", (2, 4), (4,), (4,), num_groups=0), "1 or more"),
    "groups of no input": (of("GroupNormalization", num_groups=2), "has 0 inputs"),
    "a transpose of nothing": (of("Transpose", perm=[0]), "has 0 inputs"),
    "a permutation that is a number": (of("Transpose", (2, 3), perm=3), "perm"),
    "a permutation of words": (of("Transpose", (2, 3), perm=["a", None]), "perm"),
    "an attribute of many words": (of("Softmax", (2, 3), axis=["x" * 1000] * 100), "attribute axis"),
    "a number past 64 bits": (of("Softmax", (2, 3), axis=2**70), "axis"),
    "attributes of another kind in an op of ours": (of("remat::ConvGradInput", (1,), (2,), input_shape=7), ""),
}
_LENGTH = TensorType("float32", (4,))
#: Read without being computed: what they would take is not said by the sizes of inputs and outputs.
NOT_FOLDED: dict[str, Call] = {
    "a small convolution with huge padding": of(
        "Conv", np.ones((1, 1, 4), np.float32), np.ones((1, 1, 1), np.float32), pads=[2**33, 2**33], strides=[2**33]
    ),
    "a small pool with huge padding": of(
        "AveragePool", np.ones((1, 1, 4), np.float32), kernel_shape=[2**33], pads=[2**33 - 1] * 2, strides=[2**33]
    ),
    "a normalisation over 2^31 channels": of("LRN", np.ones((1, 2, 2, 2), np.float32), size=2**31 + 1),
    "a product of ten inputs": of("Einsum", *[np.ones(16, np.float32)] * 10, equation=",".join("abcdefghij") + "->"),
    "a range whose length only the document says": of(
        "Range", *[np.array(x, np.float16) for x in (0, 6e4, 6e-8)], declared=TensorType("float16", (4,))
    ),
    "a filled shape that only the document says": of("ConstantOfShape", np.array([[2**20, 2**20]]), declared=_LENGTH),
    "a shape of more than counts": of("Expand", np.ones(1, np.float32), np.array([[2**40]]), declared=_LENGTH),
    "2^40 elements in a range": of("Range", *[np.array(x, np.int64) for x in (0, 2**40, 1)]),
    "2^40 elements filled": of("ConstantOfShape", np.array([2**40])),
    "2^40 elements repeated": of("Tile", np.ones(1, np.float32), np.array([2**40])),
    "no elements of 2^40 rows": of("Tile", np.ones((1, 1), np.float32), np.array([2**40, 0])),
}


def model(
    nodes: list[NodeProto], inputs: Mapping[str, tuple[int, ...]], held: Mapping[str, np.ndarray], opset: int = 21
) -> bytes:
    given = [helper.make_tensor_value_info(name, onnx_dtype("float32"), shape) for name, shape in inputs.items()]
    outputs = [helper.make_empty_tensor_value_info(name) for name in nodes[-1].output]
    tensors = [numpy_helper.from_array(array, name) for name, array in held.items()]
    graph = helper.make_graph(nodes, "g", given, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]).SerializeToString()


def branch(*inputs: str) -> GraphProto:
    given = [helper.make_tensor_value_info(name, onnx_dtype("float32"), (2,)) for name in inputs]
    node = helper.make_node("Identity", [inputs[0] if inputs else "x"], ["y"])
    return helper.make_graph([node], "b", given, [helper.make_empty_tensor_value_info("y")])


def scan(**attributes: Any) -> bytes:
    node = helper.make_node("Scan", ["x"], ["z"], body=branch("s"), **{"num_scan_inputs": 1} | attributes)
    return model([node], {"x": (4, 2)}, {})


FILES: dict[str, bytes] = {
    "more outputs than parts": model(
        [helper.make_node("Split", ["x"], ["a", "b", "c"], num_outputs=2)], {"x": (1, 6)}, {}
    ),
    "a branch with inputs": model(
        [helper.make_node("If", ["c"], ["z"], then_branch=branch("s"), else_branch=branch())],
        {"x": (2,)},
        {"c": np.array(True)},
    ),
    "a scan of 2^40 inputs": scan(num_scan_inputs=2**40),
    "a scan along an axis that is not there": scan(scan_input_axes=[7]),
    "a scan with an axis too many": scan(scan_input_axes=[0, 0]),
    "a scan that writes along an axis that is not there": scan(scan_output_axes=[9]),
    "a loop of no count": model(
        [helper.make_node("Loop", ["n"], ["z"], body=branch("i", "c"))], {"x": (2,)}, {"n": np.zeros(0, np.int64)}
    ),
    "groups of an old opset without channels": model(
        [helper.make_node("GroupNormalization", ["x", "s", "s"], ["y"], num_groups=2)],
        {"x": (4,)},
        {"s": np.ones(2, np.float32)},
        18,
    ),
    "a constant of no elements in 2^24 rows": model(
        [helper.make_node("MatMul", ["x", "k"], ["y"])], {"x": (1, 4)}, {"k": np.zeros((2**24, 0), np.float32)}
    ),
    "a constant of words for numbers": model(
        [helper.make_node("Constant", [], ["y"], value_floats=["a", "b"])], {"x": (1, 4)}, {}
    ),
    "a normalisation without its weights": model(
        [helper.make_node("LayerNormalization", ["x", ""], ["y"])], {"x": (1, 4)}, {}
    ),
}


def ask_refused(name: str) -> str:
    call, words = REFUSED[name]
    try:
        return f"typed as {infer(call)}"
    except ValueError as error:
        said = str(error)
    return "" if words in said and "\n" not in said and len(said) < 500 else f"said {said[:500]!r}"


def ask_folded(name: str) -> str:
    call = NOT_FOLDED[name]
    try:
        types = infer(call)
    except ValueError:
        return ""
    work(call)
    return "" if fold_constants(call, types) is None else "computed"


def ask_file(name: str) -> str:
    for batch in (None, 3):
        try:
            load(FILES[name], shapes=ShapeOverrides(batch=batch))
        except BadGraph as error:
            if not all(f.path and f.found and f.expected and f.remedy for f in error.findings):
                return f"batch {batch}: {error}"
        else:
            return f"batch {batch}: read"
    return ""


ASKED: dict[str, tuple[Callable[[str], str], Mapping[str, Any]]] = {
    "refused": (ask_refused, REFUSED),
    "folded": (ask_folded, NOT_FOLDED),
    "file": (ask_file, FILES),
}


def ask_all() -> None:
    """One line when a case begins, and one with what is wrong with it or nothing when it ends."""
    for kind, (ask, cases) in ASKED.items():
        for name in cases:
            print(f"begin {kind}/{name}", flush=True)
            signal.alarm(SECONDS)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            wrong = ask(name)
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
            print(f"end {kind}/{name}: {wrong or ('' if grown < MEGABYTES else f'took {grown} MB')}", flush=True)


@functools.cache
def told() -> tuple[str, ...]:
    """What the child says of every case, up to the one that ends it."""
    root = Path(__file__).resolve().parents[4]
    child = subprocess.run(
        [sys.executable, "-m", "tests.graph.ops.registry.test_hostile_calls"], cwd=root, capture_output=True, text=True
    )
    return (*child.stdout.splitlines(), f"the child ended with {child.returncode}: {child.stderr[-500:]}")


@pytest.mark.parametrize("case", [f"{kind}/{name}" for kind, (_, cases) in ASKED.items() for name in cases])
def test_a_hostile_case_is_answered_at_once_and_in_words(case: str) -> None:
    answer = next((line for line in told() if line.startswith(f"end {case}: ")), f"no answer; {told()[-1]}")
    assert answer == f"end {case}: "


def test_the_same_ops_are_answered_when_they_are_used_well() -> None:
    halves = infer(of("Split", (6,), outputs=2, num_outputs=2))
    assert halves == (TensorType("float32", (3,)),) * 2
    assert infer(of("Einsum", (2, 3), (3, 2), equation="... i j, ...jk -> ...ik")) is not None
    assert infer(of("Expand", (1,), np.array([4, 5]))) == (TensorType("float32", (4, 5)),)
    assert infer(of("GroupNormalization", (2, 4), (4,), (4,), num_groups=2)) == (TensorType("float32", (2, 4)),)
    made = of("Range", *[np.array(x, np.int64) for x in (0, 4, 1)])
    arrays = fold_constants(made, infer(made))
    assert arrays is not None and arrays[0] is not None and arrays[0].tolist() == [0, 1, 2, 3]


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ask_all()
