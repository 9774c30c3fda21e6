"""Lookup of a stored result: of the same request, or of the same request on an equivalent graph.

request ──▶ stored? ──no──▶ stored for an equivalent graph (`isomorphic_graphs.py`)? ──▶ relabeled and stored
"""

from __future__ import annotations

import logging
from dataclasses import replace

import anyio.to_thread

from app.api.auth.tenant_view import scope_request
from app.api.service.service import Service
from app.errors import AppError, ProblemDetails
from app.jobs.answers.isomorphic_graphs import relabel_payload
from app.jobs.interface import SolveRequest
from app.store import records
from app.telemetry import metrics

log = logging.getLogger(__name__)


async def lookup_answer(service: Service, request: SolveRequest) -> str | None:
    """Id of the stored result of the request; None if there is none."""
    stored_id = await anyio.to_thread.run_sync(records.find_answer, service.store, request.key)
    if stored_id is None and request.kind == "plan" and request.graph_id is not None:
        stored_id = await _relabel_stored(service, request)
    metrics.count_lookup(stored_id is not None)
    return stored_id


async def _relabel_stored(service: Service, request: SolveRequest) -> str | None:
    """Id of a plan relabeled from one of an equivalent graph, and stored for the request; None: not available."""

    def own(key: str) -> str:
        return scope_request(service, replace(request, key=key)).key

    try:
        subject = str(request.graph_id), request.fields
        payload = await anyio.to_thread.run_sync(relabel_payload, service.store, service.settings, *subject, own)
        relabeled = payload and await service.run_in_child("retell", payload)
    except (AppError, ProblemDetails) as error:  # collected meanwhile, busy, or not relabelable: solve instead
        log.warning("graph=%s event=relabel_failed error=%r", request.graph_id, str(error))
        return None
    if relabeled is None:
        return None
    id = str(request.graph_id)
    return await anyio.to_thread.run_sync(records.save_plan, service.store, relabeled, id, request.key)
