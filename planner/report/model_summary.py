"""Summary of a model without planning it (`remat info`)."""

from __future__ import annotations

from collections import Counter
from typing import Any

from graph.errors import BadGraph
from graph.formats.native.identity import model_identity
from graph.ir import Graph, Node, Phase, Value
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
    binding, values = binding_node(formulation), {value.name: value for value in source.values}
    writers = {source.values[v].name: node for node in source.nodes for v in node.writes}
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
        "holders": [
            row | _described(values.get(row["value"]), writers.get(row["value"]))
            for row in peak_holders(formulation.lowered, formulation.baseline)
        ],
        "smallest_possible_bytes": formulation.count.counted(formulation.bound.peak_bytes),
        "binding_node": binding,
        "binding": _described_node(source, binding),
        "warnings": [*notes, *formulation.warnings],
    }


def _described(value: Value | None, node: Node | None) -> dict[str, str | None]:
    """Dtype and shape of a value, and op and module of the node that writes it."""
    module = None if node is None else node.annotations.get("module")
    return {
        "type": str(value.type) if value is not None and value.type is not None else None,
        "op": None if node is None else node.op,
        "module": None if module is None else str(module),
    }


def _described_node(graph: Graph, name: str | None) -> dict[str, str | None] | None:
    """The first output of a node, described."""
    node = next((node for node in graph.nodes if node.name == name), None)
    return None if node is None else _described(next((graph.values[v] for v in node.writes), None), node)
