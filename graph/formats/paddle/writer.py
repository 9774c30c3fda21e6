"""Writer of Paddle programs (`.pdmodel`, JSON). The plan is a list of checkpoints: variables kept in memory.

Each checkpoint is marked by an attribute of its variable; `checkpoints_of` lists them for Paddle's `recompute_configs`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from graph.errors import BadGraph, quoted
from graph.formats.paddle.mesh_attributes import AUTO_PARALLEL_SUFFIX, CHECKPOINT, MAPPING, MESH, MESH_SHAPE, flat_mesh
from graph.formats.paddle.ops import DTYPE_NUMBERS
from graph.formats.paddle.proto import LOD_TENSOR, paddle
from graph.formats.paddle.write_ops import OP_CONVERTERS, op_message
from graph.formats.shared.groups import not_representable, note_of, op_groups, run_of
from graph.formats.shared.op_writer import with_framework_ops
from graph.formats.shared.protobuf import fill_message
from graph.formats.shared.written_names import WrittenOp, WrittenProgram, written_program
from graph.ir import ABSENT, Graph, Phase, Role, Value

FORMS = ("protobuf", "json")
SUB_BLOCK = "sub_block"  # attribute of an op: its nested block


def dump(graph: Graph, checkpoints: Collection[str] | None = None, form: str | None = None) -> bytes:
    """Bytes of the program; default form: the form it was read from; default checkpoints: `checkpoints_of(graph)`.

    Raises BadGraph for nodes and values that Paddle, or the form, cannot represent.
    """
    if form is not None and form not in FORMS:
        raise ValueError(f"form {form!r}; use one of {', '.join(FORMS)}")
    graph = with_framework_ops(graph, "paddle", OP_CONVERTERS, op_message)
    groups = op_groups(graph, "paddle")
    note = note_of(graph, "paddle")
    if form is not None and form != ("json" if "json" in note else "protobuf"):
        raise not_representable("form", f"the form {form} of a graph that was not read from it", "the other form")
    written = written_program(graph, groups, "paddle")
    marked = _marked(graph, written, checkpoints)
    if "json" in note:
        return _json(graph, written, note, marked)
    program = paddle()["ProgramDesc"]()
    if "program" in note:
        fill_message(program, note["program"], "paddle")
    else:
        program.blocks.add(idx=0, parent_idx=-1)
        program.version.version = 0
    block = program.blocks[0]
    feeds_and_fetches = list(block.ops)
    del block.ops[:]
    blocks = {nested.idx: nested for nested in program.blocks}
    _feed(block, feeds_and_fetches, graph, written, is_new="program" not in note)
    for op in written.ops:
        message = block.ops.add()
        fill_message(message, {**op.group.origin.attributes, "type": op.group.origin.op}, "paddle")
        _rename(message, op, blocks)
    _clear_unused(program)
    _fetch(program, feeds_and_fetches, written, is_new="program" not in note)
    _declare(block, graph, written)
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


def _marked(graph: Graph, written: WrittenProgram, checkpoints: Collection[str] | None) -> set[str]:
    """Names in the file of the checkpoints; those that the file notes and a pass removed are left out."""
    names = {old: new for new, old in written.old_names.items()}
    names |= {value.name: written.names[v] for v, value in enumerate(graph.values)}
    if checkpoints is None:
        return {names[name] for name in checkpoints_of(graph) if name in names}
    return {names.get(name, name) for name in checkpoints}


def _clear_unused(program: Any) -> None:
    """Clear the blocks that no op runs."""
    blocks = {block.idx: block for block in program.blocks}
    used, pending = {0}, [0]
    while pending:
        for op in blocks[pending.pop()].ops:
            nested = {attribute.block_idx for attribute in op.attrs if attribute.name == SUB_BLOCK} - used
            used |= nested
            pending += nested
    for block in program.blocks:
        if block.idx not in used:
            del block.ops[:]


def _rename(message: Any, op: WrittenOp, blocks: Mapping[int, Any]) -> None:
    """Give the operands of an OpDesc, and those of its nested blocks, the names of the values of the graph."""
    for slots, names in ((message.inputs, op.reads), (message.outputs, op.writes)):
        for slot in slots:
            slot.arguments[:] = [names.get(name, name) for name in slot.arguments]
    nested = [attribute.block_idx for attribute in message.attrs if attribute.name == SUB_BLOCK]
    if nested and (names := op.nested_names()):
        used: set[str] = set()
        _rename_block(blocks[nested[0]], names, blocks, used)
        op.refuse_clash(names, used, "block")


def _rename_block(block: Any, names: Mapping[str, str], blocks: Mapping[int, Any], used: set[str]) -> None:
    """Rename the operands in a nested block and in the blocks inside it; operands not renamed are added to `used`."""
    for op in block.ops:
        for slot in (*op.inputs, *op.outputs):
            used.update(name for name in slot.arguments if name not in names)
            slot.arguments[:] = [names.get(name, name) for name in slot.arguments]
        for attribute in op.attrs:
            if attribute.name == SUB_BLOCK:
                _rename_block(blocks[attribute.block_idx], names, blocks, used)


def _feed(block: Any, noted: Sequence[Any], graph: Graph, written: WrittenProgram, is_new: bool) -> None:
    """Add the feed ops: those of the file whose value is an input, and new ones if the file has or needs any."""
    inputs = [written.names[v] for v in written.given if graph.values[v].role is Role.INPUT]
    now = {old: new for new, old in written.old_names.items() if new in inputs}
    feeds = [op for op in noted if op.type == "feed"]
    fed: set[str] = set()
    for op in feeds:
        (name,) = op.outputs[0].arguments
        name = now.get(name, name)
        if name in inputs:
            copied = block.ops.add()
            copied.CopyFrom(op)
            copied.outputs[0].arguments[:] = [name]
            fed.add(name)
    columns = [attribute.i for op in feeds for attribute in op.attrs if attribute.name == "col"]
    next_column = 1 + max(columns, default=-1)
    new = [name for name in inputs if name not in fed] if feeds or is_new else []
    for k, name in enumerate(new, next_column):
        op = block.ops.add(type="feed")
        op.inputs.add(parameter="X", arguments=["feed"])
        op.outputs.add(parameter="Out", arguments=[name])
        op.attrs.add(name="col", type=0, i=k)


def _fetch(program: Any, noted: Sequence[Any], written: WrittenProgram, is_new: bool) -> None:
    """Add the fetch ops: those of the file where they fetch the outputs, else one for each output."""
    block, fetches = program.blocks[0], [op for op in noted if op.type == "fetch"]
    if [name for op in fetches for slot in op.inputs for name in slot.arguments] == written.outputs:
        for op in fetches:
            block.ops.add().CopyFrom(op)
    elif fetches or is_new or written.outputs != _unread(written, program):
        for k, name in enumerate(written.outputs):
            op = block.ops.add(type="fetch")
            op.inputs.add(parameter="X", arguments=[name])
            op.outputs.add(parameter="Out", arguments=["fetch"])
            op.attrs.add(name="col", type=0, i=k)


def _unread(written: WrittenProgram, program: Any) -> list[str]:
    """Names written and never read: the outputs of a program without fetch ops."""
    read = {name for block in program.blocks for op in block.ops for slot in op.inputs for name in slot.arguments}
    return [name for name in dict.fromkeys(n for op in written.ops for n in op.outputs) if name not in read]


def _declare(block: Any, graph: Graph, written: WrittenProgram) -> None:
    """Declare the variables that the ops of block 0 name and the file does not have; drop those renamed away."""
    declared = {var.name: var for var in block.vars}
    named = {
        name: None
        for op in block.ops
        if op.type not in ("feed", "fetch")
        for slot in (*op.inputs, *op.outputs)
        for name in slot.arguments
    }
    values = {written.names[v]: value for v, value in enumerate(graph.values)}
    for name in named:
        if name in declared or name not in values:
            continue
        var = block.vars.add()
        if written.old_names.get(name, name) in declared:
            var.CopyFrom(declared[written.old_names[name]])
            var.name = name
        else:
            _variable(var, values[name])
    gone = {old for new, old in written.old_names.items() if new != old} - named.keys()
    kept = [var for var in block.vars if var.name not in gone]
    del block.vars[:]
    block.vars.extend(kept)


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


def _json(graph: Graph, written: WrittenProgram, note: Mapping[str, Any], checkpoints: set[str]) -> bytes:
    """The newer form, of a graph that was read from it; ops of checkpoints are marked. Raises BadGraph."""
    given = _check_numbered(graph, written, note)
    by_id = {op.group.origin.id: op for op in written.ops}
    ops: list[Any] = []
    missing = set(checkpoints)
    for entry in note["ops"]:
        written_op = by_id.get(entry.get("group", ""))
        if written_op is None:
            if "#" in entry:
                ops.append(entry)
            elif "op" in entry and entry.get("given") in (None, *given):
                ops.append(entry["op"])
            continue
        op = dict(written_op.group.origin.attributes["json"])
        marked = checkpoints.intersection(written_op.outputs)
        notes = [attribute for attribute in op.get("A", ()) if attribute.get("N") != CHECKPOINT]
        if marked:
            missing -= marked
            notes.append({"N": CHECKPOINT, "AT": {"#": "0.a_bool", "D": True}})
        ops.append({**op, "A": notes})
    if missing:
        raise _unknown_checkpoint(min(missing))
    block = {"#": "block_0", "args": [], "ops": ops}
    return msgspec.json.encode({**note["json"], "program": {"regions": [{"#": "region_0", "blocks": [block]}]}})


def _check_numbered(graph: Graph, written: WrittenProgram, note: Mapping[str, Any]) -> list[str]:
    """Names of the inputs, parameters and states. Raises BadGraph for operands and outputs unlike those of the file.

    Ops of the newer form refer to values by number, so values have the names of their numbers.
    """
    given = [written.names[v] for v in written.given if graph.values[v].role is not Role.CONSTANT]
    noted = {entry.get("given") for entry in note["ops"]}
    changed = [f"{quoted(new)} in place of {quoted(old)}" for new, old in written.old_names.items() if new != old]
    changed += [f"{quoted(name)}, which is no input of the file" for name in given if name not in noted]
    if written.outputs != list(dict.fromkeys(note["outputs"])):
        changed.append(f"the outputs {', '.join(map(quoted, written.outputs))[:120]}")
    if changed:
        raise not_representable("values", changed[0], "the values of the file, which ops refer to by number")
    return given


def _unknown_checkpoint(name: str) -> BadGraph:
    return not_representable(
        f"checkpoints.{name}", f"{quoted(name)}, which is no variable", "a variable of the program"
    )
