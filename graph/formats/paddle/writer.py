"""Writer of Paddle programs (`.pdmodel`, JSON). The plan is a list of checkpoints: variables kept in memory.

Each checkpoint is marked by an attribute of its variable; `checkpoints_of` lists them for Paddle's `recompute_configs`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from graph.errors import BadGraph, quoted
from graph.formats.paddle.mesh_attributes import AUTO_PARALLEL_SUFFIX, CHECKPOINT, MAPPING, MESH, MESH_SHAPE, flat_mesh
from graph.formats.paddle.ops import DTYPE_NUMBERS
from graph.formats.paddle.proto import LOD_TENSOR, paddle
from graph.formats.paddle.write_ops import OP_CONVERTERS, op_message
from graph.formats.shared.groups import OpGroup, not_representable, note_of, op_groups, run_of
from graph.formats.shared.op_writer import with_framework_ops
from graph.formats.shared.protobuf import fill_message
from graph.ir import ABSENT, Graph, Phase, Role, Value

FORMS = ("protobuf", "json")


def dump(graph: Graph, checkpoints: Collection[str] | None = None, form: str | None = None) -> bytes:
    """Bytes of the program; default form: the form it was read from; default checkpoints: `checkpoints_of(graph)`.

    Raises BadGraph for nodes and values that Paddle, or the form, cannot represent.
    """
    if form is not None and form not in FORMS:
        raise ValueError(f"form {form!r}; use one of {', '.join(FORMS)}")
    graph = with_framework_ops(graph, "paddle", OP_CONVERTERS, op_message)
    groups = op_groups(graph, "paddle")
    note = note_of(graph, "paddle")
    marked = set(checkpoints_of(graph) if checkpoints is None else checkpoints)
    if form is not None and form != ("json" if "json" in note else "protobuf"):
        raise not_representable("form", f"the form {form} of a graph that was not read from it", "the other form")
    if "json" in note:
        return _json(graph, groups, note, marked)
    program = paddle()["ProgramDesc"]()
    if "program" in note:
        fill_message(program, note["program"], "paddle")
    else:
        _outline(program, graph, groups)
    block = program.blocks[0]
    feeds_and_fetches = list(block.ops)
    del block.ops[:]
    for op in feeds_and_fetches:
        if op.type == "feed":
            block.ops.add().CopyFrom(op)
    for group in groups:
        fill_message(block.ops.add(), {**group.origin.attributes, "type": group.origin.op}, "paddle")
    for op in feeds_and_fetches:
        if op.type == "fetch":
            block.ops.add().CopyFrom(op)
    _mark(program, marked)
    return bytes(program.SerializeToString(deterministic=True))


def checkpoints_of(graph: Graph) -> list[str]:
    """Names of forward values that are kept as inputs of recomputation, in order.

    In a graph rewritten by a plan: outputs of first runs that a recomputed node reads; else the graph's annotation.
    """
    writer = {v: n for n, node in enumerate(graph.nodes) for v in node.writes}
    kept: dict[str, None] = {}
    recomputed = [node for node in graph.nodes if run_of(node) > 0 and "gradient_of" not in node.annotations]
    for node in recomputed:
        for v in node.inputs:
            if v == ABSENT or v not in writer:
                continue
            source = graph.nodes[writer[v]]
            if source.phase is Phase.FORWARD and run_of(source) == 0:
                kept[graph.values[v].name] = None
    if recomputed:
        return list(kept)
    noted = graph.annotations.get("checkpoints", ())
    return [str(name) for name in noted] if isinstance(noted, list | tuple) else []


def _mark(program: Any, checkpoints: set[str]) -> None:
    """Mark exactly the variables that are checkpoints. Raises BadGraph for an unknown variable."""
    missing = set(checkpoints)
    for block in program.blocks:
        for var in block.vars:
            kept = [attr for attr in var.attrs if attr.name != CHECKPOINT]
            del var.attrs[:]
            var.attrs.extend(kept)
            if var.name in checkpoints:
                var.attrs.add(name=CHECKPOINT, type=0, i=1)
                missing.discard(var.name)
    if missing:
        raise _unknown_checkpoint(min(missing))


def _outline(program: Any, graph: Graph, groups: list[OpGroup]) -> None:
    """Add block 0 with variables for the operands of the ops, and feed and fetch ops for inputs and outputs."""
    block = program.blocks.add(idx=0, parent_idx=-1)
    program.version.version = 0
    operands = {
        name
        for group in groups
        for slot in (*group.origin.attributes.get("inputs", ()), *group.origin.attributes.get("outputs", ()))
        for name in slot.get("arguments", ())
    }
    for value in graph.values:
        if value.name in operands:
            _variable(block.vars.add(), value)
    for k, v in enumerate(graph.inputs):
        if graph.values[v].name in operands:
            op = block.ops.add(type="feed")
            op.inputs.add(parameter="X", arguments=["feed"])
            op.outputs.add(parameter="Out", arguments=[graph.values[v].name])
            op.attrs.add(name="col", type=0, i=k)
    for k, v in enumerate(graph.outputs):
        op = block.ops.add(type="fetch")
        op.inputs.add(parameter="X", arguments=[graph.values[v].name])
        op.outputs.add(parameter="Out", arguments=["fetch"])
        op.attrs.add(name="col", type=0, i=k)


def _variable(var: Any, value: Value) -> None:
    if (
        value.type is None
        or value.type.dtype not in DTYPE_NUMBERS
        or (value.role is Role.CONSTANT and value.data is not None)
    ):
        raise not_representable(
            f"values.{value.name}",
            f"{value.role} {quoted(value.name)} of {value.type}",
            "a tensor of a type Paddle has",
        )
    var.name, var.type.type = value.name, LOD_TENSOR
    var.type.lod_tensor.tensor.data_type = DTYPE_NUMBERS[value.type.dtype]
    var.type.lod_tensor.tensor.dims.extend(value.type.shape)
    if value.role in (Role.PARAMETER, Role.STATE):
        var.persistable = True
        var.is_parameter = value.role is Role.PARAMETER
    if value.role is Role.INPUT:
        var.need_check_feed = True
    if value.stop_gradient:
        var.stop_gradient = True
    if MESH in value.annotations:
        ids, shape = flat_mesh(value.annotations[MESH])
        var.attrs.add(name=MESH + AUTO_PARALLEL_SUFFIX, type=3).ints.extend(ids)
        var.attrs.add(name=MESH_SHAPE, type=3).ints.extend(shape)
    if MAPPING in value.annotations:
        var.attrs.add(name=MAPPING + AUTO_PARALLEL_SUFFIX, type=3).ints.extend(value.annotations[MAPPING])


def _json(graph: Graph, groups: list[OpGroup], note: Mapping[str, Any], checkpoints: set[str]) -> bytes:
    """The newer form, of a graph that was read from it; ops of checkpoints are marked. Raises BadGraph."""
    by_id = {group.origin.id: group for group in groups}
    ops: list[Any] = []
    missing = set(checkpoints)
    for entry in note["ops"]:
        group = by_id.get(entry.get("group", ""))
        if "group" not in entry:
            ops.append(entry)
        if group is None:
            continue
        op = dict(group.origin.attributes["json"])
        written = {graph.values[v].name for n in group.nodes for v in graph.nodes[n].writes} & checkpoints
        notes = [attribute for attribute in op.get("A", ()) if attribute.get("N") != CHECKPOINT]
        if written:
            missing -= written
            notes.append({"N": CHECKPOINT, "AT": {"#": "0.a_bool", "D": True}})
        ops.append({**op, "A": notes})
    if missing:
        raise _unknown_checkpoint(min(missing))
    block = {"#": "block_0", "args": [], "ops": ops}
    return msgspec.json.encode({**note["json"], "program": {"regions": [{"#": "region_0", "blocks": [block]}]}})


def _unknown_checkpoint(name: str) -> BadGraph:
    return not_representable(
        f"checkpoints.{name}", f"{quoted(name)}, which is no variable", "a variable of the program"
    )
