"""Reader of StableHLO text: one node for each kernel of XLA, opaque, with shapes, cost and storages.

    module of `jax.jit(step).lower(...)` ──▶ one sequence of nodes, forward, backward and update as the module has them

Locations (`as_text(debug_info=True)`) say which ops JAX's differentiation made; without them all is one phase.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence

from graph.errors import BadGraph, listed
from graph.formats.document.schema import ROWS, CostRow, Document, EffectWord, NodeRow, PhaseWord, RoleWord, ValueRow
from graph.formats.native.rows import graph_of
from graph.formats.stablehlo.inline import inlined
from graph.formats.stablehlo.records import Body, Module, Op, Value
from graph.formats.stablehlo.syntax import parse
from graph.formats.stablehlo.work import Task, bytes_of, tasks_of, trips_of, work_of
from graph.ir import IMPORT_WARNINGS, Graph
from graph.limits import Limits, ShapeOverrides

MAX_TEXT = 400  # characters of an op; longer ones are written as a hash
REPORT_ONLY = (
    "no rewritten StableHLO is made: the order and the recomputed nodes are in the report; "
    "train in JAX with remat.jax.optimize, which runs a plan"
)
BYTECODE = b"ML\xefR"
_SNIFFED = 1 << 16  # bytes
_BEGIN = re.compile(
    rb'\s*(?:#loc\d* = loc\(|(?:(?://|#[\w$.\-]+ = )[^\n]*\s*)*(?:"?builtin\.module\b|module\b|func\.func\b))'
)
_TRANSPOSED = "transpose("
_CONTENT = re.compile(r'dense<[\["]|dense_resource<')  # of a constant whose elements differ
EFFECTS: dict[str, EffectWord] = {
    **dict.fromkeys(("infeed", "outfeed", "recv", "send"), "once"),
    **dict.fromkeys(("all_gather", "all_reduce", "all_to_all", "collective_broadcast"), "collective"),
    **dict.fromkeys(("collective_permute", "reduce_scatter"), "collective"),
    "rng": "unstable",
}
HEAVY = frozenset({"convolution", "dot_general", "while"})


def sniff(data: bytes) -> bool:
    """True for MLIR text with a module or a function, and for MLIR bytecode."""
    return data.startswith(BYTECODE) or _BEGIN.match(data[:_SNIFFED]) is not None


def load(data: bytes, limits: Limits, shapes: ShapeOverrides) -> Graph:
    """Graph of a module. Raises BadGraph; of bytecode, which only JAX's own reader understands, with the remedy."""
    if data.startswith(BYTECODE):
        raise BadGraph.one(
            "unknown_format",
            "document",
            "MLIR bytecode",
            "MLIR text",
            "plan the file with `remat plan`, which needs jax on your machine, or write `lowered.as_text()`",
        )
    if shapes.lengths():
        field = shapes.lengths()[0][0]
        raise BadGraph.one(
            "unknown_value",
            field,
            "a length",
            "none, since the shapes of a StableHLO module are fixed",
            "lower the program for other shapes",
        )
    module = inlined(parse(_text(data), limits.depth), limits)
    return graph_of(_document(module), limits, shapes, len(data))


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadGraph.one(
            "not_a_model", f"line {line}", "bytes that are no UTF-8", "MLIR text", "export it again"
        ) from None


def _document(module: Module) -> Document:
    main = module.main
    ops = _without_dead(main)
    constants = {op: None for op in ops if op.kind == "constant" and _CONTENT.search(op.text)}
    tasks = tasks_of(Body(main.inputs, [op for op in ops if op not in constants], main.results))
    needed = {*main.results, *(value for task in tasks for value in task.reads)}
    updates = _in_place(module, tasks)
    values = [_value(value, "input") for value in main.inputs]
    values += [_value(value, "constant") for op in constants for value in op.outputs]
    values += [_value(value) for task in tasks for value in task.root.outputs if value in needed]
    return Document(
        format=ROWS,
        name=module.name,
        values=values,
        nodes=[
            _node(task, phase, updates.get(task.root, {}), needed)
            for task, phase in zip(tasks, _phases(tasks), strict=True)
        ],
        outputs=list(dict.fromkeys(value.name for value in main.results)),
        inputs=[value.name for value in main.inputs],
        annotations={IMPORT_WARNINGS: _warnings(tasks)},
    )


def _without_dead(body: Body) -> list[Op]:
    """The ops whose results or effects are of use, as XLA keeps them."""
    needed, kept = set(body.results), list[Op]()
    for op in reversed(body.ops):
        if _effect_of(op) == "once" or not needed.isdisjoint(op.outputs):
            needed.update(op.reads)
            kept.append(op)
    return kept[::-1]


def _effect_of(op: Op) -> EffectWord | None:
    return "once" if "has_side_effect = true" in op.text else EFFECTS.get(op.kind)


def _warnings(tasks: Sequence[Task]) -> list[str]:
    warnings = [REPORT_ONLY]
    if not any(task.root.location for task in tasks):
        warnings.append(
            "the module has no locations, so its forward and backward pass are not distinguished; "
            "write it with `lowered.as_text(debug_info=True)`"
        )
    loops = [op.name for task in tasks for op in task.ops if op.kind == "while" and trips_of(op) is None]
    if loops:
        warnings.append(f"the number of iterations is unknown, so the cost is that of one: {listed(loops)}")
    return warnings


def _value(value: Value, role: RoleWord = "activation") -> ValueRow:
    if value.type is None:
        return ValueRow(value.name, bytes=0, fixed_bytes=True)
    return ValueRow(value.name, list(value.type.shape), value.type.dtype, role)


def _phases(tasks: Sequence[Task]) -> list[PhaseWord]:
    """Backward is what differentiation transposed and what leads from there to such tasks; update, what reads only."""
    begun: set[Value] = set()  # results of transposed tasks and of what reads them
    follows = []
    for task in tasks:
        follows.append(_is_transposed(task) or not begun.isdisjoint(task.reads))
        if follows[-1]:
            begun.update(task.root.outputs)
    needed: set[Value] = set()  # by transposed tasks
    phases: list[PhaseWord] = []
    for task, follow in zip(reversed(tasks), reversed(follows), strict=True):
        is_backward = _is_transposed(task) or (follow and not needed.isdisjoint(task.root.outputs))
        if is_backward:
            needed.update(task.reads)
        phases.append("backward" if is_backward else "update" if follow else "forward")
    return phases[::-1]


def _is_transposed(task: Task) -> bool:
    return _TRANSPOSED in task.root.location


def _in_place(module: Module, tasks: Sequence[Task]) -> dict[Op, dict[str, str]]:
    """For the roots of tasks: results that take the storage of a donated argument, which nothing reads after them."""
    maker = {value: t for t, task in enumerate(tasks) for value in task.root.outputs}
    last_reader = {value: t for t, task in enumerate(tasks) for value in task.reads}
    found: dict[Op, dict[str, str]] = {}
    for result, argument in module.donated.items():
        new, old = module.main.results[result], module.main.inputs[argument]
        t = maker.get(new, -1)
        is_last = t >= last_reader.get(old, 0) and old not in module.main.results
        if is_last and bytes_of(new) == bytes_of(old) and not _views(tasks[t].root):
            found.setdefault(tasks[t].root, {})[new.name] = old.name
    return found


def _node(task: Task, phase: PhaseWord, in_place: dict[str, str], needed: Collection[Value]) -> NodeRow:
    root, done = task.root, work_of(task)
    inputs = dict.fromkeys([*(value.name for value in task.reads), *in_place.values()])
    notes = {"module": root.location, "line": root.line}
    return NodeRow(
        name=root.name,
        op=root.kind.replace(".", "::") if "." in root.kind else f"stablehlo::{root.kind}",
        inputs=list(inputs),
        outputs=[value.name if value in needed else "" for value in root.outputs],
        attributes={"ops": [_text_of(op) for op in task.ops]},
        phase=phase,
        cost=CostRow(flops=done.flops, traffic_bytes=done.traffic_bytes, workspace_bytes=done.workspace_bytes),
        effect=_effect_of(root),
        alias_of={new.name: old.name for new, old in _views(root) if new in needed},
        in_place=in_place,
        heavy=root.kind in HEAVY or None,
        annotations={key: text for key, text in notes.items() if text} or None,
    )


def _views(op: Op) -> list[tuple[Value, Value]]:
    """(result, operand) pairs that are the same bytes."""
    return [(op.outputs[0], op.operands[0])] if op.kind in ("reshape", "optimization_barrier") else []


def _text_of(op: Op) -> str:
    """The op as written, or the hash of a long one: equal for the same op in every process."""
    return op.text if len(op.text) <= MAX_TEXT else f"sha256={hashlib.sha256(op.text.encode()).hexdigest()}"
