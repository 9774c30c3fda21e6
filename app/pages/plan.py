"""`/plans/{id}`: what a plan does, in pictures; the data they are drawn from, and downloads."""

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
from app.api.wire.negotiation import accepts_gzip
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
from app.store.savings import in_scope
from app.store.store import Store
from app.store.tables import plans, sections
from planner.request.curve_and_fit_request import NOT_IN_CURVE

router = APIRouter(include_in_schema=False, route_class=PageRoute)

#: Lists of a plan that grow with the graph, and are left to the pictures.
LONG_FIELDS = ("order", "kept", "recomputed", "choices")
MAX_REASONS, MAX_PLANS = 30, 200
CURVE_BUDGETS = ("90%", "80%", "70%", "60%", "50%", "40%", "30%", "20%")
CURVE_SECONDS = 20
PICTURES = {"timeline": "timeline", "map": "layout", "graph": "source", "curve": None}  # and the section it needs
BINARY = "application/octet-stream"
Embed = Annotated[bool, Query(description="without navigation, for other pages to frame")]
Version = Annotated[str, Query(alias="v", description="of what draws the data; a new one asks anew")]
PlanId = Annotated[str, Path()]


@router.get("/plans/{plan_id}")
async def plan_page(request: Request, service: ServiceDep, plan_id: PlanId, embed: Embed = False) -> Response:
    """The page of a plan."""
    report, parts, others = await anyio.to_thread.run_sync(_read, service, plan_id)
    explain = report.pop("explain")
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
        sketch=report.pop(preview.SECTION),
        report=report,
        verdict=verdict(report),
        explain=explain,
        total_again=report["plan"]["again"],
        has_layout="layout" in parts,
        has_png=_has_png(),
        formats=[FORMATS[name] for name in sorted(FORMATS, key=lambda name: name != "rows")],
        question=_curve_question(report, others),
        fit_question=msgspec.json.encode(fit_query.fit_fields(report, report["row"]["graph_id"])).decode(),
        others=[_labelled(row) for row in others if row["id"] != plan_id],
        **curve_of(report, others),
    )


def embed_policy(request: Request, service: Service, embed: bool) -> dict[str, str]:
    """The policy of a page that those whom the settings name may frame; of others the usual one."""
    if not embed:
        return {}
    policy = frame.CONTENT_SECURITY_POLICY.format(ancestors=service.settings.embed_ancestors)
    return {"Content-Security-Policy": policy, "Cross-Origin-Opener-Policy": "unsafe-none"}


def data_url(plan_id: str) -> dict[str, str]:
    """Where the pictures' columns are; under another address when another version draws them."""
    return {name: f"/plans/{plan_id}/{name}.bin?v={assets.assets_digest()}" for name in ("memory", "names", "graph")}


def summary_of(store: Store, plan_id: str) -> dict[str, Any]:
    """The figures without the lists that grow with the graph, and in `plan.again` how many nodes run again.

    Raises NotFound.
    """
    row = store.row(plans, plan_id)
    raw = msgspec.json.decode(store.blobs.get(row["figures"]), type=dict[str, msgspec.Raw])
    plan = msgspec.json.decode(raw.pop("plan"), type=dict[str, msgspec.Raw])
    again = len(msgspec.json.decode(plan["recomputed"], type=list[msgspec.Raw]))
    figures = {name: msgspec.json.decode(said) for name, said in plan.items() if name not in LONG_FIELDS}
    report = {name: msgspec.json.decode(said) for name, said in raw.items()}
    return report | {"plan": figures | {"again": again}, "row": row}


def _read(service: Service, plan_id: str) -> tuple[dict[str, Any], dict[str, str], list[dict[str, Any]]]:
    """`summary_of` with explanations, the sections there are, and the caller's plans of the graph on the same terms.

    Raises NotFound.
    """
    store, owned = service.store, plan_scope(service)
    report = summary_of(store, plan_id)
    row, parts = report["row"], sections_of(store, plan_id)
    report["explain"] = _explain(store, parts)
    report[preview.SECTION] = (
        preview.inline_preview(store.blobs.get(parts[preview.SECTION])) if preview.SECTION in parts else ""
    )
    same = [plans.c[name] == row[name] for name in ("graph_id", "runtime", "device", "counts", "baseline_peak_bytes")]
    if owned is not None:  # others may have asked about the same graph
        same.append(in_scope(store, owned, plans.c.id))
    asked = sa.select(plans).where(*same).order_by(plans.c.seen_at.desc()).limit(MAX_PLANS)
    with store.reading() as connection:
        others = [dict(found) for found in connection.execute(asked).mappings()]
    if all(other["id"] != plan_id for other in others):
        others.append(row)
    return report, parts, sorted(others, key=lambda other: (axes.budget_of(other), other["overhead"] or 0.0))


def sections_of(store: Store, plan_id: str) -> dict[str, str]:
    """Name -> blob, of a plan that is known to be there."""
    asked = sa.select(sections.c.name, sections.c.blob).where(sections.c.plan_id == plan_id)
    with store.reading() as connection:
        return {row.name: row.blob for row in connection.execute(asked)}


def _explain(store: Store, parts: Mapping[str, str]) -> dict[str, Any]:
    """The section, with the first of its reasons; empty where the plan was made without it."""
    if "explain" not in parts:
        return {"recomputed": [], "binding": None, "holders": [], "baseline_holders": []}
    raw = msgspec.json.decode(store.blobs.get(parts["explain"]), type=dict[str, msgspec.Raw])
    rows = msgspec.json.decode(raw.pop("recomputed"), type=list[msgspec.Raw])
    explain = {name: msgspec.json.decode(said) for name, said in raw.items()}
    return explain | {"recomputed": [msgspec.json.decode(row) for row in rows[:MAX_REASONS]]}


def verdict(report: Mapping[str, Any]) -> dict[str, Any]:
    """The first line of an answer: its word, and the rest of it."""
    said = text.headline(report)
    fits = said.startswith("fits")
    word = "fits" if fits else "does not fit"
    rest = f"{said.removeprefix(word).strip()}; {text.optimality(report['plan'])}"
    return {"fits": fits, "word": word.capitalize(), "rest": rest}


def _labelled(row: Mapping[str, Any]) -> dict[str, Any]:
    budget = f"budget {text.format_bytes(row['budget_bytes'])}" if row["budget_bytes"] else "lowest peak"
    time = f"{text.format_percent(row['overhead'])} more time"
    return {"id": row["id"], "words": f"{row['planner']}, {budget}: {text.format_bytes(row['peak_bytes'])}, {time}"}


def curve_of(report: Mapping[str, Any], others: list[dict[str, Any]]) -> dict[str, Any]:
    """What the part with the curve shows."""
    svg = drawn.curve(others, report["id"], report["model"].get("name") or "model") if len(others) > 1 else ""
    return {"points": others, "plan_id": report["id"], "curve_svg": drawn.inline_svg(svg)}


def _curve_question(report: Mapping[str, Any], others: list[dict[str, Any]]) -> str:
    """The question that the button asks: this plan's own terms at several budgets."""
    left_out = {*NOT_IN_CURVE, "budgets", "return", "iterations"}
    terms = {name: said for name, said in report["request"].items() if name not in left_out}
    terms |= {"graph_id": report["row"]["graph_id"], "budgets": CURVE_BUDGETS, "search_seconds": CURVE_SECONDS}
    return msgspec.json.encode(terms).decode()


@router.get("/plans/{plan_id}/curve")
async def curve_part(request: Request, service: ServiceDep, plan_id: PlanId, embed: Embed = False) -> Response:
    """The part of the page with the curve, as the store has it now."""
    report, _, others = await anyio.to_thread.run_sync(_read, service, plan_id)
    said = curve_of(report, others)
    return frame.render_fragment(
        request, "plan_curve.html", base=f"/plans/{plan_id}", embed=embed, has_png=_has_png(), **said
    )


@router.get("/plans/{plan_id}/memory.bin")
async def memory_data(request: Request, service: ServiceDep, plan_id: PlanId, version: Version = "") -> Response:
    """What memory over steps and the address map are drawn from."""
    return await _columns(request, service, plan_id, "memory")


@router.get("/plans/{plan_id}/names.bin")
async def names_data(request: Request, service: ServiceDep, plan_id: PlanId, version: Version = "") -> Response:
    """What the numbers of the other columns are called."""
    return await _columns(request, service, plan_id, "names")


@router.get("/plans/{plan_id}/graph.bin")
async def graph_data(request: Request, service: ServiceDep, plan_id: PlanId, version: Version = "") -> Response:
    """What the graph is drawn from, and what is held before."""
    return await _columns(request, service, plan_id, "graph")


async def _columns(request: Request, service: Service, plan_id: str, task: str) -> Response:
    """Columns that a child makes, from memory where this tenant has had them made a moment ago. Raises NotFound."""
    key = tenant_of(service), plan_id, task
    data = service.kept.get(key)
    if data is None:
        data = await run_child_task(service, plan_id, task)
        service.kept.put(key, data)
    etag, said = f"{plan_id}-{task}-{assets.assets_digest()}", {"Vary": "Accept-Encoding"}
    if accepts_gzip(request.headers.get("accept-encoding", "")):
        return immutable_response(request, data, f"{etag}-gzip", BINARY, **said, **{"Content-Encoding": "gzip"})
    return immutable_response(request, await anyio.to_thread.run_sync(gzip.decompress, data), etag, BINARY, **said)


async def run_child_task(service: Service, plan_id: str, task: str) -> Any:
    """What a child makes of a plan's figures and sections. Raises NotFound, Gone, SolveFailed."""
    payload = await anyio.to_thread.run_sync(_payload, service.store, plan_id)
    return await service.run_in_child("picture", {"task": task, **payload})


def _payload(store: Store, plan_id: str) -> dict[str, Any]:
    row = store.row(plans, plan_id)
    parts = sections_of(store, plan_id)
    if "timeline" not in parts or "source" not in parts:
        raise Gone(f"plan {plan_id} was kept without its timeline and source; plan the graph again")
    wanted = [name for name in ("timeline", "layout", "explain", "source") if name in parts]
    return {
        "figures": store.blobs.get(row["figures"]),
        "sections": {name: store.blobs.get(parts[name]) for name in wanted},
    }


@router.get("/plans/{plan_id}/{picture}.{form}")
async def picture(request: Request, service: ServiceDep, plan_id: PlanId, picture: str, form: str) -> Response:
    """A picture as a file, or the plan, its source or its timeline. Raises NotFound, Gone, BadUsage."""
    if (picture, form) in FILES:
        data, name = await anyio.to_thread.run_sync(_file, service.store, plan_id, FILES[picture, form])
        media = {"json": "application/json", "csv": "text/csv; charset=utf-8"}[form]
        return _download(request, data, f"{plan_id}-{picture}", media, f"{name}-{picture}.{form}")
    if picture not in PICTURES or form not in ("svg", "png"):
        raise NotFound(f"there is no {picture[:40]}.{form[:10]} of a plan; its page lists what there is")
    if form == "png" and not _has_png():
        raise BadUsage("PNG needs the extra `png`; ask for .svg, or install 'remat[png]'", code="missing_extra")
    row = await anyio.to_thread.run_sync(service.store.row, plans, plan_id)
    if picture == "curve":
        report, _, others = await anyio.to_thread.run_sync(_read, service, plan_id)
        name = report["model"].get("name") or "model"
        svg = drawn.curve(others, plan_id, name, linked=False)
        data = await anyio.to_thread.run_sync(plots.png, svg) if form == "png" else svg.encode()
    else:
        data = await run_child_task(service, plan_id, f"{picture}.{form}")
        name = (await anyio.to_thread.run_sync(records.graph_of, service.store, row["graph_id"]))["name"]
    media = {"svg": "image/svg+xml", "png": "image/png"}[form]
    etag = f"{plan_id}-{picture}-{form}-{assets.assets_digest()}"
    if picture == "curve":  # grows with the plans there are
        etag += f"-{len(others)}-{records.now()}"
    return _download(request, data, etag, media, f"{file_name(name)}-{picture}.{form}")


@router.get("/plans/{plan_id}/rewritten/{format}")
async def rewritten_graph(request: Request, service: ServiceDep, plan_id: PlanId, format: str) -> Response:
    """The rewritten graph in a format that graphs leave in. Raises NotFound, and what the format cannot say."""
    form = FORMATS.get(format)
    if form is None:
        raise NotFound(f"there is no format {format[:40]!r}; there are {', '.join(FORMATS)}")
    document = await anyio.to_thread.run_sync(records.section_of, service.store, plan_id, "graph")
    data = document if format == "rows" else await service.write_graph(document, format)
    row = await anyio.to_thread.run_sync(service.store.row, plans, plan_id)
    name = (await anyio.to_thread.run_sync(records.graph_of, service.store, row["graph_id"]))["name"]
    saved_as = f"{file_name(name)}-rewritten{form.suffix}"
    return _download(request, data, f"{plan_id}-graph-{format}", form.media_types[0], saved_as)


def _download(request: Request, data: bytes, etag: str, media_type: str, name: str) -> Response:
    """A file to be saved; asked for again only whether it is the same."""
    headers = {
        "Content-Disposition": f'attachment; filename="{name}"',
        "Cache-Control": "no-cache",
        "Content-Security-Policy": assets.POLICY,
    }
    return immutable_response(request, data, etag, media_type, **headers)


def _plan_json(store: Store, plan_id: str) -> bytes:
    return records.report_of(store, plan_id, ("timeline", "layout", "source"))


def _source_json(store: Store, plan_id: str) -> bytes:
    return records.section_of(store, plan_id, "source")


def _timeline_csv(store: Store, plan_id: str) -> bytes:
    """A row a step: what runs and the bytes after; beside it the bytes of the same step before."""
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
    """The file, and the model's name as files are called."""
    row = store.row(plans, plan_id)
    return make(store, plan_id), file_name(records.graph_of(store, row["graph_id"])["name"])


def file_name(name: str) -> str:
    """The name in letters that every file system and header takes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60] or "model"


def _has_png() -> bool:
    return importlib.util.find_spec("resvg_py") is not None
