"""From a model to the graph that is planned: read it, and build its training step."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from graph.autodiff.gradients.events import GradientEvent
from graph.autodiff.objective import Objective
from graph.formats.onnx.standard_nodes import with_standard_nodes
from graph.formats.readers import check_max, import_warnings, importer_of, load
from graph.ir import Graph, Phase
from graph.limits import Limits, ShapeOverrides
from graph.recurrent import expand_rnns, recompute_named, recompute_preferred, split_over_time
from graph.training.chunk_interleaving import interleave_chunks
from graph.training.chunked_loss import with_chunked_loss
from graph.training.roles import role_notes, with_roles
from graph.training.step import check_fields, training_step
from graph.transforms.attention_fusion import with_fused_attention
from planner.errors import BadRequest
from planner.request.plan_request import Request
from planner.request.target_runtime import runtime_named

#: Readers of files that get no backward pass unless it is requested: the documents' own, and one of opaque ops only.
AS_THEY_STAND = frozenset({"native", "stablehlo"})


def load_model(
    model: bytes | Graph, request: Request, limits: Limits | None = None, nodes: Collection[str] = ()
) -> Graph:
    """Read the model with the request's shapes. `nodes` are names of nodes that readers must not fold to constants."""
    if isinstance(model, bytes):
        shapes = ShapeOverrides(
            request.inputs,
            request.batch,
            request.dims,
            frozenset(nodes),
            request.trainable,
            request.frozen,
            request.max,
        )
        model = load(model, limits, shapes)
    else:
        check_max(request.max, "graph in memory")
    return with_roles(model, request.trainable, request.frozen)


def training_graph(
    model: bytes | Graph,
    forward: Graph,
    request: Request,
    events: list[GradientEvent] | None = None,
    objectives: list[Objective] | None = None,
) -> tuple[Graph, list[str]]:
    """(graph to plan, notes): the graph unchanged, or its training step.

    `events`, if a list, receives one event for each gradient, and `objectives` the function that is differentiated.
    Raises BadGraph, BadRequest.
    """
    differentiate = request.differentiate
    if request.planner == "recurrent":
        forward = expand_rnns(forward)
    if differentiate is None:
        has_backward = any(node.phase is not Phase.FORWARD for node in forward.nodes)
        framework_file = isinstance(model, bytes) and importer_of(model) not in AS_THEY_STAND
        differentiate = request.loss is not None or (framework_file and not has_backward)
    if differentiate is False:
        for name, is_set in (
            ("recipe", request.recipe is not None),
            ("loss", request.loss is not None),
            ("loss_chunks", request.loss_chunks > 1),
        ):
            if is_set:
                raise BadRequest.one(
                    "not_differentiated",
                    name,
                    f"a {name} for a graph that is not differentiated",
                    "a forward graph to differentiate",
                    f"remove {name}, or set differentiate",
                )
        fused = with_fused_attention(forward) if request.fuse_attention else forward
        graph, notes = with_recurrent_recompute(fused, request)
        return graph, [*import_warnings(forward), *notes]
    decomposes = runtime_named(request.runtime).decomposes
    if decomposes:  # no kernels for gradients of recurrent ops
        forward = expand_rnns(forward)
    options = dict(differentiate) if isinstance(differentiate, Mapping) else {}
    check_fields(options)
    callbacks = [] if events is None else [events.append]

    def rewrite(graph: Graph) -> Graph:
        graph = with_fused_attention(graph) if request.fuse_attention else graph
        return with_chunked_loss(graph, request.loss_chunks)

    graph, notes = training_step(
        forward,
        loss=request.loss,
        recipe=request.recipe,
        callbacks=callbacks,
        rewrite=rewrite,
        on_objective=None if objectives is None else objectives.append,
        **options,
    )
    graph, cut = with_recurrent_recompute(interleave_chunks(graph), request)
    graph = with_standard_nodes(graph) if decomposes else graph
    return graph, [*import_warnings(forward), *role_notes(forward), *notes, *cut]


def with_recurrent_recompute(graph: Graph, request: Request) -> tuple[Graph, list[str]]:
    """(graph, notes): recurrent nets recompute the listed values; planner `recurrent` splits them along time."""
    if request.recompute:
        graph = recompute_named(graph, request.recompute)
    if request.planner != "recurrent":
        return graph, []
    parts = split_over_time(recompute_preferred(graph))
    scans, more = (sum(node.op == "Scan" for node in each.nodes) for each in (graph, parts))
    if more == scans:
        return parts, ["recurrent: no recurrent net can be split along time; the graph is planned unchanged"]
    return parts, ["recurrent: all figures, also of the baseline, are about nets split along time"]


def gradient_targets(request: Request) -> list[str] | None:
    """Names to differentiate with respect to; None: the parameters."""
    differentiate = request.differentiate
    names = differentiate.get("with_respect_to") if isinstance(differentiate, Mapping) else None
    return None if names is None else list(names)
