"""Graphs and plans as the store keeps them.

graphs/ID    -> blob of the canonical document
plans/ID     -> blob of the figures, one blob a section
answers/KEY  -> plan that answers the question
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from app.catalogue import versions
from app.errors import Gone, NotFound
from app.store.port import Store

DEFAULT_SECTIONS = ("plan", "timeline")


def now() -> str:
    """The time as records say it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def keep_graph(store: Store, read: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a graph that a child has read; the same graph has one record."""
    record = {name: read[name] for name in ("id", "name", "nodes", "values", "format", "forward_only")}
    store.create("graphs", read["id"], record | {"blob": store.put(read["document"]), "created_at": now()})
    return store.record("graphs", read["id"])


def question_key(graph_id: str, fields: Mapping[str, Any]) -> str:
    """Names the question: the same graph, request and versions have the same answer."""
    asked = {name: given for name, given in fields.items() if name != "return"}
    text = msgspec.json.encode([graph_id, asked, versions()], order="deterministic")
    return hashlib.sha256(text).hexdigest()


def solve_payload(store: Store, graph_id: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """What a child is told of a question about a stored graph. Raises NotFound."""
    graph, asked = store.record("graphs", graph_id), dict(fields)
    if graph["format"] != "native" and graph["forward_only"] and "loss" not in asked:
        asked.setdefault("differentiate", True)  # as the file would be; the stored document is native
    return {"data": store.get(graph["blob"]), "fields": asked}


def keep_plan(store: Store, solved: Mapping[str, Any], graph_id: str) -> str:
    """Id of the plan: of its content, times of the clock left out."""
    figures = msgspec.json.decode(solved["report"])
    timeless = {name: said for name, said in figures.items() if name not in ("id", "elapsed")}
    text = msgspec.json.encode([graph_id, timeless], order="deterministic")
    plan_id = hashlib.sha256(text).hexdigest()
    record = {
        "id": plan_id,
        "graph_id": graph_id,
        "figures": store.put(msgspec.json.encode(figures | {"id": plan_id})),
        "sections": {name: store.put(data) for name, data in solved["sections"].items()},
        "created_at": now(),
    }
    store.create("plans", plan_id, record)
    return plan_id


def answer_of(store: Store, key: str) -> str | None:
    """Id of the plan that answers the question, once there is one."""
    try:
        return str(store.record("answers", key)["plan"])
    except NotFound:
        return None


def report_of(store: Store, plan_id: str, sections: Iterable[str] = DEFAULT_SECTIONS) -> bytes:
    """The report with those sections that the plan was made with. Raises NotFound."""
    record = store.record("plans", plan_id)
    report = msgspec.json.decode(store.get(record["figures"]), type=dict[str, msgspec.Raw])
    for name in sections:
        if name in record["sections"]:
            report[name] = msgspec.Raw(store.get(record["sections"][name]))
    return msgspec.json.encode(report)


def section_of(store: Store, plan_id: str, section: str) -> bytes:
    """One section as JSON. Raises NotFound, and Gone for a section the plan was made without."""
    record = store.record("plans", plan_id)
    if section not in record["sections"]:
        raise Gone(f"plan {plan_id} has no {section}; ask again with a layout that is not none")
    return store.get(record["sections"][section])
