"""`/v1/layouts`: assign offsets to buffers with given lifetimes."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from app.api.routes.dependencies import PageDep, ServiceDep, page_docs
from app.api.routes.submit_or_wait import (
    RawFields,
    Submission,
    data_request,
    get_submission,
    require_search_time,
    result_bytes,
    result_docs,
    result_page,
    result_response,
    submit_docs,
    submit_or_wait,
)
from app.api.service.service import Service
from app.api.wire.openapi import body_docs, ref
from app.jobs.interface import SolveRequest
from app.models.json_object import decode_object
from planner.layout.csv_buffers import parse_seconds

router = APIRouter(tags=["layouts"])

EXAMPLE = {"buffers": [{"lower": 0, "upper": 2, "size": 4096}, {"lower": 1, "upper": 3, "size": 512}], "capacity": 8192}


@router.post(
    "/v1/layouts",
    status_code=201,
    response_class=Response,
    responses=submit_docs("Offsets", "PackedLayout"),
    openapi_extra=body_docs({"application/json": ref("LayoutRequest")}, {"two buffers": EXAMPLE}),
)
async def post_layout(submission: Annotated[Submission, Depends(get_submission)], service: ServiceDep) -> Response:
    """Pack buffers with known lifetimes into one arena."""
    return await submit_or_wait(submission, service, _parse, result_bytes)


async def _parse(service: Service, sent: RawFields) -> SolveRequest:
    seconds = parse_seconds(
        {name: decode_object(bytes(raw), Any) for name, raw in sent.items() if name == "search_seconds"}
    )
    require_search_time(service, seconds)
    return data_request(msgspec.json.encode(sent), {"search_seconds": seconds}, "layout")


@router.get("/v1/layouts", response_class=Response, responses=page_docs("PackedLayouts"))
async def list_layouts(service: ServiceDep, page: PageDep) -> Response:
    """Stored layouts, newest first."""
    return await result_page(service, "layout", page)


@router.get("/v1/layouts/{layout_id}", response_class=Response, responses=result_docs("Offsets", "PackedLayout"))
async def get_packed(request: Request, service: ServiceDep, layout_id: str) -> Response:
    """Offsets, in the order of the buffers in the request."""
    return await result_response(request, service, "layout", layout_id)
