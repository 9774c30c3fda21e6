"""Summary of a model without planning it (`remat info`)."""

from __future__ import annotations

from collections import Counter
from typing import Any

from graph.errors import BadGraph
from graph.formats.native.identity import model_identity
from graph.ir import Graph, Phase
from graph.limits import Limits
from planner.formulation.formulate import formulate
from planner.formulation.metrics import peak_holders
from planner.formulation.training_graph import load_model, training_graph
from planner.report.report import binding_node, plan_metrics
from planner.request.plan_request import Request


def info(model: bytes | Graph, request: Request, limits: Limits | None = None) -> dict[str, Any]:
    """Nodes, ops, bytes by role, baseline peak and its largest values. Raises BadGraph, BadRequest.

    A model without a loss, and without an output to which one is added, is summarized as it stands.
    """
    forward = load_model(model, request, limits)
    try:
        source, notes = training_graph(model, forward, request)
    except BadGraph as error:
        if error.findings[0].code != "no_loss":
            raise
        source, notes = forward, [f"the forward pass alone, since there is no loss: {error.findings[0]}"]
    formulation = formulate(source, request)
    by_role: dict[str, int] = {}
    for v, value in enumerate(source.values):
        if formulation.lowered.roots[v] == v:
            by_role[value.role] = by_role.get(value.role, 0) + value.nbytes
    phases = {phase.name.lower(): sum(node.phase is phase for node in source.nodes) for phase in Phase}
    return {
        "model": model_identity(source),
        "forward_nodes": len(forward.nodes),
        "nodes_by_phase": phases,
        "ops": dict(Counter(node.op for node in source.nodes).most_common()),
        "bytes_by_role": by_role,
        "inputs": {source.values[v].name: str(source.values[v].type) for v in source.inputs},
        "outputs": [source.values[v].name for v in source.outputs],
        "baseline": plan_metrics(formulation, formulation.baseline),
        "holders": peak_holders(formulation.lowered, formulation.baseline),
        "smallest_possible_bytes": formulation.count.counted(formulation.bound.peak_bytes),
        "binding_node": binding_node(formulation),
        "warnings": [*notes, *formulation.warnings],
    }
