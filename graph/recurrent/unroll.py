"""Unrolling of a recurrent net: the ops of the step once per step, states as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graph.builder.builder import Builder
from graph.builder.emit import Emit
from graph.errors import BadGraph, quoted
from graph.formats.shared.op_table import OpTable
from graph.ir import EMPTY, Phase, TensorType, Val
from graph.recurrent.net import Link, RecurrentNet
from graph.recurrent.step_graph import StepBuilder
from graph.recurrent.to_scan import count_steps, initial_value, slice_steps

MAX_NODES = 1_000_000


def add_unrolled(
    builder: Builder,
    net: RecurrentNet,
    given: Mapping[str, int],
    *,
    table: OpTable | None = None,
    types: Mapping[str, TensorType] = EMPTY,
    gradient_rules: Mapping[str, Any] = EMPTY,
) -> dict[str, int]:
    """Add the net to a graph as plain nodes; name -> value of every alias. The counterpart of `add_recurrent`.

    Raises BadGraph, also for more than MAX_NODES nodes.
    """
    net = net.checked()
    builder.gradient_rules = {**builder.gradient_rules, **gradient_rules}
    emit = Emit(builder, net.name, Phase.FORWARD)
    steps = count_steps(net, emit, given)
    if steps * len(net.ops) > MAX_NODES:
        raise BadGraph.one(
            "too_many_nodes",
            net.name,
            f"{steps} steps of {len(net.ops)} ops",
            f"at most {MAX_NODES} nodes",
            "keep the net as a Scan",
        )
    positions = {}
    for buffer, name in net.buffers.items():
        start = initial_value(net, emit, given, name)
        count = start.shape[0]
        positions[buffer] = [start] if count == 1 else [slice_steps(emit, start, k, k + 1) for k in range(count)]
    writers = net.writers()
    for t in range(steps):
        step = _step(builder, net, given, table, types, positions, t)
        for op in net.ops:
            step.add(op)
        written = {buffer: emit.val(step.read(link.inner)) for buffer, link in writers.items()}
        for buffer, x in written.items():
            positions[buffer].append(emit.reshape(x, (1, *positions[buffer][0].shape[1:])))
    results = {}
    for alias in net.aliases:
        rows = positions[alias.buffer][alias.offset :]
        history = rows[0] if len(rows) == 1 else emit.op("Concat", *rows, axis=0)
        results[alias.name] = builder.node(
            "Identity", [history.id], name=f"{net.name}/{alias.name}", outputs=[alias.name]
        )[0]
    return results


def _step(
    builder: Builder,
    net: RecurrentNet,
    given: Mapping[str, int],
    table: OpTable | None,
    types: Mapping[str, TensorType],
    positions: Mapping[str, list[Val]],
    t: int,
) -> StepBuilder:
    """The StepBuilder of step `t`, without ops."""
    emit = Emit(builder, f"{net.name}/{t}", Phase.FORWARD)
    links = {link.inner: link for link in net.readers()}
    writers = net.writers()

    def outside(name: str) -> int:
        if name in links:
            return window_of(links[name]).id
        if name == net.timestep:
            return emit.constant(np.array([t], np.int32)).id
        return given[name]

    def window_of(link: Link) -> Val:
        if link.outer not in positions:
            sequence = emit.val(given[link.outer])
            return slice_steps(emit, sequence, t + link.offset, t + link.offset + link.window)
        rows = positions[link.outer][t + link.offset : t + link.offset + link.window]
        if len(rows) < link.window:  # the last position was written by this step
            written = writers[link.outer].inner
            if written not in step.current:
                raise BadGraph.one(
                    "bad_link",
                    f"{net.name}.links",
                    f"{quoted(link.inner)} includes {quoted(written)}, but is read before it is written",
                    "ops in topological order",
                    f"write {quoted(written)} first",
                )
            new = emit.val(step.current[written])
            rows = [*rows, emit.reshape(new, (1, *positions[link.outer][0].shape[1:]))]
        return rows[0] if len(rows) == 1 else emit.op("Concat", *rows, axis=0)

    step = StepBuilder(builder, table, outside, again=net.recompute, prefix=f"{net.name}/{t}/", types=types)
    return step
