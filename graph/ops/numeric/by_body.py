"""Ops that are defined by their decomposition into standard ops alone: its nodes give kernel, types and work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graph.builder.builder import Builder
from graph.builder.emit import Emit
from graph.errors import CannotExecute
from graph.ir import TensorType, Val
from graph.ops.registry.dispatch import run, work
from graph.ops.registry.onnx_fallback import call_key, type_of_array
from graph.ops.registry.registry import CHEAP, Call, Decomposition, Kernel, Work, op

_CACHED_PROGRAMS = 256


#: (call, inputs, outputs, values that no later step reads)
_Types = tuple[TensorType | None, ...]
_Step = tuple[Call, tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _Program:
    """A decomposition for inputs of certain types. Values are numbered; -1 is absent."""

    inputs: tuple[int, ...]
    constants: dict[int, np.ndarray]
    steps: tuple[_Step, ...]
    results: tuple[int, ...]
    types: _Types  # of the results


class Unsupported(ValueError):
    """Raised by a body for an option of its op that it does not cover."""


class _Programs:
    """Programs of one decomposition by the types and attributes of a call."""

    def __init__(self, body: Decomposition):
        self.body = body
        self.cached: dict[Any, _Program] = {}

    def of(self, call: Call) -> _Program:
        call = replace(call, constants=())
        key = call_key(call)
        if key not in self.cached:
            program = _program_of(self.body, call)
            if len(self.cached) >= _CACHED_PROGRAMS:
                self.cached.clear()
            self.cached[key] = program
        return self.cached[key]


def kernel_of(body: Decomposition, sized_by_content: bool = False) -> Kernel:
    """The kernel that runs `body`; with `sized_by_content` the body sees all inputs as constants."""
    return _kernel(_Programs(body), sized_by_content)


def composite(
    name: str,
    body: Callable[..., Sequence[Val | None] | Val],
    recompute: str = CHEAP,
    types: Callable[[Call, _Types], _Types] = lambda call, found: found,
    check: Callable[..., None] = lambda call, *arrays: None,
) -> None:
    """Register op `name` with types, work and kernel of its body; one that is HEAVY to recompute trains as its body.

    A call that the body does not support has the declared types, one flop per element, no kernel and no gradient.
    Workspace and traffic are those of one fused kernel: intermediate values count for neither. `types` replaces the
    types that the body gives; `check` raises CannotExecute for arrays that the body does not cover.
    """

    def results(emit: Emit, call: Call, *inputs: Val | None) -> tuple[Val | None, ...]:
        found = body(emit, call, *inputs)
        return (found,) if isinstance(found, Val) else tuple(found)[: len(call.used)]

    programs = _Programs(results)
    compute = _kernel(programs)

    def infer(call: Call) -> _Types:
        try:
            found = programs.of(call).types
        except Unsupported:
            return call.outputs
        return types(call, (*found, *[None] * (len(call.used) - len(found))))

    def cost(call: Call) -> Work:
        try:
            parts = [work(step) for step, *_ in programs.of(call).steps]
        except Unsupported:
            return Work(sum(type.elements for type in call.outputs if type is not None))
        return Work(sum(part.flops for part in parts), workspace_bytes=max(part.workspace_bytes for part in parts))

    def kernel(call: Call, *arrays: np.ndarray | None) -> tuple[np.ndarray | None, ...]:
        check(call, *arrays)
        try:
            return compute(call, *arrays)
        except Unsupported as error:
            raise CannotExecute(f"op {call.op} with options that have no kernel: {error}") from None

    op(name, infer=infer, work=cost, recompute=recompute, body=results)(kernel)


def _kernel(programs: _Programs, sized_by_content: bool = False) -> Callable[..., tuple[np.ndarray | None, ...]]:
    def kernel(call: Call, *arrays: np.ndarray | None) -> tuple[np.ndarray | None, ...]:
        call = replace(call, inputs=tuple(None if a is None else type_of_array(a) for a in arrays))
        if sized_by_content:
            program = _program_of(programs.body, replace(call, constants=arrays))
        else:
            program = programs.of(call)
        found: dict[int, np.ndarray | None] = {-1: None, **program.constants}
        found.update(zip(program.inputs, arrays, strict=True))
        for step, inputs, outputs, dead in program.steps:
            found.update(zip(outputs, run(step, *[found[v] for v in inputs]), strict=False))
            for v in dead:
                del found[v]
        found[-1] = None
        return tuple([_own(found[v], arrays) for v in program.results])

    return kernel


def _own(result: np.ndarray | None, inputs: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """The result; a copy of one that is a view of an input."""
    if result is None or not any(x is not None and np.may_share_memory(result, x) for x in inputs):
        return result
    return result.copy()


def _program_of(body: Decomposition, call: Call) -> _Program:
    builder = Builder(call.op, {"": max(call.opset, 21)})
    emit = Emit(builder, call.op)
    inputs = [
        None if type is None else emit.val(builder.value(f"x{i}", type, data=call.constant(i)))
        for i, type in enumerate(call.inputs)
    ]
    results = body(emit, call, *inputs)
    values = [*builder.values, None]  # -1 is absent
    ids = tuple([-1 if y is None else y.id for y in results])
    last = {v: n for n, node in enumerate(builder.nodes) for v in node.inputs if v not in (-1, *ids)}
    steps = []
    for n, node in enumerate(builder.nodes):
        given, made = [values[v] for v in node.inputs], [values[v] for v in node.outputs]
        step = Call(
            node.op,
            node.attributes,
            tuple([None if x is None else x.type for x in given]),
            tuple([None if y is None else y.type for y in made]),
            tuple([y is not None for y in made]),
            tuple([None if x is None else x.data for x in given]),
            builder.opset[""],
        )
        steps.append((step, node.inputs, node.outputs, tuple([v for v in set(node.inputs) if last.get(v) == n])))
    constants = {v: value.data for v, value in enumerate(builder.values) if value.data is not None}
    types = tuple([None if y is None else y.type for y in results])
    return _Program(tuple([-1 if x is None else x.id for x in inputs]), constants, tuple(steps), ids, types)
