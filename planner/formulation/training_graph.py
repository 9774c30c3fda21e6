"""From a model's bytes to the graph that is planned."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from graph.autodiff.gradients.events import GradientEvent
from graph.formats.native.writer import content_hash
from graph.formats.readers import importer_of, load
from graph.ir import Graph, Phase
from graph.limits import Limits, ShapeOverrides
from graph.recurrent import expand_rnns, recompute_named, recompute_preferred, split_over_time
from graph.training.chunk_interleaving import interleave_chunks
from graph.training.chunked_loss import with_chunked_loss
from graph.training.step import check_fields, training_step
from graph.transforms.attention_fusion import with_fused_attention
from planner.errors import BadRequest
from planner.request.plan_request import Request


def load_model(
    model: bytes | Graph, request: Request, limits: Limits | None = None, nodes: Collection[str] = ()
) -> Graph:
    """The model under the request's shapes; `nodes` are those that no reader replaces by their results."""
    if isinstance(model, Graph):
        return model
    return load(model, limits, ShapeOverrides(request.inputs, request.batch, request.dims, frozenset(nodes)))


def training_graph(
    model: bytes | Graph, forward: Graph, request: Request, events: list[GradientEvent] | None = None
) -> tuple[Graph, list[str]]:
    """What is planned, the graph as it stands or its training step, and what was done to get there.

    `events` is filled with how its gradients were made.
    """
    wanted = request.differentiate
    if request.planner == "recurrent":
        forward = expand_rnns(forward)
    if wanted is None:
        has_backward = any(node.phase is not Phase.FORWARD for node in forward.nodes)
        framework_file = isinstance(model, bytes) and importer_of(model) != "native"
        wanted = request.loss is not None or (framework_file and not has_backward)
    if wanted is False:
        for name, asked in (
            ("recipe", request.recipe is not None),
            ("loss", request.loss is not None),
            ("loss_chunks", request.loss_chunks > 1),
        ):
            if asked:
                raise BadRequest.one(
                    "not_differentiated",
                    name,
                    f"a {name} for a graph that is not differentiated",
                    "a forward graph to differentiate",
                    f"leave the {name} out, or ask for differentiation",
                )
        return with_recurrent_recompute(with_fused_attention(forward) if request.fuse_attention else forward, request)
    options = dict(wanted) if isinstance(wanted, Mapping) else {}
    check_fields(options)
    callbacks = [] if events is None else [events.append]

    def rewrite(graph: Graph) -> Graph:
        graph = with_fused_attention(graph) if request.fuse_attention else graph
        return with_chunked_loss(graph, request.loss_chunks)

    graph, notes = training_step(
        forward, loss=request.loss, recipe=request.recipe, callbacks=callbacks, rewrite=rewrite, **options
    )
    graph, cut = with_recurrent_recompute(interleave_chunks(graph), request)
    return graph, [*notes, *cut]


def with_recurrent_recompute(graph: Graph, request: Request) -> tuple[Graph, list[str]]:
    """The graph with recurrent nets making again what the request lists, and for `recurrent` cut into parts."""
    if request.recompute:
        graph = recompute_named(graph, request.recompute)
    if request.planner != "recurrent":
        return graph, []
    parts = split_over_time(recompute_preferred(graph))
    scans, more = (sum(node.op == "Scan" for node in each.nodes) for each in (graph, parts))
    if more == scans:
        return parts, ["recurrent: no net over time can be cut into parts, so the graph is planned as it is"]
    return parts, ["recurrent: figures, the baseline's too, are those of nets cut into parts along time"]


def gradient_targets(request: Request) -> list[str] | None:
    """What the request differentiates by; None: parameters."""
    wanted = request.differentiate
    names = wanted.get("with_respect_to") if isinstance(wanted, Mapping) else None
    return None if names is None else list(names)


def model_identity(graph: Graph) -> dict[str, Any]:
    """What a report says of the graph that was planned."""
    return {"name": graph.name, "hash": content_hash(graph), "nodes": len(graph.nodes), "values": len(graph.values)}
