"""Differences between two models or two plans, by node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from app.errors import BadUsage
from graph.formats.readers import load
from graph.ir import ABSENT, Graph, Node

FIGURES = ("status", "budget_bytes", "counts", "peak_bytes", "arena_bytes", "seconds", "overhead")
TIME_TOLERANCE = 1e-9  # relative; seconds are sums of floats


def find_differences(a: Graph | dict[str, Any], b: Graph | dict[str, Any]) -> list[dict[str, Any]]:
    """Differences of two models or two reports; of reports with different models also those of their sources."""
    if isinstance(a, dict) and isinstance(b, dict):
        rows = compare_reports(a, b)
        if a["model"]["hash"] != b["model"]["hash"] and "source" in a and "source" in b:
            rows += compare_graphs(_source(a), _source(b))
        return rows
    return compare_graphs(_source(a), _source(b))


def _source(side: Graph | Mapping[str, Any]) -> Graph:
    if isinstance(side, Graph):
        return side
    if "source" not in side:
        raise BadUsage("a plan without its source graph cannot be compared with a model; write it with `remat plan -o`")
    return load(msgspec.json.encode(side["source"]))


def compare_graphs(a: Graph, b: Graph) -> list[dict[str, Any]]:
    """Differences by name: nodes and values added, removed or changed; largest change of bytes first."""
    rows = [*_outputs(a, b), *_values(a, b), *_nodes(a, b)]
    return sorted(rows, key=lambda row: -abs(row.get("bytes", 0)))


def _outputs(a: Graph, b: Graph) -> Iterator[dict[str, Any]]:
    before, after = ([graph.values[v].name for v in graph.outputs] for graph in (a, b))
    if before != after:
        yield _row("outputs", "graph", before, after)


def _values(a: Graph, b: Graph) -> Iterator[dict[str, Any]]:
    before, after = ({value.name: value for value in graph.values} for graph in (a, b))
    producers = {**_producers(a), **_producers(b)}
    for name in (*before, *(name for name in after if name not in before)):
        x, y = before.get(name), after.get(name)
        texts = tuple(None if v is None else f"{v.type or 'bytes'} {v.role}, {v.nbytes:,} bytes" for v in (x, y))
        if texts[0] != texts[1]:
            grown = (y.nbytes if y else 0) - (x.nbytes if x else 0)
            yield {**_row("value", name, *texts), "node": producers.get(name), "bytes": grown}


def _producers(graph: Graph) -> dict[str, str]:
    return {graph.values[v].name: node.name for node in graph.nodes for v in node.writes}


def _nodes(a: Graph, b: Graph) -> Iterator[dict[str, Any]]:
    before, after = ({node.name: _description(graph, node) for node in graph.nodes} for graph in (a, b))
    for name in (*before, *(name for name in after if name not in before)):
        x, y = before.get(name), after.get(name)
        if x is None or y is None:
            yield {**_row("node", name, x and x["op"], y and y["op"]), "node": name}
            continue
        for field in x:
            if x[field] != y[field]:
                yield {**_row(f"node {field}", name, x[field], y[field]), "node": name}
    common = [node.name for node in a.nodes if node.name in after]
    if common != (others := [node.name for node in b.nodes if node.name in before]):
        moved = next(place for place, pair in enumerate(zip(common, others, strict=True)) if pair[0] != pair[1])
        yield {**_row("node order", common[moved], common[moved], others[moved]), "node": common[moved]}


def _description(graph: Graph, node: Node) -> dict[str, Any]:
    def names(ids: tuple[int, ...]) -> list[str]:
        return ["" if v == ABSENT else graph.values[v].name for v in ids]

    return {
        "op": node.op,
        "inputs": names(node.inputs),
        "outputs": names(node.outputs),
        "attributes": {name: repr(value) for name, value in sorted(node.attributes.items())},
        "phase": node.phase.name.lower(),
        "cost": repr(node.cost),
        "effect": node.effect,
        "recompute": node.recompute,
        "bodies": {name: repr(body) for name, body in sorted(node.bodies.items())},
    }


def compare_reports(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Differences of two plans: model, figures, runs per node, first step at which the orders differ."""
    rows = [
        _row(f"model {field}", "model", a["model"][field], b["model"][field])
        for field in ("hash", "nodes", "values")
        if a["model"][field] != b["model"][field]
    ]
    rows += [
        _row(field, "report", a[field], b[field]) for field in ("runtime", "device", "fits") if a[field] != b[field]
    ]
    rows += _figures("baseline ", a["baseline"], b["baseline"], ("peak_bytes", "seconds"))
    rows += _figures("", a["plan"], b["plan"], FIGURES)
    return rows + list(_runs(a, b))


def _figures(prefix: str, a: Mapping[str, Any], b: Mapping[str, Any], fields: tuple[str, ...]) -> list[dict[str, Any]]:
    rows = []
    for field in fields:
        x: Any = a.get(field)
        y: Any = b.get(field)
        if isinstance(x, float) and isinstance(y, float) and abs(x - y) <= TIME_TOLERANCE * max(abs(x), abs(y)):
            continue
        if x != y:
            counted = field.endswith("_bytes") and isinstance(x, int) and isinstance(y, int)
            grown = {"bytes": y - x} if counted else {}
            rows.append({**_row(prefix + field, "plan", x, y), **grown})
    return rows


def _runs(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    before, after = a["plan"]["order"], b["plan"]["order"]
    counts = tuple(Counter(name for name, _ in order) for order in (before, after))
    for name in dict.fromkeys((*counts[0], *counts[1])):
        if counts[0][name] != counts[1][name]:
            yield {**_row("runs", name, counts[0][name], counts[1][name]), "node": name}
    for step, (x, y) in enumerate(zip(before, after, strict=False)):
        if list(x) != list(y):
            yield {**_row(f"order, from step {step} on", x[0], x, y), "node": x[0]}
            return


def _row(what: str, where: str, a: object, b: object) -> dict[str, Any]:
    return {"what": what, "where": where, "a": a, "b": b}
