"""ONNX's own node tests, from the installed package: one node each, with inputs and expected outputs."""

from __future__ import annotations

import fcntl
import pickle
import platform
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, defs, numpy_helper
from onnx.backend.test.loader import load_model_tests

from app.atomic_files import write_atomic
from graph.formats.onnx.read import protos
from graph.formats.onnx.read.protos import raw_node
from graph.ops.registry import onnx_fallback
from graph.ops.registry.onnx_fallback import dtype_name

FOLDER = Path(__file__).parents[2] / ".pytest_cache" / "onnx-node-tests"  # of files with all tests, one per version
NEWEST = defs.onnx_opset_version()
#: Reason -> ops of the standard of which no node test can be run.
NO_CASE = {
    "takes or returns sequences or optional values": (
        "ConcatFromSequence Optional SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert "
        "SequenceLength SequenceMap SplitToSequence"
    ),
    "takes or returns text": "RegexFullMatch StringConcat StringNormalizer StringSplit",
    "has bodies, which the tests of control flow run": "If Loop Scan",
    "has no node test": (
        "GlobalLpPool MaxRoiPool Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike"
    ),
}


@dataclass(frozen=True, eq=False)
class NodeCase:
    """One test of an op; None is an absent input or output."""

    name: str
    op: str
    opset: int  # the newest, unless the test is of an older version of the op
    attributes: Mapping[str, Any]
    inputs: tuple[np.ndarray | None, ...]
    outputs: tuple[np.ndarray | None, ...]

    def __str__(self) -> str:
        return self.name


def ops_with_cases() -> set[str]:
    """Ops of the standard that have a node test: known without making the tests, which takes seconds."""
    ops = {schema.name for schema in defs.get_all_schemas() if schema.domain == "" and not schema.deprecated}
    return ops - {op for listed in NO_CASE.values() for op in listed.split()}


@cache
def cases_by_op() -> dict[str, list[NodeCase]]:
    """Tests of one node on tensors of numbers, in the order of their names.

    Made by the first process that needs them, in 11 s; the others read its file.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    sources = "".join(Path(file).read_text() for file in (__file__, protos.__file__, onnx_fallback.__file__))
    key = sha256(repr((onnx.__version__, np.__version__, platform.python_version(), sources)).encode()).hexdigest()[:16]
    file = FOLDER / f"{key}.pickle"
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            write_atomic(file, pickle.dumps(_made_cases()))
    return pickle.loads(file.read_bytes())  # type: ignore[no-any-return]


def _made_cases() -> dict[str, list[NodeCase]]:
    np.random.seed(0)  # noqa: NPY002  the package draws its inputs from the global generator
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = load_model_tests(kind="node")
    found: dict[str, list[NodeCase]] = {}
    for test in sorted(tests, key=lambda test: test.name):
        case = _case_of(test)
        if case is not None:
            found.setdefault(case.op, []).append(case)
    return found


def _case_of(test: Any) -> NodeCase | None:
    nodes = test.model.graph.node
    if len(nodes) != 1 or nodes[0].domain or any(attribute.HasField("g") for attribute in nodes[0].attribute):
        return None
    ((inputs, outputs),) = test.data_sets
    given, expected = ([_array(x) for x in arrays] for arrays in (inputs, outputs))
    if any(x is None for x in (*given, *expected)):
        return None
    node = raw_node(nodes[0], "node")
    named = dict(zip([x.name for x in test.model.graph.input], given, strict=True))
    made = dict(zip([y.name for y in test.model.graph.output], expected, strict=True))
    return NodeCase(
        test.name,
        node.op,
        _opset(node.op, test.model.opset_import[0].version),
        node.attributes,
        tuple([named[name] if name else None for name in node.inputs]),
        tuple([made[name] if name else None for name in node.outputs]),
    )


def _array(x: Any) -> np.ndarray | None:
    """An array of numbers; None for sequences, optionals, strings and float6, which no graph holds."""
    if isinstance(x, TensorProto):
        x = numpy_helper.to_array(x)
    if not isinstance(x, np.ndarray | np.generic):
        return None
    try:
        dtype_name(x.dtype)
    except ValueError:
        return None
    return np.asarray(x)


def _opset(op: str, written_for: int) -> int:
    old, new = (defs.get_schema(op, opset) for opset in (written_for, NEWEST))
    return NEWEST if old.since_version == new.since_version and not new.deprecated else written_for


def is_float(array: np.ndarray | None) -> bool:
    return array is not None and dtype_name(array.dtype) in ("float16", "bfloat16", "float32", "float64")
