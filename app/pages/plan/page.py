"""`/plans/{id}`: page of a plan: the answer, how to use it, charts, the curve of its graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import anyio.to_thread
import msgspec
from fastapi import APIRouter, Query, Request, Response

from app.api.auth.tenant_view import tenant_of
from app.api.routes.dependencies import ServiceDep
from app.api.schemas.plans import MAX_NOTE_CHARS, MAX_TAG_CHARS, MAX_TAGS
from app.api.service.service import Service
from app.models.formats import FORMATS
from app.pages.plan import budget_slider, peak_bars, use_it
from app.pages.plan.files import PlanId, data_url, file_name, has_png
from app.pages.plan.stored import read_plan, shapes_of_plans
from app.pages.shell import frame
from app.pages.shell.frame import PageRoute
from app.render import axes, svg, text
from app.render.plan import preview
from app.render.plan import svg as drawn
from app.store.measurements import measurements_of
from app.store.tags_and_notes import annotations_of
from planner.request.curve_and_fit_request import NOT_IN_CURVE, NOT_IN_FIT
from planner.request.target_runtime import RUNTIMES

router = APIRouter(include_in_schema=False, route_class=PageRoute)

CURVE_BUDGETS = ("90%", "80%", "70%", "60%", "50%", "40%", "30%", "20%")
CURVE_SECONDS = FIT_SECONDS = 20  # time limit of a curve or a fit requested on a plan's page
ANNOTATION_LIMITS = {"tags": MAX_TAGS, "tag_chars": MAX_TAG_CHARS, "note_chars": MAX_NOTE_CHARS}
Embed = Annotated[bool, Query(description="without navigation, for framing by other pages")]


@router.get("/plans/{plan_id}")
async def plan_page(request: Request, service: ServiceDep, plan_id: PlanId, embed: Embed = False) -> Response:
    """Page of a plan."""
    report, sections_of_plan, plans_of_graph = await anyio.to_thread.run_sync(read_plan, service, plan_id)
    explain = report.pop("explain")
    measured = await anyio.to_thread.run_sync(measurements_of, service.store, plan_id, tenant_of(service))
    shapes = await anyio.to_thread.run_sync(shapes_of_plans, service.store, [plan_id])
    annotations = await anyio.to_thread.run_sync(annotations_of, service.store, [plan_id], tenant_of(service))
    name = axes.printable(report["model"].get("name") or "model", 120)
    return frame.render_page(
        request,
        "plan.html",
        title=name,
        embed=embed,
        headers=embed_policy(request, service, embed),
        name=name,
        shape=shapes[plan_id],
        annotations=annotations[plan_id],
        annotation_limits=ANNOTATION_LIMITS,
        file=file_name(name),
        base=f"/plans/{plan_id}",
        data=data_url(plan_id),
        preview_data=report.pop(preview.SECTION),
        report=report,
        headline=headline(report),
        explain=explain,
        measured=measured,
        places=RUNTIMES[report["runtime"]].places,
        bars=peak_bars.peak_bars(report),
        tabs=use_it.tabs(report, frame.origin_of(request), file_name(name), request.app.state.access is not None),
        slider=budget_slider.slider(report, plans_of_graph, service.settings.search_seconds),
        has_layout="layout" in sections_of_plan,
        has_png=has_png(),
        formats=[FORMATS[name] for name in sorted(FORMATS, key=lambda name: name != "rows")],
        curve_request=_curve_request(report),
        fit_request=msgspec.json.encode(_fit_fields(report)).decode(),
        other_plans=[_labelled(row) for row in plans_of_graph if row["id"] != plan_id],
        **curve_context(report, plans_of_graph),
    )


def embed_policy(request: Request, service: Service, embed: bool) -> dict[str, str]:
    """Headers that let the sites of `REMAT_EMBED_ANCESTORS` frame the page; empty without `embed`."""
    if not embed:
        return {}
    policy = frame.CONTENT_SECURITY_POLICY.format(ancestors=service.settings.embed_ancestors)
    return {"Content-Security-Policy": policy, "Cross-Origin-Opener-Policy": "unsafe-none"}


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
    peak, slowdown = text.format_bytes(row["peak_bytes"]), text.format_slowdown(row["overhead"])
    return {"id": row["id"], "label": f"{row['planner']}, {budget}: {peak}, {slowdown}"}


def curve_context(report: Mapping[str, Any], points: list[dict[str, Any]]) -> dict[str, Any]:
    """Template variables of `plan_curve.html`; `points`: the plans of the curve."""
    name, context = report["model"].get("name") or "model", {"points": points, "plan_id": report["id"]}
    if len(points) < 2:
        return context
    return context | {
        place: drawn.inline_svg(drawn.curve(points, report["id"], name, size=size))
        for place, size in (("curve_svg", svg.WIDE), ("narrow_curve_svg", svg.NARROW))
    }


def _curve_request(report: Mapping[str, Any]) -> str:
    """Request (JSON) for a curve with the settings of this plan."""
    excluded = {*NOT_IN_CURVE, "budgets", "return", "iterations"}
    fields = {name: value for name, value in report["request"].items() if name not in excluded}
    fields |= {"graph_id": report["row"]["graph_id"], "budgets": CURVE_BUDGETS, "search_seconds": CURVE_SECONDS}
    return msgspec.json.encode(fields).decode()


def _fit_fields(report: Mapping[str, Any]) -> dict[str, Any]:
    """Request for the largest batch with the settings of a plan; the memory limit is that of its device."""
    excluded = {*NOT_IN_FIT, "budget", "max_overhead", "fits", "batch", "iterations"}
    fields = {name: value for name, value in report["request"].items() if name not in excluded}
    memory = {"fits": report["device"]} if isinstance(report["device"], str) else {}
    return fields | memory | {"graph_id": report["row"]["graph_id"], "grow": "batch", "search_seconds": FIT_SECONDS}


@router.get("/plans/{plan_id}/points.json")
async def points(service: ServiceDep, plan_id: PlanId) -> Response:
    """The stored plans of the graph, for the budget slider."""
    _, _, stored = await anyio.to_thread.run_sync(read_plan, service, plan_id)
    body = msgspec.json.encode(budget_slider.points_of(stored))
    return Response(body, 200, {"Cache-Control": "no-store"}, "application/json")


@router.get("/plans/{plan_id}/curve")
async def curve_part(request: Request, service: ServiceDep, plan_id: PlanId, embed: Embed = False) -> Response:
    """The part of the page with the curve, from the plans stored now."""
    report, _, points = await anyio.to_thread.run_sync(read_plan, service, plan_id)
    context = curve_context(report, points)
    return frame.render_fragment(
        request, "plan_curve.html", base=f"/plans/{plan_id}", embed=embed, has_png=has_png(), **context
    )
