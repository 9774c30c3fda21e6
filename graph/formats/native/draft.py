"""Draft of a graph with ids for names; `finish` binds shapes, infers types, decodes contents and validates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec.structs import replace

from graph.builder.builder import Builder
from graph.cancellation import cancellable
from graph.errors import Findings, quoted
from graph.formats.document.faults import did_you_mean
from graph.formats.document.tensor_content import decode_array
from graph.formats.document.type_inference import TYPE_RULE_ERRORS, TypeInference
from graph.formats.native.rebinding import ShapeRebinding
from graph.ir import ABSENT, DTYPE_BITS, EMPTY, Body, Graph, Node, Role, TensorType, Value
from graph.ir.id_columns import first_writers, given_values, reads_follow_writes
from graph.limits import Limits, ShapeOverrides
from graph.ops.control_flow import CONTROL_FLOW
from graph.ops.control_flow.type_inference import formal_types, output_types

#: Incomplete declaration (dtype, shape): either may be None; lengths may be names of dimensions.
PartialType = tuple[str | None, tuple[int | str, ...] | None]


#: builder(types outside, types of the formal inputs where known) -> bodies by name
BodyBuilder = Callable[[list[TensorType | None], "list[TensorType | None] | None"], dict[str, Body]]


@dataclass(slots=True)
class Draft:
    """Values and nodes by id. The lists from `names` to `value_annotations` have one entry per value."""

    path: str = ""  # prefix of every path in a finding
    name: str = ""
    opset: Mapping[str, int] = field(default_factory=lambda: {"": 21})
    order_is_given: bool = False
    annotations: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    names: list[str] = field(default_factory=list)
    types: list[TensorType | None] = field(default_factory=list)  # None where not completely declared
    roles: list[Role] = field(default_factory=list)
    bytes: list[int | None] = field(default_factory=list)
    fixed: list[bool] = field(default_factory=list)
    value_annotations: list[Mapping[str, Any]] = field(default_factory=list)
    partial: dict[int, PartialType] = field(default_factory=dict)
    data: dict[int, str] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    inputs: list[int] | None = None  # None: in the order of the values
    captured: dict[int, int] = field(default_factory=dict)  # inside -> outside
    gradients: list[tuple[int, int]] = field(default_factory=list)
    gradient_rules: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    stop_gradient: set[int] = field(default_factory=set)
    weakly_typed: set[int] = field(default_factory=set)  # declared once for several versions: inference overrides
    bodies: dict[int, BodyBuilder] = field(default_factory=dict)

    def add_constant(self, like: int) -> int:
        """Id of a new constant with the type of the constant `like` and a unique name derived from its name."""
        taken, k = set(self.names), 1
        while f"{self.names[like]}/{k}" in taken:
            k += 1
        self.names.append(f"{self.names[like]}/{k}")
        self.types.append(self.types[like])
        self.roles.append(Role.CONSTANT)
        self.bytes.append(None)
        self.fixed.append(False)
        self.value_annotations.append(self.value_annotations[like])
        return len(self.names) - 1


def declared_type(dtype: str | None, shape: Any, path: str, findings: Findings) -> TensorType | PartialType | None:
    """Declared type: complete, partial, or None when undeclared. An unknown dtype is a finding."""
    if dtype is not None and dtype not in DTYPE_BITS:
        findings.add(
            "unknown_dtype",
            f"{path}.dtype",
            quoted(dtype),
            "one of " + ", ".join(DTYPE_BITS),
            did_you_mean(dtype, DTYPE_BITS, "use the ONNX name of the element type"),
        )
        dtype = None
    if shape is not None:
        shape = tuple(shape)
        if dtype is not None and not any(type(length) is str for length in shape):
            return TensorType(dtype, shape)
    return None if dtype is None and shape is None else (dtype, shape)


def finish(draft: Draft, shapes: ShapeOverrides, limits: Limits, findings: Findings) -> Graph:
    """The validated graph. Raises BadGraph with earlier findings and those of this step."""
    findings.settle()
    rebinding = ShapeRebinding(draft, shapes, findings)
    findings.settle()
    contents = _contents(draft, limits, findings)
    if is_in_order(draft):
        infer_types(draft, rebinding, contents, findings)
        findings.settle()
        if rebinding.requested:  # the first sweep inferred the types before the change of shapes
            rebinding.apply()
            infer_types(draft, rebinding, contents, findings)
            findings.settle()
    # Otherwise validation reports the nodes out of order; types are not needed for that.
    builder = Builder(draft.name, draft.opset)
    builder.values, builder.nodes = values_of(draft, contents | rebinding.constants), draft.nodes
    builder.inputs = inputs_of(draft)
    builder.order_is_given, builder.gradients = draft.order_is_given, draft.gradients
    builder.annotations, builder.gradient_rules = draft.annotations, draft.gradient_rules
    return builder.build(draft.outputs)


def finish_body(draft: Draft, outer: list[TensorType | None], limits: Limits, findings: Findings) -> Graph:
    """The graph of a body, typed by its captures; validated later, with the graph around it."""
    for inner, source in draft.captured.items():
        if draft.types[inner] is None:
            draft.types[inner] = outer[source]
    contents = _contents(draft, limits, findings)
    if is_in_order(draft):
        infer_types(draft, ShapeRebinding(draft, ShapeOverrides(), findings), contents, findings)
    return Graph(
        draft.name,
        tuple(values_of(draft, contents)),
        tuple(draft.nodes),
        tuple(draft.outputs),
        tuple(inputs_of(draft)),
        draft.opset,
        annotations=draft.annotations,
    )


def is_in_order(draft: Draft) -> bool:
    """True when every read has an earlier write, so that types can be inferred in one sweep."""
    return reads_follow_writes(draft.nodes, first_writers(draft.nodes, len(draft.roles)), given_values(draft.roles))


def infer_types(draft: Draft, rebinding: ShapeRebinding, contents: dict[int, np.ndarray], findings: Findings) -> None:
    """Infer `draft.types` in one forward sweep; declared types must agree unless shapes were rebound."""
    inference = TypeInference(draft.opset.get("", 21), contents)
    types, rebound, opaque = draft.types, bool(rebinding.before), set[str]()
    for n, node in enumerate(cancellable(draft.nodes)):
        if node.op in opaque and not rebound and n not in draft.bodies:
            continue
        changed = rebound and rebinding.touches(node)
        if n in draft.bodies or node.op in CONTROL_FLOW:
            if changed:
                rebinding.cannot_follow(n, node, findings)
            inferred = _through_bodies(draft, n, inference.contents)
        else:
            if changed:
                node = rebinding.follow_batch(n, node, inference)
            try:
                inferred = inference.outputs(node, types)
                if inferred is None:
                    opaque.add(node.op)
            except TYPE_RULE_ERRORS as error:
                _type_error(draft, rebinding, n, node, error if isinstance(error, ValueError) else None, findings)
                continue
        if inferred is not None:
            _settle_outputs(draft, rebinding, n, inferred, changed, findings)
        elif changed and not node.bodies:
            rebinding.cannot_follow(n, node, findings)


def _settle_outputs(
    draft: Draft,
    rebinding: ShapeRebinding,
    n: int,
    inferred: Sequence[TensorType | None],
    changed: bool,
    findings: Findings,
) -> None:
    """Compare the inferred types of a node's outputs with the declared ones; `changed`: it reads rebound values."""
    node, types = draft.nodes[n], draft.types
    for i, v in enumerate(node.outputs):
        if v == ABSENT:
            continue
        type, declared = inferred[i] if i < len(inferred) else None, types[v]
        if declared is type:
            continue
        if type is None:
            if changed:
                rebinding.cannot_follow(n, node, findings)
        elif declared != type:
            _settle_type(draft, rebinding, (n, i, v), type, findings)


def _through_bodies(draft: Draft, n: int, contents: Mapping[int, np.ndarray]) -> Sequence[TensorType | None] | None:
    """Read the bodies of a node, typed by its inputs; returns the types of its outputs, None where unknown."""
    node, types = draft.nodes[n], draft.types
    inputs = [None if v == ABSENT else types[v] for v in node.inputs]
    try:
        if n in draft.bodies:
            node = draft.nodes[n] = replace(node, bodies=draft.bodies[n](types, formal_types(node, inputs)))
        return output_types(node, {v: Value("", types[v], data=contents.get(v)) for v in node.inputs if v != ABSENT})
    except TYPE_RULE_ERRORS:  # invalid attributes or bodies; validation reports them
        return None


def _settle_type(
    draft: Draft, rebinding: ShapeRebinding, position: tuple[int, int, int], inferred: TensorType, findings: Findings
) -> None:
    """Take the inferred type where none is declared or inference overrides; otherwise report a conflict.

    `position`: (node, output position, value).
    """
    n, i, v = position
    declared, op = draft.types[v], draft.nodes[n].op
    conflict = _partial_conflict(draft, v, inferred) if declared is None else ""
    if conflict:
        expected, remedy = f"{inferred}, the output type of {op}", "correct the declaration or leave it out"
    elif declared is None and not draft.fixed[v] and draft.bytes[v] not in (None, inferred.nbytes):
        conflict = f"with {draft.bytes[v]:,} bytes"
        expected = f"{inferred.nbytes:,} bytes, the size of {inferred} from {op}"
        remedy = "correct `bytes`, or keep it with `fixed_bytes`"
    elif declared is None or v in draft.weakly_typed or rebinding.touches(draft.nodes[n]):
        rebinding.changed_to(v, inferred)
        draft.types[v] = inferred
        return
    elif draft.fixed[v]:
        return
    else:
        conflict = f"as {declared}"
        expected, remedy = f"{inferred}, the output type of {op}", "correct the declaration or leave it out"
    path = f"{draft.path}nodes[{n}].outputs[{i}]"
    findings.add("type_conflict", path, f"{quoted(draft.names[v])} declared {conflict}", expected, remedy)


def _partial_conflict(draft: Draft, v: int, inferred: TensorType) -> str:
    """The partial declaration when it contradicts the inferred type, else ""."""
    dtype, shape = draft.partial.get(v, (None, None))
    if (dtype or inferred.dtype) == inferred.dtype and (shape or inferred.shape) == inferred.shape:
        return ""
    lengths = "" if shape is None else f"[{','.join(map(str, shape))}]"
    return f"as {dtype or ''}{lengths}"


def _type_error(
    draft: Draft, rebinding: ShapeRebinding, n: int, node: Node, error: ValueError | None, findings: Findings
) -> None:
    """Report a node whose types or attributes the op does not accept."""
    reason = f": {error}" if error is not None else " has attributes the op cannot read"
    if rebinding.touches(node):
        rebinding.cannot_follow(n, node, findings, reason)
        return
    findings.add(
        "type_conflict",
        f"{draft.path}nodes[{n}]",
        f"{node.op} {quoted(node.name)}{reason[:400]}",
        "types the op accepts",
        "correct the shapes, dtypes or attributes of this node",
    )


def _contents(draft: Draft, limits: Limits, findings: Findings) -> dict[int, np.ndarray]:
    """Decoded arrays of the values with `data`, by id; faults are added to `findings`."""
    contents: dict[int, np.ndarray] = {}
    total_bytes = 0
    for v, data in draft.data.items():
        type, path = draft.types[v], f"{draft.path}values[{v}].data"
        total_bytes += len(data) * 3 // 4
        if draft.roles[v] is Role.ACTIVATION:
            findings.add(
                "bad_content",
                path,
                f"content of activation {quoted(draft.names[v])}",
                "a value that no node writes",
                "leave `data` out, or give the value the role constant",
            )
        elif type is None:
            findings.add(
                "bad_content",
                path,
                f"content of {quoted(draft.names[v])} without shape and dtype",
                "both",
                "declare shape and dtype",
            )
        elif total_bytes > limits.constant_bytes:
            findings.add(
                "too_large",
                path,
                f"{total_bytes:,} bytes of contents so far",
                f"at most {limits.constant_bytes}",
                "leave `data` of large constants out; planning needs sizes only",
            )
            break
        else:
            try:
                contents[v] = decode_array(data, type)
            except ValueError as error:
                findings.add(
                    "bad_content",
                    path,
                    str(error),
                    "base64 of little endian elements, row-major",
                    "re-encode the content",
                )
    return contents


def values_of(draft: Draft, contents: Mapping[int, np.ndarray]) -> list[Value]:
    """Records of the values, with the types known so far."""
    return [
        Value(name, type, role, size, fixed, contents.get(v), annotations, v in draft.stop_gradient)
        for v, (name, type, role, size, fixed, annotations) in enumerate(
            zip(draft.names, draft.types, draft.roles, draft.bytes, draft.fixed, draft.value_annotations, strict=True)
        )
    ]


def inputs_of(draft: Draft) -> list[int]:
    """Input ids in the declared order; by default the inputs in the order of the values, without captures."""
    if draft.inputs is not None:
        return draft.inputs
    return [v for v, role in enumerate(draft.roles) if role is Role.INPUT and v not in draft.captured]
