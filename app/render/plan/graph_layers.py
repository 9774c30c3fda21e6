"""Data of a plan's graph view: nodes in layers, their reads, and the cost and benefit of each recomputation.

A layer is a common prefix of names (`layer1/conv1` and `grad/layer1/conv1` belong to `layer1`); for names without parts
it is a block that the planner detects: a segment of the forward pass with its part of the backward pass.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from app.render.plan.columns import ReportSummary, TimelineColumns, encode_columns
from graph.analysis.cost import resolve_device
from graph.formats.readers import load
from graph.ir import Graph, Phase
from planner.algorithms.blocks.detection import blocks_of
from planner.errors import PlannerError
from planner.lowering.lower import lower
from planner.lowering.lowered_graph import ACTIVATIONS, LoweredGraph
from planner.lowering.realize import node_sequence
from planner.problem import RESIDENT, liveness
from planner.problem.plan import Plan, Score
from planner.request.target_runtime import runtime_named

MAX_LAYERS = 400  # layers derived from names
MAX_DEPTH = 6  # parts of a name used as prefix
PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE)
REST = "the rest"


def graph_columns(figures: bytes, sections: Mapping[str, bytes]) -> bytes:
    """Nodes in layers, and the values live at each step of the baseline. O(n log n + reads).

    Columns per node: `layer`, `phase`, `seconds` per run, `written` bytes, `runs`, `output` (the first value it writes;
    -1: none), and for recomputed nodes `freed` bytes, `byte_steps`, `extra` seconds and `peak_if_kept` (NaN: unknown);
    `read_pointer` and `read_node` (-1: graph input) as CSR. Per value: `layer_of`, `type_of` (index in the list
    `types`), `category` (parameters, gradients, optimizer, activations). Of the baseline: `held_value`, `held_bytes`,
    `held_first`, `held_last`, its lifetimes, and `before_node`, `before_workspace` per step; absent if they cannot be
    derived.
    """
    summary = msgspec.json.decode(figures, type=ReportSummary)
    explained = msgspec.json.decode(sections.get("explain", b"{}"), type=dict[str, Any])
    graph = load(sections["source"])
    lowered = lower(graph, resolve_device(summary.device), runtime_named(summary.runtime))
    names, layer = layers_of(graph, lowered, summary.request.get("phases") != "mixed")
    maker, pointer, read = _reads(graph)
    type_of, types = _types(graph)
    node_id = {node.name: n for n, node in enumerate(graph.nodes)}
    runs = np.zeros(len(graph.nodes), np.int32)
    np.add.at(runs, [node_id[name] for name, _ in summary.plan.order if name in node_id], 1)
    columns = {
        "layer": layer,
        "phase": np.asarray([PHASES.index(node.phase) for node in graph.nodes], np.uint8),
        "runs": runs,
        "read_pointer": pointer,
        "read_node": read,
        "layer_of": np.append(layer, -1)[maker].astype(np.int32),
        "output": np.asarray([node.writes[0] if node.writes else -1 for node in graph.nodes], np.int32),
        "type_of": type_of,
        "category": np.append(lowered.category, ACTIVATIONS)[lowered.value_buffer].astype(np.uint8),
        **_cost_columns(graph, lowered),
        **_recompute_columns(explained.get("recomputed", ()), node_id),
        **_baseline_lifetimes(lowered, summary, sections["timeline"]),
    }
    return encode_columns({}, columns, {"layers": names, "types": types})


def layers_of(graph: Graph, lowered: LoweredGraph, strict: bool) -> tuple[list[str], np.ndarray]:
    """Names of the layers and int32[nodes] layer of each node, by names, else by the planner's blocks."""
    return layers_by_name([node.name for node in graph.nodes]) or layers_by_block(lowered, strict)


def layers_by_name(names: Sequence[str]) -> tuple[list[str], np.ndarray] | None:
    """Layers by the longest name prefix with at most `MAX_LAYERS`; None if fewer than half of the names have parts."""
    paths = [path_of(name) for name in names]
    if not names or 2 * sum(map(bool, paths)) < len(names):
        return None
    chosen: list[tuple[str, ...]] = []
    for depth in range(1, MAX_DEPTH + 1):
        cut = [path[:depth] for path in paths]
        if not 1 < len(set(cut)) <= MAX_LAYERS:
            continue
        if chosen == cut:
            break
        chosen = cut
    if not chosen:
        return None
    number: dict[tuple[str, ...], int] = {}
    layer = np.asarray([number.setdefault(path, len(number)) for path in chosen], np.int32)
    return ["/".join(path) or REST for path in number], layer


def path_of(name: str) -> tuple[str, ...]:
    """Prefix of a node's name that identifies its layer; `grad/x` belongs to the layer of `x`."""
    parts = [part for part in re.split(r"[/.:]+", name) if part]
    while parts and parts[0] == "grad":
        del parts[0]
    while len(parts) > 1 and parts[-1].isdecimal():
        del parts[-1]
    return tuple(parts[:-1])


def layers_by_block(lowered: LoweredGraph, strict: bool) -> tuple[list[str], np.ndarray]:
    """Layers by the planner's blocks, remaining nodes last. A view belongs to the layer of the node before it."""
    blocks = blocks_of(lowered.problem, strict)
    task_layer = np.full(lowered.problem.tasks, len(blocks), np.int32)
    for block in range(len(blocks)):
        task_layer[blocks.base.order[blocks.steps(block)]] = block
    layer, last = np.zeros(len(lowered.graph.nodes), np.int32), 0
    for node, task in enumerate(lowered.node_task):
        last = int(task_layer[task]) if task >= 0 else last
        layer[node] = last
    same_kind = np.bincount(blocks.kind, minlength=1)
    names = [
        f"block {block}" + (f", one of {same_kind[kind]} equal blocks" if same_kind[kind] > 1 else "")
        for block, kind in enumerate(blocks.kind.tolist())
    ]
    return [*names, REST], layer


def _reads(graph: Graph) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """int32[values] first producer of each value (-1: none), and per node, as CSR, the producers of its inputs."""
    maker = np.full(len(graph.values), -1, np.int32)
    for n, node in enumerate(graph.nodes):
        for v in node.writes:
            if maker[v] < 0:
                maker[v] = n
    rows = [list(dict.fromkeys(int(maker[v]) for v in node.reads)) for node in graph.nodes]
    pointer = np.cumsum([0, *map(len, rows)]).astype(np.int32)
    return maker, pointer, np.asarray(list(itertools.chain.from_iterable(rows)), np.int32)


def _types(graph: Graph) -> tuple[np.ndarray, list[str]]:
    """Type of each value as an index in a list of texts such as `float32[16,64]`."""
    number: dict[str, int] = {}
    rows = [number.setdefault(str(value.type or ""), len(number)) for value in graph.values]
    return np.asarray(rows, np.int32), list(number)


def _cost_columns(graph: Graph, lowered: LoweredGraph) -> dict[str, np.ndarray]:
    """Seconds of one run of each node, and bytes it writes."""
    problem = lowered.problem
    task = np.asarray(lowered.node_task, np.int64)
    written = np.zeros(problem.tasks + 1, np.int64)
    np.add.at(written, problem.writes.row_of_entry(), problem.size[problem.writes.index])
    seconds = np.append(problem.cost * problem.tick, 0.0)
    return {"seconds": seconds[task], "written": written[task]}  # views have task -1: the appended zero


def _recompute_columns(rows: Sequence[Mapping[str, Any]], node_id: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Bytes freed and time added by the recomputations of each node, as in `remat explain`."""
    figure = {name: np.full(len(node_id), np.nan) for name in ("freed", "byte_steps", "extra", "peak_if_kept")}
    for row in rows:
        if (n := node_id.get(row["node"])) is None:
            continue
        figure["freed"][n], figure["byte_steps"][n] = row["freed_bytes"], row["byte_steps"]
        figure["extra"][n] = row["seconds"]
        if row["if_kept"] is not None:
            figure["peak_if_kept"][n] = row["if_kept"]["peak_bytes"]
    return figure


def _baseline_lifetimes(lowered: LoweredGraph, summary: ReportSummary, timeline: bytes) -> dict[str, np.ndarray]:
    """Lifetimes of values in the document's order, in indices of the baseline's timeline.

    Empty if the resulting bytes per step differ from the report's, as with separately planned bodies.
    """
    problem = lowered.problem
    order = np.arange(problem.tasks)
    try:
        lifetimes = liveness.lifetimes(problem, order)
        profile = liveness.profile(problem, order, lifetimes)
    except PlannerError:
        return {}
    runs = node_sequence(lowered, Plan(order, lifetimes, profile, Score(0, 0, 0), "as_given", 0))
    reported = np.asarray(msgspec.json.decode(timeline, type=TimelineColumns).baseline_step_bytes, np.int64)
    if len(reported) != len(runs.step_bytes) or not len(reported) or np.ptp(reported - runs.step_bytes):
        return {}
    shown = lifetimes.stop > lifetimes.start
    if summary.plan.counts == "activations":
        shown &= problem.hold[lifetimes.buffer] != RESIDENT
    value = np.asarray(lowered.buffer_value, np.int64)[lifetimes.buffer]
    held = np.flatnonzero(shown & (value >= 0))
    end = np.append(runs.position[1:], len(runs.nodes)) - 1
    workspace = np.zeros(len(runs.nodes), np.int64)
    workspace[runs.position] = problem.workspace
    first = np.where(lifetimes.start[held] > 0, runs.position[np.minimum(lifetimes.start[held], len(order) - 1)], 0)
    by = np.argsort(first, kind="stable")
    held, first = held[by], first[by]
    return {
        "held_value": value[held].astype(np.int32),
        "held_bytes": problem.size[lifetimes.buffer[held]],
        "held_first": first.astype(np.int32),
        "held_last": end[lifetimes.stop[held] - 1].astype(np.int32),
        "before_node": np.asarray(runs.nodes, np.int32),
        "before_workspace": workspace,
    }
