"""Caffe2 ops with nested nets: If, While, Do and RecurrentNetwork, converted to If, Loop, remat::Call and Scan.

Nested nets see outer names. A name read before it is written is captured; a written name that the op lists as output
is returned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graph.errors import BadGraph, quoted
from graph.formats.caffe2 import recurrent
from graph.formats.caffe2.compat.scopes import DoOp, check_do
from graph.formats.caffe2.nested_nets import NestedNet, captures_of, missing_net_error, nested_net, undefined_error
from graph.formats.caffe2.proto import caffe2
from graph.formats.document.schema import NodeRow, ValueRow
from graph.formats.shared.attributes import Attributes
from graph.formats.shared.blocks import check_condition_written
from graph.formats.shared.rows import Origin, mark_origin

if TYPE_CHECKING:
    from graph.formats.caffe2.reader import NetReader


def control_flow_rows(
    net: NetReader, op: Any, attributes: Mapping[str, Any], inputs: list[str], outputs: list[str], origin: Origin
) -> list[NodeRow]:
    """The rows of one op. Raises BadGraph naming the op."""
    before = len(net.program.nodes)
    kinds = {"If": _if, "AsyncIf": _if, "While": _while, "Do": _do, "RecurrentNetwork": recurrent.add_recurrent_network}
    try:
        kinds[op.type](net, op.name or (outputs[0] if outputs else op.type), attributes, inputs, outputs)
    except (ValueError, LookupError) as error:
        raise BadGraph.one(
            "bad_body",
            f"op {quoted(op.name or op.type)}",
            f"{op.type}: {error if isinstance(error, ValueError) else 'places that are not there'}"[:200],
            "nets and lists as Caffe2 writes them",
            "save the net again",
        ) from None
    found = net.program.nodes[before:]
    origin.id = found[-1].name
    mark_origin(found, "caffe2", origin, net.program.values)
    return found


def check_condition(what: str, op: str, inputs: Sequence[str]) -> None:
    """Raise BadGraph when an op that tests a condition has no input."""
    if not inputs or not inputs[0]:
        raise BadGraph.one(
            "missing_condition", f"op {quoted(what)}", f"{op} without inputs", "a condition first", "name it"
        )


def _if(net: NetReader, name: str, attributes: Mapping[str, Any], inputs: list[str], outputs: list[str]) -> None:
    """If; an output that a branch does not write keeps its previous value."""
    check_condition(name, "If", inputs)
    if nested_net(attributes, "then_net") is None:
        raise missing_net_error(name, "If", "then_net")
    outer, branches, types = net.program.types, {}, {}
    for key, net_name in (("then_branch", "then_net"), ("else_branch", "else_net")):
        nested = nested_net(attributes, net_name) or caffe2()["NetDef"]()
        inside = NestedNet(net, nested, outer)
        captures = captures_of(net, name, inside)
        for output in outputs:
            if output not in inside.written:
                if output not in outer:
                    raise undefined_error(
                        name, f"{quoted(output)} is written by one branch only and did not exist before"
                    )
                captures[output] = output
        branches[key] = inside.body([], captures, outputs)
        types.update({output: inside.type_of(output) for output in outputs if inside.type_of(output) is not None})
    condition = net.program.as_bool(inputs[0], name)
    net.program.add(NodeRow(name, "If", [condition], outputs, bodies=branches), [types.get(o) for o in outputs])


def _while(net: NetReader, name: str, attributes: Mapping[str, Any], inputs: list[str], outputs: list[str]) -> None:
    """Loop; the condition net runs before every test, without one the condition blob is re-tested."""
    loop, cond = nested_net(attributes, "loop_net"), nested_net(attributes, "cond_net")
    check_condition(name, "While", inputs)
    if loop is None:
        raise missing_net_error(name, "While", "loop_net")
    program, condition = net.program, inputs[0]
    if cond is not None:
        check_condition_written(name, condition, [NodeRow(op.type, op.type, [], list(op.output)) for op in cond.op])
        net.ops(cond.op)
    if condition not in program.types:
        raise undefined_error(name, f"the condition {quoted(condition)} does not exist before the loop")
    inside = NestedNet(net, loop, program.types)
    if cond is not None:
        inside.add(cond)
    states = [o for o in dict.fromkeys([*outputs, *inside.written]) if o != condition and o in program.types]
    states = [o for o in states if o in inside.written]
    captures = captures_of(net, name, inside, [*states, condition])
    next_condition = inside.program.as_bool(condition, f"{name}/again")
    if condition not in inside.written:
        captures[condition] = condition
    elif condition in inside.first_reads:  # carried from trip to trip
        raise ValueError(f"{quoted(condition)} is read in the loop before it is written")
    first = program.as_bool(condition, f"{name}/first")
    inside.program.values[f"{name}/trip"] = ValueRow(f"{name}/trip", [], "int64", "input")
    body = inside.body([f"{name}/trip", f"{name}/held", *states], captures, [next_condition, *states])
    max_trips = Attributes(attributes).maybe_integer("max_trips")
    row = NodeRow(name, "Loop", ["", first, *states], list(states), bodies={"body": body})
    if max_trips is not None:
        row.annotations = {"max_trips": max_trips}
    program.add(row, [inside.type_of(state) for state in states])


def _do(net: NetReader, name: str, attributes: Mapping[str, Any], inputs: list[str], outputs: list[str]) -> None:
    """Call with inner names bound to outer ones: inputs, then outputs; the last of each is the scope handle."""
    nested = nested_net(attributes, "net")
    names = Attributes(attributes).raw(("inner_blobs",)) or []
    positions = Attributes(attributes).integers("outer_blobs_idx", default=())
    do = DoOp(
        name,
        inputs,
        outputs,
        nested is not None,
        inner_names=[names] if isinstance(names, str) else names,
        outer_index=positions,
    )
    check_do(do)
    bound = do.bound()
    outer_types = net.program.types
    inside = NestedNet(net, nested, {inner: outer_types.get(outer) for inner, outer in bound.items()})
    formal = [inner for inner in inside.first_reads if inner in bound]
    unbound = [inner for inner in inside.first_reads if inner not in bound]
    if unbound:
        raise undefined_error(name, f"{quoted(unbound[0])} is read inside, where it is neither bound nor written")
    inner_of = {outer: inner for inner, outer in bound.items()}
    results = []
    for output in outputs[:-1]:
        inner = inner_of[output]
        if inner not in inside.written and inner not in formal:
            formal.append(inner)
        results.append(inner)
    scope = f"{name}/scope"
    body = inside.body([*formal, scope], {}, [*results, scope])
    row = NodeRow(
        name, "remat::Call", [*(bound[inner] for inner in formal), inputs[-1]], list(outputs), bodies={"body": body}
    )
    types = [inside.type_of(inner) for inner in results]
    net.program.add(row, [*types, outer_types.get(inputs[-1])])
