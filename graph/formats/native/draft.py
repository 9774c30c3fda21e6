"""A document whose names are ids, on its way to a graph: shapes bound, types inferred, checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from graph.builder.builder import Builder
from graph.cancellation import cancellable
from graph.errors import Findings, quoted
from graph.formats.document.faults import did_you_mean
from graph.formats.document.tensor_content import decode_array
from graph.formats.document.type_inference import TYPE_RULE_ERRORS, TypeInference
from graph.formats.native.rebinding import ShapeRebinding
from graph.ir import ABSENT, DTYPE_BITS, EMPTY, Body, Graph, Node, Role, TensorType, Value
from graph.limits import Limits, ShapeOverrides
from graph.ops.control_flow import CONTROL_FLOW
from graph.ops.control_flow.type_inference import formal_types, output_types

#: Half a declaration: what is given of (dtype, shape); lengths may be the names of dimensions.
PartialType = tuple[str | None, tuple[int | str, ...] | None]


#: nested(types outside, types of the formal inputs where they are known) -> bodies by name
BodyBuilder = Callable[[list[TensorType | None], "list[TensorType | None] | None"], dict[str, Body]]


@dataclass(slots=True)
class Draft:
    """Values and nodes by id. The lists run parallel to the values."""

    path: str = ""  # in front of every path in a finding
    name: str = ""
    opset: Mapping[str, int] = field(default_factory=lambda: {"": 21})
    order_is_given: bool = False
    annotations: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    names: list[str] = field(default_factory=list)
    types: list[TensorType | None] = field(default_factory=list)  # None where not wholly declared
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
    weakly_typed: set[int] = field(default_factory=set)  # declared once for several versions: yields to inference
    bodies: dict[int, BodyBuilder] = field(default_factory=dict)

    def add_constant(self, like: int) -> int:
        """Id of a new constant of the same type as another, under a name of its own."""
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
    """What a document says of a type: all, half or nothing of it. An unknown dtype is a finding."""
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
    """The checked graph. Raises BadGraph with what was found so far and what is found now."""
    findings.settle()
    rebinding = ShapeRebinding(draft, shapes, findings)
    findings.settle()
    contents = _contents(draft, limits, findings)
    if is_in_order(draft):
        infer_types(draft, rebinding, contents, findings)
        findings.settle()
        if rebinding.asked:  # the sweep above told what every type was before
            rebinding.apply()
            infer_types(draft, rebinding, contents, findings)
            findings.settle()
    # Otherwise the check says which nodes stand wrong; what could be inferred is beside the point.
    builder = Builder(draft.name, draft.opset)
    builder.values, builder.nodes = values_of(draft, contents | rebinding.constants), draft.nodes
    builder.inputs = inputs_of(draft)
    builder.order_is_given, builder.gradients = draft.order_is_given, draft.gradients
    builder.annotations, builder.gradient_rules = draft.annotations, draft.gradient_rules
    return builder.build(draft.outputs)


def finish_body(draft: Draft, outer: list[TensorType | None], limits: Limits, findings: Findings) -> Graph:
    """The graph of a body, typed with what it captures; it is checked with the graph around it."""
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
    there = [role is not Role.ACTIVATION for role in draft.roles]
    there.append(True)  # ABSENT is the last one
    for node in draft.nodes:
        for v in node.inputs:
            if not there[v]:
                return False
        for v in node.outputs:
            there[v] = True
    return True


def infer_types(draft: Draft, rebinding: ShapeRebinding, contents: dict[int, np.ndarray], findings: Findings) -> None:
    """Fill in `draft.types` in one sweep; what the document declares must agree unless its shapes were changed."""
    inference = TypeInference(draft.opset.get("", 21), contents)
    types, following = draft.types, bool(rebinding.before)
    for n, node in enumerate(cancellable(draft.nodes)):
        changed = following and rebinding.touches(node)
        if n in draft.bodies or node.op in CONTROL_FLOW:
            if changed:
                rebinding.cannot_follow(n, node, findings)
            answer = _through_bodies(draft, n, inference.contents)
        else:
            if changed:
                node = rebinding.follow_batch(n, node, inference)
            try:
                answer = inference.outputs(node, types)
            except TYPE_RULE_ERRORS as error:
                _refused(draft, rebinding, n, node, error if isinstance(error, ValueError) else None, findings)
                continue
        if answer is None:
            if changed and not node.bodies:
                rebinding.cannot_follow(n, node, findings)
            continue
        for i, v in enumerate(node.outputs):
            if v == ABSENT:
                continue
            found, wanted = answer[i] if i < len(answer) else None, types[v]
            if wanted is found:
                continue
            if wanted is None or (wanted != found and found is not None):
                _settle_type(draft, rebinding, (n, i, v), found, findings)
            elif found is None and changed:
                rebinding.cannot_follow(n, node, findings)


def _through_bodies(draft: Draft, n: int, contents: Mapping[int, np.ndarray]) -> Sequence[TensorType | None] | None:
    """Read the bodies of a node, typed by what it gives them; types of its outputs where they are known."""
    node, types = draft.nodes[n], draft.types
    given = [None if v == ABSENT else types[v] for v in node.inputs]
    try:
        if n in draft.bodies:
            node = draft.nodes[n] = replace(node, bodies=draft.bodies[n](types, formal_types(node, given)))
        return output_types(node, {v: Value("", types[v], data=contents.get(v)) for v in node.inputs if v != ABSENT})
    except TYPE_RULE_ERRORS:  # attributes or bodies of another kind; the check says which
        return None


def _settle_type(
    draft: Draft, rebinding: ShapeRebinding, place: tuple[int, int, int], found: TensorType | None, findings: Findings
) -> None:
    """Take the inferred type where the document left it open or yields; else it is a conflict."""
    n, i, v = place
    wanted, path = draft.types[v], f"{draft.path}nodes[{n}].outputs[{i}]"
    name, op = quoted(draft.names[v]), draft.nodes[n].op
    dtype, shape = draft.partial.get(v, (None, None))
    if found is None:
        if dtype is not None and shape is not None and not any(isinstance(length, str) for length in shape):
            draft.types[v] = TensorType(dtype, tuple(int(length) for length in shape))
    elif wanted is None and ((dtype or found.dtype) != found.dtype or (shape or found.shape) != found.shape):
        half = dtype if shape is None else f"{dtype or ''}[{','.join(map(str, shape))}]"
        findings.add("type_conflict", path, f"{name} declared as {half}", f"{found}, as {op} makes it", _CORRECT)
    elif wanted is None and not draft.fixed[v] and draft.bytes[v] not in (None, found.nbytes):
        findings.add(
            "type_conflict",
            path,
            f"{name} declared with {draft.bytes[v]} bytes",
            f"{found.nbytes} bytes, as {op} makes {found}",
            "correct `bytes`, or keep it with `fixed_bytes`",
        )
    elif wanted is None or v in draft.weakly_typed or rebinding.touches(draft.nodes[n]):
        rebinding.changed_to(v, found)
        draft.types[v] = found
    elif not draft.fixed[v]:
        findings.add("type_conflict", path, f"{name} declared as {wanted}", f"{found}, as {op} makes it", _CORRECT)


_CORRECT = "correct the declaration or leave it out"


def _refused(
    draft: Draft, rebinding: ShapeRebinding, n: int, node: Node, error: ValueError | None, findings: Findings
) -> None:
    why = f": {error}" if error is not None else " has attributes the op cannot read"
    if rebinding.touches(node):
        rebinding.cannot_follow(n, node, findings, why)
        return
    findings.add(
        "type_conflict",
        f"{draft.path}nodes[{n}]",
        f"{node.op} {quoted(node.name)}{why[:400]}",
        "types the op accepts",
        "correct the shapes, dtypes or attributes of this node",
    )


def _contents(draft: Draft, limits: Limits, findings: Findings) -> dict[int, np.ndarray]:
    """Arrays of the values with `data`."""
    contents: dict[int, np.ndarray] = {}
    kept = 0
    for v, data in draft.data.items():
        type, path = draft.types[v], f"{draft.path}values[{v}].data"
        kept += len(data) * 3 // 4
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
        elif kept > limits.constant_bytes:
            findings.add(
                "too_large",
                path,
                f"{kept} bytes of contents so far",
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
                    "encode the content again",
                )
    return contents


def values_of(draft: Draft, contents: Mapping[int, np.ndarray]) -> list[Value]:
    """The records of the values, typed as far as is known."""
    return [
        Value(name, type, role, size, fixed, contents.get(v), annotations, v in draft.stop_gradient)
        for v, (name, type, role, size, fixed, annotations) in enumerate(
            zip(draft.names, draft.types, draft.roles, draft.bytes, draft.fixed, draft.value_annotations, strict=True)
        )
    ]


def inputs_of(draft: Draft) -> list[int]:
    """The graph's inputs in the caller's order."""
    if draft.inputs is not None:
        return draft.inputs
    return [v for v, role in enumerate(draft.roles) if role is Role.INPUT and v not in draft.captured]
