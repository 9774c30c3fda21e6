"""Upgrade of nodes from older opsets to opset 21, one rule per op.

A rule sees the static types of the node's inputs and may emit several ops. The tests run the old and the upgraded
model in onnxruntime. Ops with unchanged semantics between opset 7 and 21 have no rule.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import onnx
from onnx import NodeProto

from graph.formats.onnx.read.protos import RawNode
from graph.ir import TensorType
from graph.ops.registry.onnx_fallback import numpy_dtype, schema_of
from graph.ops.registry.onnx_schemas import one_line

TARGET_OPSET = 21
_IR_VERSION = 10


class UpgradeContext(Protocol):
    """Services of the walk that a rule may use."""

    def type(self, name: str) -> TensorType:
        """Type of a value. Raises BadGraph when it is not known."""

    def constant(self, array: np.ndarray, like: str) -> str:
        """Name of a new constant."""

    def fresh(self, like: str) -> str:
        """An unused name derived from `like`."""


UpgradeRule = Callable[[RawNode, UpgradeContext], Sequence[RawNode]]
#: op -> [(first opset without the rule, rule)]; the first applicable rule is used.
UPGRADE_RULES: dict[str, list[tuple[int, UpgradeRule]]] = {}


def is_old(op: str, opset: int) -> bool:
    """True when a rule exists for the op in that opset."""
    return any(opset < below for below, _ in UPGRADE_RULES.get(op, ()))


def check_old(proto: NodeProto, opset: int, raw: RawNode) -> None:
    """Raise BadGraph unless the node is valid under the schema of its opset; rules rely on this check."""
    schema = schema_of(raw.op, opset)
    if raw.bodies or any(attribute.ref_attr_name for attribute in proto.attribute):
        return  # the checker would open external data files of nested graphs, and lacks referenced attributes
    if schema is None or schema.deprecated:
        return  # the checker rejects unknown and deprecated ops
    try:
        onnx.checker.check_node(proto, _context(opset))
    except onnx.checker.ValidationError as error:
        raise raw.error(
            "type_conflict",
            f": {str(error).splitlines()[0]}",
            f"a node valid in opset {opset}",
            "correct the node's inputs, outputs or attributes",
        ) from None


@functools.lru_cache(maxsize=64)
def _context(opset: int) -> Any:
    context = onnx.checker.C.CheckerContext()
    context.ir_version, context.opset_imports = _IR_VERSION, {"": opset}
    return context


def upgrade(raw: RawNode, opset: int, place: UpgradeContext) -> Sequence[RawNode]:
    """Nodes of opset 21 equivalent to a node of an older opset. Raises BadGraph."""
    if raw.bodies and raw.op != "Scan":
        return (raw,)  # Scan is the only op with both a rule and nested graphs
    rule = next(rule for below, rule in UPGRADE_RULES[raw.op] if opset < below)
    try:
        return rule(raw, place)
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
        raise raw.error(
            "type_conflict",
            f" with {len(raw.inputs)} inputs and attributes "
            f"{', '.join(raw.attributes) or '(none)'} ({one_line(error)})",
            f"a node valid in opset {opset}",
            "correct the node's inputs, outputs or attributes",
        ) from None


def _rule(below: int, *ops: str) -> Callable[[UpgradeRule], UpgradeRule]:
    def register(rule: UpgradeRule) -> UpgradeRule:
        for op in ops:
            UPGRADE_RULES.setdefault(op, []).append((below, rule))
        return rule

    return register


def _changed(raw: RawNode, *, drop: Sequence[str] = (), **fields: Any) -> RawNode:
    """A copy with attributes `drop` removed and `fields` replaced."""
    attributes = {k: v for k, v in fields.pop("attributes", raw.attributes).items() if k not in drop}
    return dataclasses.replace(raw, attributes=attributes, **fields)


def _with_input(raw: RawNode, position: int, name: str) -> list[str]:
    """The node's inputs with `name` at `position`, padded with absent inputs."""
    inputs = [*raw.inputs, *[""] * (position + 1 - len(raw.inputs))]
    inputs[position] = name
    return inputs


def _to_inputs(raw: RawNode, place: UpgradeContext, *moves: tuple[str, int, Any]) -> list[RawNode]:
    """The node with attributes turned into inputs; `moves`: (attribute, input position, dtype)."""
    inputs = raw
    for attribute, position, dtype in moves:
        if attribute in raw.attributes:
            array = np.asarray(raw.attributes[attribute]).astype(dtype)
            inputs = _changed(
                inputs, drop=(attribute,), inputs=_with_input(inputs, position, place.constant(array, attribute))
            )
    return [inputs]


def _numpy(type: TensorType) -> np.dtype[Any]:
    return numpy_dtype(type.dtype)


@_rule(13, "Squeeze", "Unsqueeze", "ReduceSum")
@_rule(18, "ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum")
@_rule(18, "ReduceLogSumExp", "ReduceSumSquare")
def _axes(raw: RawNode, place: UpgradeContext) -> Sequence[RawNode]:
    return _to_inputs(raw, place, ("axes", 1, np.int64))


@_rule(11, "Clip")
def _clip(raw: RawNode, place: UpgradeContext) -> Sequence[RawNode]:
    dtype = _numpy(place.type(raw.inputs[0]))
    return _to_inputs(raw, place, ("min", 1, dtype), ("max", 2, dtype))


@_rule(11, "Pad")
def _pad(raw: RawNode, place: UpgradeContext) -> Sequence[RawNode]:
    return _to_inputs(raw, place, ("pads", 1, np.int64), ("value", 2, _numpy(place.type(raw.inputs[0]))))


@_rule(10, "Slice")
def _slice(raw: RawNode, place: UpgradeContext) -> Sequence[RawNode]:
    return _to_inputs(raw, place, ("starts", 1, np.int64), ("ends", 2, np.int64), ("axes", 3, np.int64))


@_rule(10, "TopK")
def _top_k(raw: RawNode, place: UpgradeContext) -> Sequence[RawNode]:
    attributes = {**raw.attributes, "k": [raw.attribute("k", 0)]}
    return _to_inputs(_changed(raw, attributes=attributes), place, ("k", 1, np.int64))


@_rule(13, "Split")
def _split_sizes(raw: RawNode, place: UpgradeContext) -> Sequence[RawNode]:
    if "split" not in raw.attributes:
        return _split_equally(raw, place)
    return _to_inputs(raw, place, ("split", 1, np.int64))


@_rule(18, "Split")
def _split_equally(raw: RawNode, place: UpgradeContext) -> Sequence[RawNode]:
    if len(raw.inputs) > 1:
        return (raw,)
    return (_changed(raw, attributes={**raw.attributes, "num_outputs": len(raw.outputs)}),)


@_rule(11, "Scatter")
def _scatter(raw: RawNode, place: UpgradeContext) -> Sequence[RawNode]:
    return (_changed(raw, op="ScatterElements"),)


@_rule(12, "Dropout")
def _dropout(raw: RawNode, place: UpgradeContext) -> Sequence[RawNode]:
    ratio = np.float32(raw.attribute("ratio", 0.5))
    inputs = [raw.inputs[0], place.constant(np.asarray(ratio), "ratio")]
    return (_changed(raw, drop=("ratio", "is_test"), inputs=inputs),)


@_rule(9, "BatchNormalization")
def _batch_norm_spatial(raw: RawNode, place: UpgradeContext) -> Sequence[RawNode]:
    """With spatial = 0 statistics are per position; rewritten as elementwise ops."""
    if raw.attribute("spatial", 1):
        return _batch_norm(raw, place)
    x, scale, bias, mean, variance = raw.inputs
    epsilon = place.constant(np.asarray(raw.attribute("epsilon", 1e-5)).astype(_numpy(place.type(variance))), "epsilon")
    names = [place.fresh(f"{raw.outputs[0]}/{part}") for part in ("shifted", "guarded", "root", "divided", "scaled")]
    shifted, guarded, root, divided, scaled = names
    steps = [
        ("Sub", [x, mean], shifted),
        ("Add", [variance, epsilon], guarded),
        ("Sqrt", [guarded], root),
        ("Div", [shifted, root], divided),
        ("Mul", [divided, scale], scaled),
        ("Add", [scaled, bias], raw.outputs[0]),
    ]
    return [RawNode(op, raw.name and f"{raw.name}/{op}", inputs, [out], raw.path) for op, inputs, out in steps]


@_rule(14, "BatchNormalization")
def _batch_norm(raw: RawNode, place: UpgradeContext) -> Sequence[RawNode]:
    """Outputs after the first select training mode, which is not supported below opset 14."""
    if any(raw.outputs[1:]):
        raise raw.error(
            "unsupported_op",
            " of an opset below 14 in training mode (with statistics out)",
            "inference mode, with one output",
            "export the model for inference; differentiation switches to training",
        )
    return (_changed(raw, drop=("spatial",), outputs=raw.outputs[:1]),)


@_rule(13, "Softmax", "LogSoftmax", "Hardmax")
def _softmax(raw: RawNode, place: UpgradeContext) -> Sequence[RawNode]:
    """Before opset 13 the op coerced its input to a matrix: axes before `axis` are rows, the others columns."""
    shape = place.type(raw.inputs[0]).shape
    axis = raw.attribute("axis", 1)
    if not -len(shape) <= axis <= len(shape) or not shape:
        return (raw,)  # type inference reports the fault
    axis += len(shape) if axis < 0 else 0
    wide = [k for k in range(axis, len(shape)) if shape[k] != 1]
    if len(wide) <= 1:
        only = wide[0] if wide else len(shape) - 1
        return (_changed(raw, attributes={"axis": only}),)
    flat, soft = place.fresh(f"{raw.outputs[0]}/rows"), place.fresh(f"{raw.outputs[0]}/soft")
    back = place.constant(np.array(shape, np.int64), "shape")
    return [
        RawNode("Flatten", raw.name and f"{raw.name}/Flatten", raw.inputs, [flat], raw.path, {"axis": axis}),
        RawNode(raw.op, raw.name, [flat], [soft], raw.path, {"axis": 1}),
        RawNode("Reshape", raw.name and f"{raw.name}/Reshape", [soft, back], raw.outputs, raw.path, {"allowzero": 1}),
    ]


@_rule(22, "Upsample")
def _upsample(raw: RawNode, place: UpgradeContext) -> Sequence[RawNode]:
    if "scales" in raw.attributes:
        scales = place.constant(np.asarray(raw.attributes["scales"], np.float32), "scales")
    elif len(raw.inputs) == 2:
        scales = raw.inputs[1]
    else:
        return (raw,)  # type inference reports the fault
    mode = raw.attribute("mode", "nearest")
    return (_old_resize(raw, scales, "linear" if mode == "bilinear" else mode),)


@_rule(11, "Resize")
def _resize(raw: RawNode, place: UpgradeContext) -> Sequence[RawNode]:
    return (_old_resize(raw, raw.inputs[1], raw.attribute("mode", "nearest")),)


def _old_resize(raw: RawNode, scales: str, mode: str) -> RawNode:
    """Before opset 11, output position i sampled input position floor(i / scale)."""
    attributes = {"mode": mode, "coordinate_transformation_mode": "asymmetric"}
    if mode == "nearest":
        attributes["nearest_mode"] = "floor"
    return dataclasses.replace(raw, op="Resize", inputs=[raw.inputs[0], "", scales], attributes=attributes)


@_rule(16, "RoiAlign")
def _roi_align(raw: RawNode, place: UpgradeContext) -> Sequence[RawNode]:
    return (_changed(raw, attributes={**raw.attributes, "coordinate_transformation_mode": "output_half_pixel"}),)


@_rule(20, "GridSample")
def _grid_sample(raw: RawNode, place: UpgradeContext) -> Sequence[RawNode]:
    mode = raw.attribute("mode", "bilinear")
    modes = {"bilinear": "linear", "bicubic": "cubic"}
    return (_changed(raw, attributes={**raw.attributes, "mode": modes.get(mode, mode)}),)


@_rule(20, "DFT")
def _dft(raw: RawNode, place: UpgradeContext) -> Sequence[RawNode]:
    axis = place.constant(np.asarray(raw.attribute("axis", 1), np.int64), "axis")
    return (_changed(raw, drop=("axis",), inputs=_with_input(raw, 2, axis)),)


@_rule(21, "GroupNormalization")
def _group_norm(raw: RawNode, place: UpgradeContext) -> Sequence[RawNode]:
    """Before opset 21, scale and bias were per group; expand them to one entry per channel."""
    groups, channels = raw.attribute("num_groups", 1), place.type(raw.inputs[0]).shape[1]
    column = place.constant(np.array([groups, 1], np.int64), "column")
    matrix = place.constant(np.array([groups, channels // max(groups, 1)], np.int64), "matrix")
    flat = place.constant(np.array([channels], np.int64), "flat")
    before: list[RawNode] = []
    wide: list[str] = []
    for name in raw.inputs[1:3]:
        outs = [place.fresh(f"{name}/{part}") for part in ("column", "matrix", "channels")]
        steps = [
            ("Reshape", [name, column], outs[0]),
            ("Expand", [outs[0], matrix], outs[1]),
            ("Reshape", [outs[1], flat], outs[2]),
        ]
        before += [RawNode(op, "", inputs, [out], raw.path) for op, inputs, out in steps]
        wide.append(outs[2])
    return [*before, _changed(raw, inputs=[raw.inputs[0], *wide])]


@_rule(9, "Scan")
def _scan(raw: RawNode, place: UpgradeContext) -> Sequence[RawNode]:
    raise raw.error(
        "unsupported_op",
        " of opset 8, which loops over a batch of sequences",
        "Scan of opset 9 or newer",
        "export the model again with a newer opset",
    )


def opset_of(imports: Iterable[object]) -> int:
    """Version of the standard domain among the imports; `TARGET_OPSET` without one."""
    return next((o.version for o in imports if o.domain in ("", "ai.onnx")), TARGET_OPSET)  # type: ignore[attr-defined]
