"""Malformed branches, loops and scoped subgraphs, and gradients that may not be asked for: each refused by its code."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graph.builder.builder import Builder
from graph.errors import BadGraph, Findings
from graph.formats.caffe2.compat.scopes import (
    DoOp,
    check_do,
    check_do_gradient,
    check_if_gradient,
    check_while_gradient,
)
from graph.formats.document.schema import NodeRow
from graph.formats.paddle.loops import while_loop
from graph.formats.paddle.ops import PADDLE
from graph.formats.shared.blocks import Block
from graph.formats.shared.program import Program
from graph.ir import Body, Graph, Role, TensorType
from graph.limits import Limits
from tests.seeds.control_flow_programs import Reading, do_of
from tests.seeds.harness import Area, Case

Op = Mapping[str, Any]
_COUNTS = {"none": 0, "no": 0, "zero": 0, "one": 1, "two": 2, "three": 3}
_REUSED = r"reuse|re-use"


class Refused:
    """A case that is refused when it is forced."""

    def __init__(self, case: Case, ask: Callable[[], object]):
        self.case, self.ask = case, ask


def run(case: Case) -> Refused:
    return Refused(case, lambda: _ask(case, case["ops"][-1]))


def _ask(case: Case, op: Op) -> object:
    """Check the op, ask for its gradient as the case does, and read the program around it."""
    wanted = case["wanted_gradients"]
    gradients = wanted.get("output_gradients")
    if gradients is None:
        targets = wanted.get("targets") or {}
        gradients = [targets.get(name) for name in op["outputs"]]
    if op["type"] == "Do":
        do = do_of(op)
        check_do(do)
        check_do_gradient(do, gradients)
    elif op["type"] == "If":
        then = op["attrs"].get("then_graph")
        check_if_gradient(op["type"], op["inputs"], op["outputs"], then is not None, gradients)
    elif op["type"] == "While":
        graph = op["attrs"].get("loop_graph", op["attrs"].get("body_graph"))
        check_while_gradient(op["type"], op["inputs"], op["outputs"], _loop_ops(graph), gradients)
    else:
        raise BadGraph.one("unsupported_op", "ops", op["type"], "Do, If or While", "use one of them")
    return Reading(case["source_project"]).graph(case["ops"], {}, list(op["outputs"][:1]))


def _loop_ops(graph: Any) -> list[DoOp | None] | None:
    """The ops of a loop graph, given as ops or in words such as `two ops`."""
    if isinstance(graph, Mapping) and isinstance(graph.get("ops"), list):
        return [do_of(op) if op["type"] == "Do" else None for op in graph["ops"]]
    words = graph if isinstance(graph, str) else ""
    if not words or words == "missing":
        return None
    scope = DoOp("body", ["x", "W"], ["x", "W"], bindings={"x": "x"}, reuses_scope=bool(re.search(_REUSED, words)))
    if "outputs" in words:
        scope = DoOp("body", ["x", "W"], [], bindings={"x": "x"})
    count = next((number for word, number in _COUNTS.items() if re.match(rf"{word} ops?\b", words)), 1)
    return [None if "not a" in words else scope] * count


def variants(case: Case) -> Sequence[Refused]:
    return [Refused(case, lambda variant=variant: _ask_variant(case, variant)) for variant in case["given"]["variants"]]


def _ask_variant(case: Case, variant: Any) -> object:
    if isinstance(variant, Mapping):
        return _ask(case, _changed(case["ops"][-1], variant))
    counts = re.fullmatch(r"(\w+) vs (\w+)", variant)
    if counts:
        return _branches(_COUNTS[counts[1]], _COUNTS[counts[2]])
    return _paddle_loop(variant)


def _changed(op: Op, variant: Op) -> Op:
    """The op with parts replaced; `missing` and `none` take a part away."""
    changed = {**op, "attrs": dict(op["attrs"])}
    for part, content in variant.items():
        if part in ("inputs", "outputs"):
            changed[part] = [] if content in ("none", "missing") else content
        else:
            changed["attrs"][part] = content
    return changed


def _branches(then: int, other: int) -> Graph:
    """An If of which the branches return so many values."""
    type = TensorType("float32", (1,))
    b = Builder("branches")
    c = b.value("c", TensorType("bool", ()), Role.INPUT)
    x = b.value("x", type, Role.INPUT)

    def branch(count: int) -> Body:
        inner = Builder("branch")
        inside = inner.value("x", type, Role.INPUT)
        made = [inner.node("Neg", [inside])[0] for _ in range(count)]
        return Body(Graph("branch", tuple(inner.values), tuple(inner.nodes), tuple(made)), ((inside, x),))

    outputs = b.node(
        "If",
        [c],
        outputs=max(then, other),
        types=[type] * max(then, other),
        bodies={"then_branch": branch(then), "else_branch": branch(other)},
    )
    return b.build(outputs)


def _paddle_loop(words: str) -> object:
    """A loop over one or two counters with the fault the words say."""
    number = TensorType("float32", (1,))
    program = Program(PADDLE, Limits(), Findings())
    for name in ("i", "j"):
        program.give(name, number)

    def added(there: Program, op: str, inputs: list[str], name: str, type: TensorType) -> str:
        name = there.free_name(name)
        there.add(NodeRow(name, op, inputs, [name]), [type])
        return name

    def condition(there: Program, names: Mapping[str, str]) -> Any:
        if "constant" in words:
            return True
        if "non-boolean" in words:
            return added(there, "Add", [names["i"], names["i"]], "sum", number)
        if "more than one" in words:
            wide = added(there, "Concat", [names["i"], names["i"]], "wide", TensorType("float32", (2,)))
            return added(there, "Less", [wide, wide], "flags", TensorType("bool", (2,)))
        return added(there, "Less", [names["i"], names["i"]], "flag", TensorType("bool", (1,)))

    def body(block: Block) -> Any:
        i = added(block.program, "Neg", ["i"], "next", number)
        if "grows" in words:
            return [i, [i, i]]
        if "another number" in words:
            return [i, i, i]
        return i if "one value for two" in words else [i, i]

    asked: dict[str, Any] = {"condition": condition, "body": body, "variables": ["i", "j"]}
    if "not a graph" in words or "not callable" in words:
        asked["condition" if "condition" in words else "body"] = "i < 3"
    if "not a list" in words:
        asked["variables"] = "i"
    if "no loop variables" in words:
        asked["variables"] = []
    if "grows" in words:
        asked["variables"] = ["i", ["j"]]
    while_loop(program, "loop", results=["i_out", "j_out"], max_trips=10, **asked)
    return program.graph("loop", ["i_out"], {})


AREA = Area(run, {}, lambda refused: refused.ask(), variants)
