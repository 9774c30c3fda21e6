"""Answers that are stored: of the very question, or of the same about a graph that differs in names alone.

question ──▶ answered? ──no──▶ answered about a twin of its graph (`twins.py`)? ──▶ told again, and kept
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


async def lookup_answer(service: Service, question: SolveRequest) -> str | None:
    """Id of what answers the caller's question, once there is something."""
    known = await anyio.to_thread.run_sync(records.find_answer, service.store, question.key)
    if known is None and question.kind == "plan" and question.graph_id is not None:
        known = await _told_again(service, question)
    metrics.count_lookup(known is not None)
    return known


async def _told_again(service: Service, question: SolveRequest) -> str | None:
    """Id of a plan made of one for other names, which is kept as the question's own answer."""

    def own(key: str) -> str:
        return scope_request(service, replace(question, key=key)).key

    try:
        about = str(question.graph_id), question.fields
        payload = await anyio.to_thread.run_sync(relabel_payload, service.store, service.settings, *about, own)
        told = payload and await service.run_in_child("retell", payload)
    except (AppError, ProblemDetails) as error:  # collected since, or no room, or not to be told: it is solved, then
        log.warning("graph=%s event=not_told_again said=%r", question.graph_id, str(error))
        return None
    if told is None:
        return None
    id = str(question.graph_id)
    return await anyio.to_thread.run_sync(records.save_plan, service.store, told, id, question.key)
