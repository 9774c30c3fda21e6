"""Lookup of a stored result: of the same request, or of the same request on an equivalent graph.

request ──▶ stored? ──no──▶ search result stored for an equivalent graph? ──▶ report with own names, stored
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any

import anyio.to_thread

from app.api.service.service import Service
from app.errors import AppError, ProblemDetails
from app.jobs.answers.equivalent_graphs import find_search, form_key
from app.jobs.interface import COMPLETE, SolveRequest
from app.store import records
from app.telemetry import metrics

log = logging.getLogger(__name__)


async def lookup_answer(service: Service, request: SolveRequest) -> str | None:
    """Id of the stored result of the request; None if there is none."""
    stored_id = await anyio.to_thread.run_sync(records.find_answer, service.store, request.key)
    if stored_id is None and request.kind == "plan" and request.graph_id is not None:
        stored_id = await _reuse_search(service, request, request.graph_id)
    metrics.count_lookup(stored_id is not None)
    return stored_id


async def _reuse_search(service: Service, request: SolveRequest, graph_id: str) -> str | None:
    """Id of a plan with the search result of an equivalent graph, stored for the request; None: not available."""

    store = service.store

    def search() -> bytes | None:
        return find_search(store, form_key(store, graph_id, request.fields, request.owner))

    def payload() -> dict[str, Any]:
        limits = asdict(service.settings.limits())
        return records.solve_payload(store, graph_id, request.fields) | {"known": known, "limits": limits}

    try:
        known = await anyio.to_thread.run_sync(search)
        solved = known and await service.run_in_child("solve", payload)
    except (AppError, ProblemDetails) as error:  # deleted meanwhile, or busy: submit the request instead
        log.warning("graph=%s event=reuse_failed error=%r", graph_id, str(error))
        return None
    if not solved or solved["exit_code"] not in COMPLETE:
        return None
    return await anyio.to_thread.run_sync(records.save_plan, service.store, solved, graph_id, request.key)
