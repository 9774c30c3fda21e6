"""What the page of a plan reads from the store: the report without its long lists, and plans of the same graph."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from app.api.auth.tenant_view import plan_scope
from app.api.service.service import Service
from app.pages.shell.format_values import MAX_STORED_INPUTS, format_shape
from app.render import axes
from app.render.plan import preview
from app.store.blobs import Blobs
from app.store.savings import made_by
from app.store.store import Store
from app.store.tables import plans, sections

#: Lists of a plan that grow with the graph; the page shows them as charts.
LONG_FIELDS = ("order", "kept", "recomputed", "choices")
MAX_RECOMPUTED_ROWS, MAX_PLANS = 30, 200
MAX_KNOWN_INPUTS = 4096  # documents


def summary_of(store: Store, plan_id: str) -> dict[str, Any]:
    """The report without `LONG_FIELDS`; `plan.recomputed_count` is the number of recomputed nodes. Raises NotFound."""
    row = store.row(plans, plan_id)
    raw = msgspec.json.decode(store.blobs.get(row["figures"]), type=dict[str, msgspec.Raw])
    plan = msgspec.json.decode(raw.pop("plan"), type=dict[str, msgspec.Raw])
    recomputed_count = len(msgspec.json.decode(plan["recomputed"], type=list[msgspec.Raw]))
    figures = {name: msgspec.json.decode(value) for name, value in plan.items() if name not in LONG_FIELDS}
    report = {name: msgspec.json.decode(value) for name, value in raw.items()}
    return report | {"plan": figures | {"recomputed_count": recomputed_count}, "row": row}


def read_plan(service: Service, plan_id: str) -> tuple[dict[str, Any], dict[str, str], list[dict[str, Any]]]:
    """`summary_of` with explanations and preview, stored sections, and the caller's comparable plans of the graph.

    Raises NotFound.
    """
    store, tenant = service.store, plan_scope(service)
    report = summary_of(store, plan_id)
    row, stored = report["row"], sections_of(store, plan_id)
    report["explain"] = _explain(store, stored)
    report[preview.SECTION] = (
        preview.inline_preview(store.blobs.get(stored[preview.SECTION])) if preview.SECTION in stored else ""
    )
    same = [plans.c[name] == row[name] for name in ("graph_id", "runtime", "device", "counts", "baseline_peak_bytes")]
    if tenant is not None:  # other tenants may have planned the same graph
        same.append(made_by(tenant, plans.c.id))
    query = sa.select(plans).where(*same).order_by(plans.c.seen_at.desc()).limit(MAX_PLANS)
    with store.reading() as connection:
        comparable = [dict(plan) for plan in connection.execute(query).mappings()]
    if all(plan["id"] != plan_id for plan in comparable):
        comparable.append(row)
    shapes = shapes_of_plans(store, [plan["id"] for plan in comparable])
    comparable = [plan | {"shape": shapes[plan["id"]]} for plan in comparable]
    return report, stored, sorted(comparable, key=lambda plan: (axes.budget_of(plan), plan["overhead"] or 0.0))


def sections_of(store: Store, plan_id: str) -> dict[str, str]:
    """Section name -> blob id, of an existing plan."""
    query = sa.select(sections.c.name, sections.c.blob).where(sections.c.plan_id == plan_id)
    with store.reading() as connection:
        return {row.name: row.blob for row in connection.execute(query)}


def _explain(store: Store, stored: Mapping[str, str]) -> dict[str, Any]:
    """Section `explain` with at most `MAX_RECOMPUTED_ROWS`; empty if the plan was stored without it."""
    if "explain" not in stored:
        return {"recomputed": [], "binding": None, "holders": [], "baseline_holders": []}
    raw = msgspec.json.decode(store.blobs.get(stored["explain"]), type=dict[str, msgspec.Raw])
    rows = msgspec.json.decode(raw.pop("recomputed"), type=list[msgspec.Raw])
    explain = {name: msgspec.json.decode(value) for name, value in raw.items()}
    return explain | {"recomputed": [msgspec.json.decode(row) for row in rows[:MAX_RECOMPUTED_ROWS]]}


class _SourceInput(msgspec.Struct, gc=False):
    """Fields of a document's value that name a model's input."""

    name: str
    shape: list[int | str] | None = None
    dtype: str = ""
    role: str = "activation"


class _SourceInputs(msgspec.Struct, gc=False):
    """The values of a graph document."""

    values: list[_SourceInput] = []


def shapes_of_plans(store: Store, plan_ids: Sequence[str]) -> dict[str, str]:
    """Plan id -> batch and inputs of its graph, as `batch 16, float32[16,3,224,224]`; empty if not known."""
    query = sa.select(plans.c.id, plans.c.batch, plans.c.inputs).where(plans.c.id.in_(plan_ids))
    with store.reading() as connection:
        rows = [dict(row) for row in connection.execute(query).mappings()]
    unknown = [row["id"] for row in rows if row["inputs"] is None]
    read = _inputs_of_sources(store, unknown) if unknown else {}
    return {row["id"]: format_shape(row | {"inputs": row["inputs"] or read.get(row["id"])}) for row in rows}


def _inputs_of_sources(store: Store, plan_ids: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Plan id -> inputs in its source, of plans that were stored before their inputs were columns."""
    query = sa.select(sections.c.plan_id, sections.c.blob).where(
        sections.c.name == "source", sections.c.plan_id.in_(plan_ids)
    )
    with store.reading() as connection:
        blobs = {row.plan_id: row.blob for row in connection.execute(query)}
    return {plan_id: _inputs(store.blobs, blob) for plan_id, blob in blobs.items()}


@functools.lru_cache(MAX_KNOWN_INPUTS)
def _inputs(blobs: Blobs, key: str) -> list[dict[str, Any]]:
    """The first inputs of a stored graph document, whose key is a hash of its content."""
    values = msgspec.json.decode(blobs.get(key), type=_SourceInputs).values
    inputs = [{"dtype": value.dtype, "shape": value.shape} for value in values if value.role == "input"]
    return inputs[:MAX_STORED_INPUTS]
