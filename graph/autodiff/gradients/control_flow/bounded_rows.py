"""Values with an upper bound on their rows: stacked outputs of a loop that may stop early, outputs with a
data-dependent length, and their descendants.

Loop ──▶ rows (at most 6) ──Mul──▶ at most 6 ──ReduceSum──▶ 3 numbers
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from graph.builder.builder import Builder
from graph.ir import ABSENT, Graph, Node, Phase, Role, TensorType
from graph.ops.control_flow.interface import FIRST_ROWS, LoopInterface, may_be_shorter, trip_count, with_else_branch
from graph.ops.registry.registry import find_op

PAD_ROWS = "remat::PadRows"
#: Op -> inputs whose number of rows its gradient does not depend on, None for all. An op that is not listed may have
#: bounded rows in the inputs that it may overwrite, which have the shape of its output.
_ROWWISE: Mapping[str, tuple[int, ...] | None] = {
    **dict.fromkeys(("MatMul", "Transpose", "Identity", "Cast", "Gather", "Concat", "Where", "Gemm"), None),
    **dict.fromkeys(("ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"), (0,)),
    **dict.fromkeys(("ReduceMax", "ReduceMin", "ReduceMean"), (0,)),
    **dict.fromkeys(("GatherND", "GatherElements"), (1,)),
    "SoftmaxCrossEntropyLoss": (0, 1),
}
#: Ops that may overwrite an input and whose gradient depends on its lengths.
_STATIC_LENGTHS = frozenset({"CumProd", "TensorScatter"})


def bounded_values(graph: Graph, given: Collection[int] = ()) -> frozenset[int]:
    """Values that may have fewer rows than their type; `given` are bounded inputs. O(nodes + reads)."""
    bounded, lengths = set(given), set[int]()  # lengths: numbers computed from the shape of a bounded value
    for node in graph.nodes:
        if node.bodies:
            bounded.update(_of_bodies(graph, node, bounded))
            continue
        is_bounded = may_be_shorter(node)
        if node.op in ("Shape", "Size"):
            lengths.update(node.writes if not bounded.isdisjoint(node.inputs) else ())
        elif node.op != PAD_ROWS:
            is_bounded = is_bounded or not bounded.isdisjoint(node.inputs)
            if not is_bounded and not lengths.isdisjoint(node.inputs):
                is_bounded = not all(_is_length(graph, v) for v in node.writes)
                lengths.update(() if is_bounded else node.writes)
        if is_bounded:
            bounded.update(v for v in node.writes if (type := graph.values[v].type) is not None and type.shape)
    return frozenset(bounded)


def _is_length(graph: Graph, v: int) -> bool:
    """True for integers that may be a shape, or one length of it."""
    type = graph.values[v].type
    return type is not None and type.dtype.startswith("int") and len(type.shape) <= 1


def _of_bodies(graph: Graph, node: Node, outside: Collection[int]) -> list[int]:
    """Outputs of a node with bodies that may have fewer rows than their type."""
    short: list[int] = []
    lead = 0
    if node.op in ("Loop", "Scan"):
        trips = LoopInterface.of(node)
        lead = trips.lead_out
        if node.op == "Loop" and not trip_count(graph.values, node).exact:
            short += node.outputs[trips.states :]
        formal = zip(trips.body.graph.inputs[trips.lead :], node.inputs[trips.lead :], strict=False)
    elif node.op == "If":
        node, formal = with_else_branch(node, graph.types_of(node.inputs)), zip((), (), strict=True)
    else:
        formal = zip(next(iter(node.bodies.values())).graph.inputs, node.inputs, strict=False)
    given = [inner for inner, outer in formal if outer in outside]
    for body in node.bodies.values():
        inner_given = [inner for inner, outer in body.captures if outer in outside]
        inside = bounded_values(body.graph, [*given, *inner_given])
        short += [outer for v, outer in zip(body.graph.outputs[lead:], node.outputs, strict=False) if v in inside]
    return [v for v in short if v != ABSENT]


def is_rowwise(node: Node, bounded: Collection[int]) -> bool:
    """True when the gradient of the node is right for any number of rows of its inputs at the positions `bounded`."""
    if node.bodies or node.op in (FIRST_ROWS, PAD_ROWS, "remat::RowsLike"):
        return True
    if node.op in _ROWWISE:
        positions = _ROWWISE[node.op]
        return positions is None or set(bounded) <= set(positions)
    record = None if node.op in _STATIC_LENGTHS else find_op(node.op)
    return record is not None and set(bounded) <= {position for _, position in record.takeover}


def trim_rows(builder: Builder, gradient: int, v: int) -> int:
    """The gradient of a bounded value, cut to the rows of the value; only the shape of the value is read."""
    value = builder.values[v]
    (rows,) = builder.node(
        "remat::RowsLike",
        [gradient, v],
        name=f"grad/{value.name}/rows",
        phase=Phase.BACKWARD,
        annotations={"gradient_of": value.name},
    )
    return rows


def with_padded_rows(graph: Graph, v: int) -> tuple[Graph, int, int]:
    """(body, padded, lengths): the body that also computes `v` padded to its upper bound, and the shape of `v`.

    Values stacked over iterations need the same number of rows in each.
    """
    builder, value = Builder.from_graph(graph), graph.values[v]
    assert value.type is not None
    (full,) = builder.node(
        PAD_ROWS, [v], name=f"{value.name}/padded", outputs=[value.name], attributes={"shape": list(value.type.shape)}
    )
    (lengths,) = builder.node("Shape", [v], name=f"{value.name}/lengths")
    return replace(graph, values=tuple(builder.values), nodes=tuple(builder.nodes)), full, lengths


def add_padded_inputs(builder: Builder, v: int) -> tuple[int, int]:
    """Ids of two new formal inputs of a body, padded rows and lengths, that replace its formal input `v`."""
    value = builder.values[v]
    assert value.type is not None
    full = builder.value(f"{value.name}/padded", value.type, Role.INPUT)
    lengths = builder.value(f"{value.name}/lengths", TensorType("int64", (len(value.type.shape),)), Role.INPUT)
    builder.values[v] = replace(value, role=Role.ACTIVATION)
    builder.node(FIRST_ROWS, [full, lengths], name=f"{value.name}/rows", outputs=[v], phase=Phase.BACKWARD)
    last = builder.nodes.pop()
    moved = [replace(node, after=tuple(n + 1 for n in node.after)) for node in builder.nodes]
    builder.nodes[:] = [last, *moved]
    return full, lengths
