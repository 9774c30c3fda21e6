"""Kernels of ops that are defined by their decomposition into standard ops alone: its nodes, run in order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graph.builder.builder import Builder
from graph.builder.emit import Emit
from graph.ops.registry.dispatch import run
from graph.ops.registry.onnx_fallback import call_key, type_of_array
from graph.ops.registry.registry import Call, Decomposition, Kernel

_CACHED_PROGRAMS = 256


#: (call, inputs, outputs, values that no later step reads)
_Step = tuple[Call, tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _Program:
    """A decomposition for inputs of certain types. Values are numbered; -1 is absent."""

    inputs: tuple[int, ...]
    constants: dict[int, np.ndarray]
    steps: tuple[_Step, ...]
    results: tuple[int, ...]


def kernel_of(body: Decomposition, sized_by_content: bool = False) -> Kernel:
    """The kernel that runs `body`; with `sized_by_content` the body sees all inputs as constants."""
    programs: dict[Any, _Program] = {}

    def kernel(call: Call, *arrays: np.ndarray | None) -> tuple[np.ndarray | None, ...]:
        types = tuple(None if a is None else type_of_array(a) for a in arrays)
        call = replace(call, inputs=types, constants=arrays if sized_by_content else ())
        key = None if sized_by_content else call_key(call)
        program = programs.get(key)
        if program is None:
            program = _program_of(body, call)
            if len(programs) >= _CACHED_PROGRAMS:
                programs.clear()
            if key is not None:
                programs[key] = program
        found: dict[int, np.ndarray | None] = {-1: None, **program.constants}
        found.update(zip(program.inputs, arrays, strict=True))
        for step, inputs, outputs, dead in program.steps:
            found.update(zip(outputs, run(step, *[found[v] for v in inputs]), strict=False))
            for v in dead:
                del found[v]
        found[-1] = None
        return tuple([found[v] for v in program.results])

    return kernel


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
    return _Program(tuple([-1 if x is None else x.id for x in inputs]), constants, tuple(steps), ids)
