"""Data of a plan's charts as columns, and its downloads: pictures, plan, source, timeline, trace, rewritten graph."""

from __future__ import annotations

import gzip
import importlib.util
import re
from collections.abc import Callable
from typing import Annotated, Any

import anyio.to_thread
import msgspec
from fastapi import APIRouter, Path, Query, Request, Response

from app.api.auth.tenant_view import tenant_of
from app.api.routes.dependencies import ServiceDep, immutable_response
from app.api.service.service import Service
from app.api.wire.negotiation import accepted_coding
from app.errors import BadUsage, Gone, NotFound
from app.models.formats import FORMATS
from app.pages.plan.stored import read_plan, sections_of
from app.pages.shell import assets
from app.pages.shell.frame import PageRoute
from app.render import csv_table
from app.render import svg as plots
from app.render.plan import svg as drawn
from app.render.plan.columns import ReportSummary, TimelineColumns
from app.store import records
from app.store.store import Store
from app.store.tables import plans

router = APIRouter(include_in_schema=False, route_class=PageRoute)

TRACE = ("trace", "json")
CHARTS = ("timeline", "map", "graph", "engines", "curve")
BINARY = "application/octet-stream"
MEDIA_TYPES = {"json": "application/json", "csv": "text/csv; charset=utf-8", "svg": "image/svg+xml", "png": "image/png"}
Version = Annotated[str, Query(alias="v", description="hash of the scripts; a new version is fetched again")]
PlanId = Annotated[str, Path()]


def data_url(plan_id: str) -> dict[str, str]:
    """URLs of the charts' columns; they change with the version of the scripts."""
    return {name: f"/plans/{plan_id}/{name}.bin?v={assets.assets_digest()}" for name in ("memory", "names", "graph")}


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
    if form == "png" and not has_png():
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
    report, _, points = await anyio.to_thread.run_sync(read_plan, service, plan_id)
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


def has_png() -> bool:
    """Whether the extra `png` is installed."""
    return importlib.util.find_spec("resvg_py") is not None
