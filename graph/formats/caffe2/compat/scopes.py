"""Scoped subgraphs of Caffe2: Do, and While over one Do, with inner names bound to outer names, and scope handles.

    Do(X: outer_X, Y: outer_Y, W) -> Z: outer_Z, W        remat::Call(outer_X, outer_Y) -> outer_Z

The last input and output is the handle, a stack of saved scopes. Differentiation finds the values of a scope that
gradients need and returns them by name, so a handle has no bytes; it identifies the scope that a later Do re-uses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from graph.errors import BadGraph, Findings, quoted
from graph.formats.document.schema import NodeRow
from graph.formats.shared.blocks import Block
from graph.formats.shared.program import Program
from graph.ops.control_flow.interface import CALL


@dataclass(frozen=True, slots=True)
class DoOp:
    """A Do op of a file; None for arguments that the file lacks. The last input and output are the handle."""

    name: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    has_graph: bool = True
    bindings: Mapping[str, str] | None = None  # inner name -> outer name
    inner_names: Sequence[Any] | None = None  # with `outer_index`: alternative to `bindings`
    outer_index: Sequence[Any] | None = None  # positions in `outer`
    reuses_scope: bool = False

    @property
    def place(self) -> str:
        """Place of the op in messages."""
        return f"op {quoted(self.name)}"

    @property
    def outer(self) -> list[str]:
        """Outer names by position: inputs, then outputs, each without the handle."""
        return [*self.inputs[:-1], *self.outputs[:-1]]

    def bound(self) -> dict[str, str]:
        """Inner name -> outer name. Raises BadGraph with the faults of the bindings."""
        findings = Findings()
        pairs = _pairs(self, findings)
        findings.settle()
        return dict(pairs)


def check_do(do: DoOp) -> None:
    """Raise BadGraph with one finding per cause, naming the blob, when the op is invalid."""
    findings = Findings()
    if not do.has_graph:
        findings.add("missing_body", do.place, "a Do without a subgraph", "a graph to run", "add the graph")
    if not do.inputs or not do.outputs:
        side = "inputs" if not do.inputs else "outputs"
        findings.add(
            "missing_scope",
            do.place,
            f"a Do without {side}, not even a scope handle",
            "a scope handle at the end",
            "list the handle last among inputs and outputs",
        )
        findings.settle()
    if do.inputs[-1] != do.outputs[-1]:
        findings.add(
            "scope_mismatch",
            do.place,
            f"scope handle {quoted(do.inputs[-1])} goes in, {quoted(do.outputs[-1])} comes out",
            "one handle",
            "list the same handle last among inputs and outputs",
        )
    listed_twice = set()
    for side, names in (("input", do.inputs[:-1]), ("output", do.outputs[:-1])):
        for name in _repeated(names):
            listed_twice.add(name)
            findings.add(
                "duplicate_outer_name",
                do.place,
                f"outer {side} {quoted(name)} twice",
                "each outer name once",
                "bind it to one inner name",
            )
    pairs = _pairs(do, findings)
    bound = [outer for _, outer in pairs]
    for name in _repeated([name for name in bound if name not in listed_twice]):
        findings.add(
            "outer_name_bound_twice",
            do.place,
            f"outer name {quoted(name)} bound to two inner names",
            "one inner name for each outer one",
            "remove a binding",
        )
    if len(findings) == 0:
        for name in dict.fromkeys(do.outer):
            if name not in bound:
                findings.add(
                    "unbound_outer_name",
                    do.place,
                    f"outer name {quoted(name)} bound to nothing",
                    "a binding for each outer name",
                    "bind it, or leave it out of the inputs and outputs",
                )
    findings.settle()


def _repeated(names: Sequence[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _pairs(do: DoOp, findings: Findings) -> list[tuple[str, str]]:
    """(inner, outer) of every readable binding; faults of the lists are collected."""
    if do.bindings is not None and (do.inner_names is not None or do.outer_index is not None):
        findings.add(
            "bindings_twice",
            do.place,
            f"bindings of {quoted(do.name)} given twice",
            "one list of bindings",
            "leave one of them out",
        )
        return []
    pairs = _listed_pairs(do, findings) if do.bindings is None else list(do.bindings.items())
    for inner in _repeated([str(inner) for inner, _ in pairs]):
        findings.add(
            "duplicate_inner_name",
            do.place,
            f"inner name {quoted(inner)} bound twice",
            "each inner name once",
            "rename one of them",
        )
    return pairs


def _listed_pairs(do: DoOp, findings: Findings) -> list[tuple[str, str]]:
    """(inner, outer) of bindings given as a list of inner names and a list of positions."""
    if not do.inner_names or not do.outer_index:
        findings.add(
            "missing_bindings",
            do.place,
            f"{quoted(do.name)} without a list of inner names or of places",
            "a binding for each outer name",
            "add the binding list",
        )
        return []
    if len(do.inner_names) != len(do.outer_index):
        findings.add(
            "length_mismatch",
            do.place,
            f"{len(do.inner_names)} inner names for {len(do.outer_index)} places of {quoted(do.name)}",
            "one place for each inner name",
            "make the lists equally long",
        )
        return []
    pairs = []
    for inner, position in zip(do.inner_names, do.outer_index, strict=True):
        if isinstance(position, bool) or not isinstance(position, int) or not 0 <= position < len(do.outer):
            findings.add(
                "outer_index",
                do.place,
                f"place {position!r:.40} for inner name {quoted(str(inner))}",
                f"a place from 0 to {len(do.outer) - 1}: inputs, then outputs, handles left out",
                "correct the place",
            )
        else:
            pairs.append((str(inner), do.outer[position]))
    return pairs


def check_do_gradient(do: DoOp, gradients: Sequence[str | None]) -> None:
    """Raise BadGraph when a Do has no gradient for these gradients of its outputs."""
    findings = Findings()
    if not _pairs(do, Findings()):
        findings.add(
            "missing_bindings",
            do.place,
            f"the gradient of {quoted(do.name)}, to which nothing is bound",
            "bindings through which a gradient can pass",
            "bind what is differentiated",
        )
    if do.reuses_scope:
        findings.add(
            "scope_reused",
            do.place,
            f"the gradient of {quoted(do.name)}, which runs in an older scope",
            "a scope of its own for every run: stacked scopes",
            "leave `reuse_workspace` out",
        )
    _check_gradients(do.name, do.outputs, gradients, findings)
    findings.settle()


def check_while_gradient(
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    body: Sequence[DoOp | None] | None,
    gradients: Sequence[str | None],
) -> None:
    """Raise BadGraph when a While has no gradient.

    `body` lists the ops of its loop graph, with None for ops other than Do; None without a loop graph.
    """
    findings, where = Findings(), f"op {quoted(name)}"
    if not inputs:
        findings.add("missing_condition", where, f"{quoted(name)} without inputs", "a condition first", "name it")
    if body is None:
        findings.add("missing_body", where, f"{quoted(name)} without a loop graph", "a graph to repeat", "add it")
    elif len(body) != 1 or body[0] is None:
        what = f"{len(body)} ops" if len(body) != 1 else "an op that is no Do"
        findings.add(
            "loop_body", where, f"{what} as loop graph of {quoted(name)}", "exactly one Do", "wrap the body in a Do"
        )
    else:
        if body[0].reuses_scope:
            findings.add(
                "scope_reused",
                where,
                f"{quoted(body[0].name)} in the loop {quoted(name)} runs in an older scope",
                "a scope of its own for every trip",
                "leave `reuse_workspace` out",
            )
        if not body[0].outputs:
            findings.add(
                "missing_scope",
                where,
                f"{quoted(body[0].name)} without outputs, not even a scope handle",
                "a scope handle at the end",
                "list the handle last among inputs and outputs",
            )
    _check_gradients(name, outputs, gradients, findings)
    findings.settle()


def check_if_gradient(
    name: str, inputs: Sequence[str], outputs: Sequence[str], has_then: bool, gradients: Sequence[str | None]
) -> None:
    """Raise BadGraph when an If has no gradient for these gradients of its outputs."""
    findings, where = Findings(), f"op {quoted(name)}"
    if not inputs:
        findings.add("missing_condition", where, f"{quoted(name)} without inputs", "a condition first", "name it")
    if not has_then:
        findings.add("missing_body", where, f"{quoted(name)} without a then graph", "a graph to run", "add the graph")
    _check_gradients(name, outputs, gradients, findings)
    findings.settle()


def _check_gradients(name: str, outputs: Sequence[str], gradients: Sequence[str | None], findings: Findings) -> None:
    where = f"op {quoted(name)}"
    if len(gradients) != len(outputs):
        findings.add(
            "gradient_count",
            where,
            f"{len(gradients)} gradients for {len(outputs)} outputs of {quoted(name)}",
            "one for each output, the scope handle included",
            "give null where there is none",
        )
    elif not any(gradient is not None for gradient in gradients):
        findings.add(
            "no_output_gradient",
            where,
            f"no gradient of any output of {quoted(name)}",
            "at least one: there is nothing to differentiate",
            "give the gradient of an output",
        )


def distinct_gradients(
    outputs: Sequence[str], gradients: Sequence[str | None]
) -> tuple[list[tuple[str, str]], list[str | None]]:
    """(copies as (gradient, copy), the gradient of each output), with distinct gradients for distinct outputs.

    The first output with a gradient keeps it, each later one gets a copy; a repeated output keeps its gradient.
    """
    copies: list[tuple[str, str]] = []
    given: dict[str, str | None] = {}
    used: set[str] = set()
    for output, gradient in zip(outputs, gradients, strict=True):
        if output in given:
            continue
        if gradient is not None and gradient in used:
            copy = f"{output}_{gradient}_DEDUP"
            copies.append((gradient, copy))
            gradient = copy
        if gradient is not None:
            used.add(gradient)
        given[output] = gradient
    return copies, [given[output] for output in outputs]


@dataclass(slots=True)
class SavedScopes:
    """Saved scopes of a program while it is read: per handle a stack of scopes, each local name -> outer name."""

    reused: Collection[str] = ()  # handles whose scopes a later Do re-uses
    saved: dict[str, list[dict[str, str]]] = field(default_factory=dict)

    def create(self, handle: str) -> None:
        """Empty the stack of a handle."""
        self.saved[handle] = []

    def block(self, program: Program, do: DoOp) -> Block:
        """Empty body of a Do, in which the bound names and the re-used scope are visible."""
        check_do(do)
        bound = do.bound()
        visible = {inner: program.types[outer] for inner, outer in bound.items() if outer in program.types}
        if do.reuses_scope:
            for inner, outer in self._newest(do).items():
                visible.setdefault(inner, program.types[outer])
        return Block(program, visible, sees=False)

    def add(self, program: Program, do: DoOp, block: Block) -> NodeRow:
        """Add the call of a body made by `block`, once it contains its ops."""
        handle, bound = do.inputs[-1], do.bound()
        inner_of = {outer: inner for inner, outer in bound.items()}
        older = self._newest(do) if do.reuses_scope else {}
        read = set(block.names.reads)
        results = [inner_of[outer] for outer in do.outputs[:-1]]
        read.update(name for name in results if name not in block.names.writes)
        block.formals = {name: type for name, type in block.formals.items() if name in read}
        # Local names are returned under unique outer names when a later Do re-uses this scope.
        local = [name for name in block.names.writes if name not in bound and handle in self.reused]
        kept = {name: f"{do.name}/{handle}/{name}" for name in local}
        outside = {**older, **bound}
        inputs = [outside[name] for name in block.formals]
        body = block.body([*results, *local], f"Do {quoted(do.name)}")
        outputs = [*do.outputs[:-1], *kept.values()]
        row = NodeRow(do.name, CALL, inputs, outputs, bodies={"body": body})
        program.add(row, [block.program.types.get(name) for name in (*results, *local)])
        if do.reuses_scope:
            self.saved[handle][-1] = {**older, **kept}
        else:
            self.saved.setdefault(handle, []).append(kept)
        return row

    def _newest(self, do: DoOp) -> dict[str, str]:
        saved = self.saved.get(do.inputs[-1])
        if not saved:
            raise BadGraph.one(
                "scope_empty",
                f"op {quoted(do.name)}",
                f"no saved scope in {quoted(do.inputs[-1])} to re-use",
                "a Do that ran in this scope before",
                "leave `reuse_workspace` out of the first",
            )
        return saved[-1]
