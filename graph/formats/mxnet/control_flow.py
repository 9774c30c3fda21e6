"""Control flow of a symbol: ops with nested symbols, converted to Scan, Loop and If.

_foreach      inputs [data..., states..., rest...]      Scan over the data
_while_loop   variables, condition and step symbols     Loop, at most `max_iterations` iterations
_cond         condition, then and else symbols          If
Source: src/operator/control_flow.cc; lists such as `in_data_locs` map outer inputs to inner inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from graph.errors import BadGraph, quoted
from graph.formats.document.schema import BodyRow, NodeRow, ValueRow
from graph.formats.mxnet.symbol import VARIABLE, NodeRecord, Symbol, decode, preserved_attributes, recompute_of
from graph.formats.shared.attributes import Attributes
from graph.formats.shared.rows import Origin, mark_origin
from graph.ir import TensorType

if TYPE_CHECKING:
    from graph.formats.mxnet.reader import SymbolReader


def control_flow_rows(reader: SymbolReader, node: NodeRecord, inputs: list[str], outputs: list[str]) -> list[NodeRow]:
    """The rows of an op with nested symbols. Raises BadGraph."""
    kinds = {"_foreach": (1, _foreach), "_while_loop": (2, _while_loop), "_cond": (3, _cond)}
    if node.op not in kinds or len(node.subgraphs) != kinds[node.op][0]:
        raise BadGraph.one(
            "bad_body",
            f"node {quoted(node.name)}",
            f"{node.op} with {len(node.subgraphs)} nested symbols",
            "_foreach with one, _while_loop with two, _cond with three",
            "save the symbol again",
        )
    path = f"node {quoted(node.name)}"
    symbols = [decode(raw, f"{path}.subgraphs[{i}]", reader.program.limits) for i, raw in enumerate(node.subgraphs)]
    before = len(reader.program.nodes)
    try:
        row = kinds[node.op][1](reader, node, symbols, inputs, outputs)
    except (ValueError, LookupError) as error:
        raise BadGraph.one(
            "bad_body",
            path,
            str(error)[:160] if isinstance(error, ValueError) else "input indices out of range",
            "input indices as written by MXNet",
            "save the symbol again",
        ) from None
    recompute = recompute_of(node.attributes)
    if recompute is not None:
        row.recompute = recompute  # type: ignore[assignment]
    found = reader.program.nodes[before:]
    nested = [msgspec.json.decode(raw) for raw in node.subgraphs]
    attributes = {**preserved_attributes(node.attributes), "subgraphs": nested}
    origin = Origin(found[-1].name, node.op, node.name, attributes, list(inputs), list(outputs))
    mark_origin(found, "mxnet", origin, reader.program.values)
    return found


class _NestedSymbol:
    """A nested symbol read with the types bound to its variables, in the order of its inputs."""

    def __init__(self, reader: SymbolReader, symbol: Symbol, types: Sequence[TensorType | None]):
        self.arguments = [n for n, node in enumerate(symbol.nodes) if node.op == VARIABLE]
        if len(self.arguments) != len(types):
            raise ValueError(f"{len(types)} inputs for a nested symbol that takes {len(self.arguments)}")
        self.program = reader.program.nested()
        given = dict(zip(self.arguments, types, strict=True))
        self.walker = reader.nested(symbol, self.program, given)
        self.walker.read()
        self.inputs = [self.walker.names[n, 0] for n in self.arguments]
        self.outputs = [self.walker.entry(head) for head in symbol.heads]

    def type_of(self, output: int) -> TensorType | None:
        return self.program.types.get(self.outputs[output])

    def result_types(self, emitted: int, trips: int | None) -> list[TensorType | None]:
        """Types of the states, then of the first `emitted` outputs stacked over `trips` iterations."""
        types = [self.type_of(i) for i in range(len(self.outputs))]
        stacked = [
            None if type is None or trips is None else TensorType(type.dtype, (trips, *type.shape))
            for type in types[:emitted]
        ]
        return types[emitted:] + stacked

    def body(self, formal: list[str], captures: dict[str, str], outputs: list[str]) -> BodyRow:
        return BodyRow(formal, self.program.nodes, outputs, list(self.program.values.values()), captures)


def _bound(count: int, *pairs: tuple[Sequence[int], Sequence[str]]) -> list[str]:
    """Per inner input the outer name bound to it. Raises ValueError."""
    bound = [""] * count
    for places, names in pairs:
        for place, name in zip(places, names, strict=True):
            if not 0 <= place < count or bound[place]:
                raise ValueError(f"input index {place} of {count}, repeated or out of range")
            bound[place] = name
    if not all(bound):
        raise ValueError("unbound inner inputs")
    return bound


def _arguments(symbol: Symbol) -> int:
    return sum(node.op == VARIABLE for node in symbol.nodes)


def _foreach(
    reader: SymbolReader, node: NodeRecord, symbols: list[Symbol], inputs: list[str], outputs: list[str]
) -> NodeRow:
    a = Attributes(node.attributes)
    data_at, state_at, rest_at = (a.integers(k, default=()) for k in ("in_data_locs", "in_state_locs", "remain_locs"))
    data = inputs[: len(data_at)]
    states = inputs[len(data_at) : len(data_at) + len(state_at)]
    rest = inputs[len(data_at) + len(state_at) :]
    bound = _bound(_arguments(symbols[0]), (data_at, data), (state_at, states), (rest_at, rest))
    outer = reader.program.types
    types = [outer.get(name) for name in bound]
    for place in data_at:
        whole = types[place]
        types[place] = None if whole is None else TensorType(whole.dtype, whole.shape[1:])
    inside = _NestedSymbol(reader, symbols[0], types)
    emitted = a.integer("num_out_data")
    if not 0 <= emitted <= len(inside.outputs) or len(inside.outputs) - emitted != len(states):
        raise ValueError(f"{len(inside.outputs)} outputs, {emitted} of them data, for {len(states)} states")
    formal = [inside.inputs[p] for p in (*state_at, *data_at)]
    captures = {inside.inputs[p]: name for p, name in zip(rest_at, rest, strict=True)}
    row = NodeRow(
        node.name or node.op,
        "Scan",
        [*states, *data],
        [*outputs[emitted:], *outputs[:emitted]],
        {"num_scan_inputs": len(data)},
        bodies={"body": inside.body(formal, captures, [*inside.outputs[emitted:], *inside.outputs[:emitted]])},
    )
    first = outer.get(data[0]) if data else None
    trips = None if first is None or not first.shape else first.shape[0]
    reader.program.add(row, inside.result_types(emitted, trips))
    return row


def _while_loop(
    reader: SymbolReader, node: NodeRecord, symbols: list[Symbol], inputs: list[str], outputs: list[str]
) -> NodeRow:
    """Loop whose condition is evaluated before the first iteration and at the end of each."""
    a, program, name = Attributes(node.attributes), reader.program, node.name or node.op
    cond_at, func_at, var_at = (
        a.integers(k, default=()) for k in ("cond_input_locs", "func_input_locs", "func_var_locs")
    )
    max_trips, emitted = a.integer("max_iterations"), a.integer("num_out_data", default=0)
    if not 0 <= max_trips < 1 << 31:
        raise ValueError(f"max_iterations {max_trips}")
    func = [inputs[p] for p in func_at]
    variables = [func[p] for p in var_at]
    inside = _NestedSymbol(reader, symbols[1], [program.types.get(name) for name in func])
    if len(inside.outputs) - emitted != len(variables):
        raise ValueError(f"{len(inside.outputs)} outputs, {emitted} of them data, for {len(variables)} variables")
    condition_inputs = [inputs[p] for p in cond_at]
    condition_types = [program.types.get(outer) for outer in condition_inputs]
    first, following = f"{name}/holds", f"{name}/again"
    _condition(program, _NestedSymbol(reader, symbols[0], condition_types), condition_inputs, first, f"{name}/ask")
    captures = {inside.inputs[p]: outer for p, outer in enumerate(func) if p not in var_at}
    updated = dict(zip(variables, inside.outputs[emitted:], strict=True))
    bound = _names_inside(inside, condition_inputs, updated, captures, program.types, name)
    condition = _NestedSymbol(reader, symbols[0], condition_types)
    _condition(inside.program, condition, bound, following, f"{name}/ask_again")
    trip, results = f"{name}/trip", [*inside.outputs[emitted:], *inside.outputs[:emitted]]
    inside.program.values[trip] = ValueRow(trip, [], "int64", "input")
    formal = [trip, f"{name}/go", *(inside.inputs[p] for p in var_at)]
    row = NodeRow(
        name,
        "Loop",
        [program.constant(f"{name}/most", np.array(max_trips, np.int64)), first, *variables],
        [*outputs[emitted:], *outputs[:emitted]],
        bodies={"body": inside.body(formal, captures, [following, *results])},
        annotations={"max_trips": max_trips},
    )
    program.add(row, inside.result_types(emitted, max_trips))
    return row


def _names_inside(
    inside: _NestedSymbol,
    outer_names: list[str],
    updated: dict[str, str],
    captures: dict[str, str],
    types: Mapping[str, TensorType | None],
    prefix: str,
) -> list[str]:
    """Name inside a loop body of each outer name: the updated variable, or a capture, added to `captures` if needed."""
    found = []
    for outer in outer_names:
        known = updated.get(outer) or next((inner for inner, source in captures.items() if source == outer), "")
        if not known:
            known = f"{prefix}/outer{len(captures)}"
            captures[known] = outer
            inside.program.types[known] = types.get(outer)
        found.append(known)
    return found


def _condition(program: Any, condition: _NestedSymbol, binding: list[str], output: str, prefix: str) -> None:
    """Inline the nodes of the condition; `output` is its value as a scalar bool."""
    if len(condition.outputs) != 1:
        raise ValueError(f"a condition with {len(condition.outputs)} outputs")
    names = dict(zip(condition.inputs, binding, strict=True))

    def renamed(name: str) -> str:
        return names.get(name, f"{prefix}/{name}" if name else "")

    for value in condition.program.values.values():
        value.name = renamed(value.name)
        program.values[value.name] = value
    for row in condition.program.nodes:
        if row.bodies:
            raise ValueError("a condition with nested symbols")
        row.name = program.free_name(f"{prefix}/{row.name}")
        row.inputs = [renamed(name) for name in row.inputs]
        row.outputs = [renamed(name) for name in row.outputs]
        row.annotations = None
        program.nodes.append(row)
    type, found = condition.type_of(0), renamed(condition.outputs[0])
    if type is not None and type.shape:
        shape = program.constant(f"{prefix}/scalar", np.zeros(0, np.int64))
        program.nodes.append(NodeRow(program.free_name(f"{prefix}/flat"), "Reshape", [found, shape], [f"{prefix}/one"]))
        found = f"{prefix}/one"
    program.nodes.append(NodeRow(program.free_name(f"{prefix}/cast"), "Cast", [found], [output], {"to": 9}))
    program.types[output] = TensorType("bool", ())


def _cond(
    reader: SymbolReader, node: NodeRecord, symbols: list[Symbol], inputs: list[str], outputs: list[str]
) -> NodeRow:
    a, program = Attributes(node.attributes), reader.program
    name = node.name or node.op
    condition_at = a.integers("cond_input_locs", default=())
    condition = _NestedSymbol(reader, symbols[0], [program.types.get(inputs[p]) for p in condition_at])
    _condition(program, condition, [inputs[p] for p in condition_at], f"{name}/holds", f"{name}/ask")
    branches = {}
    types: list[TensorType | None] = []
    for key, symbol, places in (
        ("then_branch", symbols[1], a.integers("then_input_locs", default=())),
        ("else_branch", symbols[2], a.integers("else_input_locs", default=())),
    ):
        outer = [inputs[p] for p in places]
        inside = _NestedSymbol(reader, symbol, [program.types.get(v) for v in outer])
        if len(inside.outputs) != len(outputs):
            raise ValueError(f"{key} has {len(inside.outputs)} outputs for {len(outputs)}")
        branches[key] = inside.body([], dict(zip(inside.inputs, outer, strict=True)), inside.outputs)
        types = [inside.type_of(i) for i in range(len(outputs))]
    row = NodeRow(name, "If", [f"{name}/holds"], outputs, bodies=branches)
    program.add(row, types)
    return row
