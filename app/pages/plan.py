"""`/plans/{id}`: charts of a plan, their data, and downloads."""

from __future__ import annotations

import gzip
import importlib.util
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import anyio.to_thread
import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Path, Query, Request, Response

from app.api.auth.tenant_view import plan_scope, tenant_of
from app.api.routes.dependencies import ServiceDep, immutable_response
from app.api.service.service import Service
from app.api.wire.negotiation import accepted_coding
from app.errors import BadUsage, Gone, NotFound
from app.models.formats import FORMATS
from app.pages import assets, fit_query, frame
from app.pages.frame import PageRoute
from app.render import axes, csv_table, text
from app.render import svg as plots
from app.render.plan import preview
from app.render.plan import svg as drawn
from app.render.plan.columns import ReportSummary, TimelineColumns
from app.store import records
from app.store.measurements import measurements_of
from app.store.savings import made_by
from app.store.store import Store
from app.store.tables import plans, sections
from planner.request.curve_and_fit_request import NOT_IN_CURVE
from planner.request.target_runtime import RUNTIMES

router = APIRouter(include_in_schema=False, route_class=PageRoute)

#: Lists of a plan that grow with the graph; the page shows them as charts.
LONG_FIELDS = ("order", "kept", "recomputed", "choices")
MAX_RECOMPUTED_ROWS, MAX_PLANS = 30, 200
CURVE_BUDGETS = ("90%", "80%", "70%", "60%", "50%", "40%", "30%", "20%")
CURVE_SECONDS = 20  # time limit of a curve requested on a plan's page
TRACE = ("trace", "json")
CHARTS = ("timeline", "map", "graph", "curve")
BINARY = "application/octet-stream"
MEDIA_TYPES = {"json": "application/json", "csv": "text/csv; charset=utf-8", "svg": "image/svg+xml", "png": "image/png"}
Embed = Annotated[bool, Query(description="without navigation, for framing by other pages")]
Version = Annotated[str, Query(alias="v", description="hash of the scripts; a new version is fetched again")]
PlanId = Annotated[str, Path()]


@router.get("/plans/{plan_id}")
async def plan_page(request: Request, service: ServiceDep, plan_id: PlanId, embed: Embed = False) -> Response:
    """Page of a plan."""
    report, sections_of_plan, plans_of_graph = await anyio.to_thread.run_sync(_read, service, plan_id)
    explain = report.pop("explain")
    measured = await anyio.to_thread.run_sync(measurements_of, service.store, plan_id, tenant_of(service))
    name = axes.printable(report["model"].get("name") or "model", 120)
    return frame.render_page(
        request,
        "plan.html",
        title=name,
        embed=embed,
        headers=embed_policy(request, service, embed),
        name=name,
        file=file_name(name),
        base=f"/plans/{plan_id}",
        data=data_url(plan_id),
        preview_data=report.pop(preview.SECTION),
        report=report,
        headline=headline(report),
        explain=explain,
        measured=measured,
        places=RUNTIMES[report["runtime"]].places,
        has_layout="layout" in sections_of_plan,
        has_png=_has_png(),
        formats=[FORMATS[name] for name in sorted(FORMATS, key=lambda name: name != "rows")],
        curve_request=_curve_request(report),
        fit_request=msgspec.json.encode(fit_query.fit_fields(report, report["row"]["graph_id"])).decode(),
        other_plans=[_labelled(row) for row in plans_of_graph if row["id"] != plan_id],
        **curve_context(report, plans_of_graph),
    )


def embed_policy(request: Request, service: Service, embed: bool) -> dict[str, str]:
    """Headers that let the sites of `REMAT_EMBED_ANCESTORS` frame the page; empty without `embed`."""
    if not embed:
        return {}
    policy = frame.CONTENT_SECURITY_POLICY.format(ancestors=service.settings.embed_ancestors)
    return {"Content-Security-Policy": policy, "Cross-Origin-Opener-Policy": "unsafe-none"}


def data_url(plan_id: str) -> dict[str, str]:
    """URLs of the charts' columns; they change with the version of the scripts."""
    return {name: f"/plans/{plan_id}/{name}.bin?v={assets.assets_digest()}" for name in ("memory", "names", "graph")}


def summary_of(store: Store, plan_id: str) -> dict[str, Any]:
    """The report without `LONG_FIELDS`; `plan.recomputed_count` is the number of recomputed nodes. Raises NotFound."""
    row = store.row(plans, plan_id)
    raw = msgspec.json.decode(store.blobs.get(row["figures"]), type=dict[str, msgspec.Raw])
    plan = msgspec.json.decode(raw.pop("plan"), type=dict[str, msgspec.Raw])
    recomputed_count = len(msgspec.json.decode(plan["recomputed"], type=list[msgspec.Raw]))
    figures = {name: msgspec.json.decode(value) for name, value in plan.items() if name not in LONG_FIELDS}
    report = {name: msgspec.json.decode(value) for name, value in raw.items()}
    return report | {"plan": figures | {"recomputed_count": recomputed_count}, "row": row}


def _read(service: Service, plan_id: str) -> tuple[dict[str, Any], dict[str, str], list[dict[str, Any]]]:
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


def headline(report: Mapping[str, Any]) -> dict[str, Any]:
    """The headline of a plan: whether it fits, that verdict in words, and the rest of the line."""
    line = text.headline(report)
    fits = line.startswith("fits")
    verdict = "fits" if fits else "does not fit"
    rest = f"{line.removeprefix(verdict).strip()}; {text.optimality(report['plan'])}"
    return {"fits": fits, "verdict": verdict.capitalize(), "rest": rest}


def _labelled(row: Mapping[str, Any]) -> dict[str, Any]:
    """Option of the list of plans to compare with."""
    budget = f"budget {text.format_bytes(row['budget_bytes'])}" if row["budget_bytes"] else "lowest peak"
    peak, overhead = text.format_bytes(row["peak_bytes"]), text.format_percent(row["overhead"])
    return {"id": row["id"], "label": f"{row['planner']}, {budget}: {peak}, {overhead} slower"}


def curve_context(report: Mapping[str, Any], points: list[dict[str, Any]]) -> dict[str, Any]:
    """Template variables of `plan_curve.html`; `points`: the plans of the curve."""
    svg = drawn.curve(points, report["id"], report["model"].get("name") or "model") if len(points) > 1 else ""
    return {"points": points, "plan_id": report["id"], "curve_svg": drawn.inline_svg(svg)}


def _curve_request(report: Mapping[str, Any]) -> str:
    """Request (JSON) for a curve with the settings of this plan."""
    excluded = {*NOT_IN_CURVE, "budgets", "return", "iterations"}
    fields = {name: value for name, value in report["request"].items() if name not in excluded}
    fields |= {"graph_id": report["row"]["graph_id"], "budgets": CURVE_BUDGETS, "search_seconds": CURVE_SECONDS}
    return msgspec.json.encode(fields).decode()


@router.get("/plans/{plan_id}/curve")
async def curve_part(request: Request, service: ServiceDep, plan_id: PlanId, embed: Embed = False) -> Response:
    """The part of the page with the curve, from the plans stored now."""
    report, _, points = await anyio.to_thread.run_sync(_read, service, plan_id)
    context = curve_context(report, points)
    return frame.render_fragment(
        request, "plan_curve.html", base=f"/plans/{plan_id}", embed=embed, has_png=_has_png(), **context
    )


@router.get("/plans/{plan_id}/memory.bin")
async def memory_data(request: Request, service: ServiceDep, plan_id: PlanId, version: Version = "") -> Response:
    """Columns of the memory chart and the address map."""
    return await _columns(request, service, plan_id, "memory")


@router.get("/plans/{plan_id}/names.bin")
async def names_data(request: Request, service: ServiceDep, plan_id: PlanId, version: Version = "") -> Response:
    """Names for the indices of the other columns."""
    return await _columns(request, service, plan_id, "names")


@router.get("/plans/{plan_id}/graph.bin")
async def graph_data(request: Request, service: ServiceDep, plan_id: PlanId, version: Version = "") -> Response:
    """Columns of the graph view, and lifetimes of the baseline."""
    return await _columns(request, service, plan_id, "graph")


async def _columns(request: Request, service: Service, plan_id: str, task: str) -> Response:
    """Columns computed in a child process, or cached for this tenant. Raises NotFound."""
    key = tenant_of(service), plan_id, task
    data = service.responses.get(key)
    if data is None:
        data = await run_child_task(service, plan_id, task)
        service.responses.put(key, data)
    etag, headers = f"{plan_id}-{task}-{assets.assets_digest()}", {"Vary": "Accept-Encoding"}
    if accepted_coding(request.headers.get("accept-encoding", ""), ["gzip"]):
        return immutable_response(request, data, f"{etag}-gzip", BINARY, **headers, **{"Content-Encoding": "gzip"})
    return immutable_response(request, await anyio.to_thread.run_sync(gzip.decompress, data), etag, BINARY, **headers)


async def run_child_task(service: Service, plan_id: str, task: str) -> Any:
    """Result of a child process on a plan's figures and sections. Raises NotFound, Gone, SolveFailed."""
    return await service.run_in_child("picture", await anyio.to_thread.run_sync(_payload, service.store, plan_id, task))


def _payload(store: Store, plan_id: str, task: str) -> Callable[[], dict[str, Any]]:
    """Loads the input of a child process. Raises NotFound, Gone."""
    row = store.row(plans, plan_id)
    stored = sections_of(store, plan_id)
    if "timeline" not in stored or "source" not in stored:
        raise Gone(f"plan {plan_id} is stored without its timeline and source; plan the graph again")
    needed = [name for name in ("timeline", "layout", "explain", "source") if name in stored]
    return lambda: {
        "task": task,
        "figures": store.blobs.get(row["figures"]),
        "sections": {name: store.blobs.get(stored[name]) for name in needed},
    }


@router.get("/plans/{plan_id}/{picture}.{form}")
async def download(request: Request, service: ServiceDep, plan_id: PlanId, picture: str, form: str) -> Response:
    """A chart, the plan, its source, timeline or trace as a file. Raises NotFound, Gone, BadUsage."""
    if (picture, form) in FILES:
        data, name = await anyio.to_thread.run_sync(_file, service.store, plan_id, FILES[picture, form])
        return _download(request, data, f"{plan_id}-{picture}", MEDIA_TYPES[form], f"{name}-{picture}.{form}")
    if (picture, form) == TRACE:
        data, name = await run_child_task(service, plan_id, "trace.json"), await _model_name(service, plan_id)
        return _download(request, data, f"{plan_id}-trace", MEDIA_TYPES[form], f"{file_name(name)}-trace.json")
    if picture not in CHARTS or form not in ("svg", "png"):
        raise NotFound(f"unknown file {picture[:40]}.{form[:10]}; the plan's page lists its files")
    if form == "png" and not _has_png():
        raise BadUsage("PNG needs the extra `png`; request .svg, or install 'remat[png]'", code="missing_extra")
    etag = f"{plan_id}-{picture}-{form}-{assets.assets_digest()}"
    if picture == "curve":
        data, name, points = await _curve_file(service, plan_id, form)
        etag += f"-{points}-{records.now()}"  # changes with every new plan of the graph
    else:
        data = await run_child_task(service, plan_id, f"{picture}.{form}")
        name = await _model_name(service, plan_id)
    return _download(request, data, etag, MEDIA_TYPES[form], f"{file_name(name)}-{picture}.{form}")


async def _curve_file(service: Service, plan_id: str, form: str) -> tuple[bytes, str, int]:
    """The curve as SVG or PNG, the model's name, and the number of plans. Raises NotFound."""
    report, _, points = await anyio.to_thread.run_sync(_read, service, plan_id)
    name = report["model"].get("name") or "model"
    svg = drawn.curve(points, plan_id, name, linked=False)
    data = await anyio.to_thread.run_sync(plots.png, svg) if form == "png" else svg.encode()
    return data, name, len(points)


async def _model_name(service: Service, plan_id: str) -> str:
    """Name of the planned model. Raises NotFound."""
    row = await anyio.to_thread.run_sync(service.store.row, plans, plan_id)
    name: str = (await anyio.to_thread.run_sync(records.graph_of, service.store, row["graph_id"]))["name"]
    return name


@router.get("/plans/{plan_id}/rewritten/{format}")
async def rewritten_graph(request: Request, service: ServiceDep, plan_id: PlanId, format: str) -> Response:
    """The rewritten graph in a format of `FORMATS`. Raises NotFound, or an error if the format cannot represent it."""
    form = FORMATS.get(format)
    if form is None:
        raise NotFound(f"unknown format {format[:40]!r}; use one of {', '.join(FORMATS)}")
    key = await anyio.to_thread.run_sync(records.section_key, service.store, plan_id, "graph")
    data = await service.write_graph(key, format)
    saved_as = f"{file_name(await _model_name(service, plan_id))}-rewritten{form.suffix}"
    return _download(request, data, f"{plan_id}-graph-{format}", form.media_types[0], saved_as)


def _download(request: Request, data: bytes, etag: str, media_type: str, name: str) -> Response:
    """Response that browsers save as a file; revalidated by its ETag."""
    headers = {
        "Content-Disposition": f'attachment; filename="{name}"',
        "Cache-Control": "no-cache",
        "Content-Security-Policy": assets.ASSET_POLICY,
    }
    return immutable_response(request, data, etag, media_type, **headers)


def _plan_json(store: Store, plan_id: str) -> bytes:
    """The plan with the sections that `remat verify` needs."""
    return records.report_of(store, plan_id, ("timeline", "layout", "source"))


def _source_json(store: Store, plan_id: str) -> bytes:
    """The graph that was planned."""
    return records.section_of(store, plan_id, "source")


def _timeline_csv(store: Store, plan_id: str) -> bytes:
    """One row per step: node, run and bytes after planning, and bytes of the same step before."""
    figures = msgspec.json.decode(store.blobs.get(store.row(plans, plan_id)["figures"]), type=ReportSummary)
    steps = msgspec.json.decode(records.section_of(store, plan_id, "timeline"), type=TimelineColumns)
    order, after, before = figures.plan.order, steps.step_bytes, steps.baseline_step_bytes
    rows: list[tuple[Any, ...]] = []
    for step in range(max(len(after), len(before))):
        ran: tuple[Any, ...] = (*order[step], after[step]) if step < len(after) else ("", "", "")
        rows.append((step, *ran, before[step] if step < len(before) else ""))
    return csv_table.table_as_csv(("step", "node", "run", "bytes", "bytes_before"), rows).encode()


FILES: dict[tuple[str, str], Callable[[Store, str], bytes]] = {
    ("plan", "json"): _plan_json,
    ("source", "json"): _source_json,
    ("timeline", "csv"): _timeline_csv,
}


def _file(store: Store, plan_id: str, make: Callable[[Store, str], bytes]) -> tuple[bytes, str]:
    """Content of the file, and the model's name for its file name."""
    row = store.row(plans, plan_id)
    return make(store, plan_id), file_name(records.graph_of(store, row["graph_id"])["name"])


def file_name(name: str) -> str:
    """The name with only characters that are valid in file names and headers."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60] or "model"


def _has_png() -> bool:
    """Whether the extra `png` is installed."""
    return importlib.util.find_spec("resvg_py") is not None
