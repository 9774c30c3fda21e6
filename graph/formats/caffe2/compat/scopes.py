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
    def outer(self) -> list[str]:
        """Outer names by position: inputs, then outputs, each without the handle."""
        return [*self.inputs[:-1], *self.outputs[:-1]]

    def bound(self) -> dict[str, str]:
        """Inner name -> outer name. Raises BadGraph with the faults of the bindings."""
        faults = _Faults(self.name)
        pairs = _pairs(self, faults)
        faults.settle()
        return dict(pairs)


class _Faults(Findings):
    """Faults of one op."""

    def __init__(self, name: str):
        super().__init__()
        self.place = f"op {quoted(name)}"

    def fault(self, code: str, found: str) -> None:
        self.add(code, self.place, found, *_RULES[code])


#: Code -> (rule that the op violates, remedy).
_RULES = {
    "bindings_twice": ("one list of bindings", "leave one of them out"),
    "duplicate_inner_name": ("each inner name once", "rename one of them"),
    "duplicate_outer_name": ("each outer name once", "bind it to one inner name"),
    "gradient_count": ("one for each output, the scope handle included", "give null where there is none"),
    "length_mismatch": ("one place for each inner name", "make the lists equally long"),
    "loop_body": ("exactly one Do", "wrap the body in a Do"),
    "missing_bindings": ("a binding for each outer name", "add the binding list"),
    "missing_body": ("a graph to run", "add the graph"),
    "missing_condition": ("a condition first", "name it"),
    "missing_scope": ("a scope handle at the end", "list the handle last among inputs and outputs"),
    "no_output_gradient": ("at least one: there is nothing to differentiate", "give the gradient of an output"),
    "outer_index": ("a place among the inputs, then the outputs, handles left out", "correct the place"),
    "outer_name_bound_twice": ("one inner name for each outer one", "remove a binding"),
    "scope_mismatch": ("one handle", "list the same handle last among inputs and outputs"),
    "scope_reused": ("a scope of its own for every run: stacked scopes", "leave `reuse_workspace` out"),
    "unbound_outer_name": ("a binding for each outer name", "bind it, or leave it out of the inputs and outputs"),
}


def check_do(do: DoOp) -> None:
    """Raise BadGraph with one finding per cause, naming the blob, when the op is invalid."""
    faults = _Faults(do.name)
    if not do.has_graph:
        faults.fault("missing_body", "a Do without a subgraph")
    if not do.inputs or not do.outputs:
        side = "inputs" if not do.inputs else "outputs"
        faults.fault("missing_scope", f"a Do without {side}, not even a scope handle")
        faults.settle()
    if do.inputs[-1] != do.outputs[-1]:
        first, last = quoted(do.inputs[-1]), quoted(do.outputs[-1])
        faults.fault("scope_mismatch", f"scope handle {first} goes in, {last} comes out")
    listed_twice = set()
    for side, names in (("input", do.inputs[:-1]), ("output", do.outputs[:-1])):
        for name in _repeated(names):
            listed_twice.add(name)
            faults.fault("duplicate_outer_name", f"outer {side} {quoted(name)} twice")
    bound = [outer for _, outer in _pairs(do, faults)]
    for name in _repeated([name for name in bound if name not in listed_twice]):
        faults.fault("outer_name_bound_twice", f"outer name {quoted(name)} bound to two inner names")
    if len(faults) == 0:
        for name in dict.fromkeys(do.outer):
            if name not in bound:
                faults.fault("unbound_outer_name", f"outer name {quoted(name)} bound to nothing")
    faults.settle()


def _repeated(names: Sequence[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _pairs(do: DoOp, faults: _Faults) -> list[tuple[str, str]]:
    """(inner, outer) of every readable binding; faults of the lists are collected."""
    if do.bindings is not None and (do.inner_names is not None or do.outer_index is not None):
        faults.fault("bindings_twice", f"bindings of {quoted(do.name)} given twice")
        return []
    pairs = _listed_pairs(do, faults) if do.bindings is None else list(do.bindings.items())
    for inner in _repeated([str(inner) for inner, _ in pairs]):
        faults.fault("duplicate_inner_name", f"inner name {quoted(inner)} bound twice")
    return pairs


def _listed_pairs(do: DoOp, faults: _Faults) -> list[tuple[str, str]]:
    """(inner, outer) of bindings given as a list of inner names and a list of positions."""
    if not do.inner_names or not do.outer_index:
        faults.fault("missing_bindings", f"{quoted(do.name)} without a list of inner names or of places")
        return []
    if len(do.inner_names) != len(do.outer_index):
        counts = f"{len(do.inner_names)} inner names for {len(do.outer_index)} places"
        faults.fault("length_mismatch", f"{counts} of {quoted(do.name)}")
        return []
    pairs = []
    for inner, position in zip(do.inner_names, do.outer_index, strict=True):
        if isinstance(position, bool) or not isinstance(position, int) or not 0 <= position < len(do.outer):
            place = f"place {position!r:.40} of {len(do.outer)}"
            faults.fault("outer_index", f"{place} for inner name {quoted(str(inner))}")
        else:
            pairs.append((str(inner), do.outer[position]))
    return pairs


def check_do_gradient(do: DoOp, gradients: Sequence[str | None]) -> None:
    """Raise BadGraph when a Do has no gradient for these gradients of its outputs."""
    faults = _Faults(do.name)
    if not _pairs(do, _Faults(do.name)):
        faults.fault("missing_bindings", f"the gradient of {quoted(do.name)}, to which nothing is bound")
    if do.reuses_scope:
        faults.fault("scope_reused", f"the gradient of {quoted(do.name)}, which runs in an older scope")
    _check_gradients(do.name, do.outputs, gradients, faults)
    faults.settle()


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
    faults = _Faults(name)
    if not inputs:
        faults.fault("missing_condition", f"{quoted(name)} without inputs")
    if body is None:
        faults.fault("missing_body", f"{quoted(name)} without a loop graph")
    elif len(body) != 1 or body[0] is None:
        content = f"{len(body)} ops" if len(body) != 1 else "an op that is no Do"
        faults.fault("loop_body", f"{content} as loop graph of {quoted(name)}")
    else:
        inner = quoted(body[0].name)
        if body[0].reuses_scope:
            faults.fault("scope_reused", f"{inner} in the loop {quoted(name)} runs in an older scope")
        if not body[0].outputs:
            faults.fault("missing_scope", f"{inner} without outputs, not even a scope handle")
    _check_gradients(name, outputs, gradients, faults)
    faults.settle()


def check_if_gradient(
    name: str, inputs: Sequence[str], outputs: Sequence[str], has_then: bool, gradients: Sequence[str | None]
) -> None:
    """Raise BadGraph when an If has no gradient for these gradients of its outputs."""
    faults = _Faults(name)
    if not inputs:
        faults.fault("missing_condition", f"{quoted(name)} without inputs")
    if not has_then:
        faults.fault("missing_body", f"{quoted(name)} without a then graph")
    _check_gradients(name, outputs, gradients, faults)
    faults.settle()


def _check_gradients(name: str, outputs: Sequence[str], gradients: Sequence[str | None], faults: _Faults) -> None:
    if len(gradients) != len(outputs):
        faults.fault("gradient_count", f"{len(gradients)} gradients for {len(outputs)} outputs of {quoted(name)}")
    elif not any(gradient is not None for gradient in gradients):
        faults.fault("no_output_gradient", f"no gradient of any output of {quoted(name)}")


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
