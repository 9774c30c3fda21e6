"""Recurrent nets with Caffe2's restrictions and execution order.

One sequence per net; recomputed ops run before the whole backward step, whether or not their results are read.
Source: caffe2/python/recurrent.py, `recurrent_net`; caffe2/operators/rnn/recurrent_network_op.h.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from graph.analysis.aliasing import is_view
from graph.builder.builder import Builder
from graph.builder.emit import Emit
from graph.errors import BadGraph, Findings, quoted
from graph.ir import Graph, Phase
from graph.loop_remat import SavePolicy, joint_graphs, with_save_policies
from graph.recurrent import RecurrentNet, RecurrentState, StepOp, cell_net
from graph.recurrent.recompute import find_scan_pair, recomputed_values


def recurrent_net(
    name: str,
    ops: Sequence[StepOp],
    sequences: Mapping[str, str],
    states: Sequence[RecurrentState],
    outputs: Sequence[str] = (),
    *,
    timestep: str | None = None,
    recompute: Sequence[str] = (),
    prefix: str | None = None,
) -> RecurrentNet:
    """Net of one `recurrent_net` call. Raises BadGraph unless there is exactly one sequence.

    With a `prefix`, the names of all outer values that the step reads must start with it.
    """
    if len(sequences) != 1:
        raise BadGraph.one(
            "sequence_count",
            f"{name}.sequences",
            f"{len(sequences)} sequences: {', '.join(map(quoted, sequences))}",
            "one sequence",
            "concatenate them, or make the net with `graph.recurrent.cell_net`, which takes several",
        )
    net = cell_net(name, ops, sequences, states, outputs, timestep=timestep, recompute=recompute)
    findings = Findings()
    for reference in net.read_before_write():
        if prefix is not None and not reference.startswith(prefix):
            findings.add(
                "name_outside_scope",
                f"{name}.inputs",
                quoted(reference),
                f"a name that starts with {quoted(prefix)}",
                "name it inside the scope, or leave the prefix out",
            )
    findings.settle()
    return net


def gradient_outputs(net: RecurrentNet, outputs: Sequence[str], positions: Sequence[int] = (0,)) -> list[str]:
    """Outputs of the op with outer gradients: histories at every step, last values at the last step.

    Raises BadGraph without positions, and for a position out of range.
    """
    wrong = [position for position in positions if not 0 <= position < len(outputs)]
    if not positions or wrong:
        raise BadGraph.one(
            "no_gradient_outputs",
            f"{net.name}.outputs_with_grads",
            f"position {wrong[0]}" if wrong else "no position",
            f"positions from 0 to {len(outputs) - 1}",
            "list the outputs whose gradients come from outside",
        )
    return [outputs[position] for position in positions]


def recompute_before_step(graph: Graph, node: str, names: Collection[str]) -> Graph:
    """As `graph.recurrent.recomputed`, with all ops that write a listed name before the backward step.

    They run in the order of the step, even if their results are not read.
    """
    pair = find_scan_pair(graph, node)
    (joint,) = joint_graphs(graph, pair)
    recomputed = recomputed_values(joint, node, names)
    nodes = joint.graph.nodes
    before = {n for n in range(joint.split) if recomputed.intersection(nodes[n].writes)}
    before |= {n for n in range(joint.split) if is_view(joint.graph, nodes[n])}
    return with_save_policies(graph, {pair: SavePolicy(((*sorted(before), *range(joint.split, len(nodes))),))})


def step_blobs(builder: Builder, stack: int, name: str, prefix: str) -> list[int]:
    """One value per row of a stack over time, named `PREFIX_NAMEt` like blobs fetched by Caffe2."""
    emit = Emit(builder, f"{prefix}_{name}", Phase.FORWARD)
    steps = emit.val(stack).shape[0]
    rows = (
        [stack]
        if steps == 1
        else [x.id for x in emit.op("Split", emit.val(stack), outputs=steps, num_outputs=steps, axis=0)]
    )
    return [
        builder.node("Identity", [row], name=f"fetch/{prefix}_{name}{t}", outputs=[f"{prefix}_{name}{t}"])[0]
        for t, row in enumerate(rows)
    ]
