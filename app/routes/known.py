"""Answers that are stored: of the very question, or of the same about a graph that differs in names alone.

question ──▶ answered? ──no──▶ graphs of its form ──▶ this tenant's answers about them ──▶ told again, and kept
"""

from __future__ import annotations

import logging
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import anyio.to_thread

from app import records
from app.access.view import own_question
from app.errors import AppError, Problem
from app.jobs.port import Question
from app.retold import fields_for
from app.service import Service
from app.watching import instruments

log = logging.getLogger(__name__)


async def known_answer(service: Service, question: Question) -> str | None:
    """Id of what answers the caller's question, once there is something."""
    known = await anyio.to_thread.run_sync(records.answer_of, service.store, question.key)
    if known is None and question.kind == "plan" and question.graph_id is not None:
        known = await _told_again(service, question)
    instruments.looked_up(known is not None)
    return known


async def _told_again(service: Service, question: Question) -> str | None:
    """Id of a plan made of one for other names, which is kept as the question's own answer."""
    try:
        payload = await anyio.to_thread.run_sync(_answered, service, question)
        told = payload and await service.in_child("retell", payload)
    except (AppError, Problem) as error:  # collected since, or no room, or not to be told: it is solved, then
        log.warning("graph=%s event=not_told_again said=%r", question.graph_id, str(error))
        return None
    if told is None:
        return None
    id = str(question.graph_id)
    return await anyio.to_thread.run_sync(records.keep_plan, service.store, told, id, question.key)


def _answered(service: Service, question: Question) -> dict[str, Any] | None:
    """What a child is told: the question, and the same about a twin of its graph with what answered it."""
    store, id = service.store, str(question.graph_id)
    ours = partial(records.document_of, store, id)
    asked = {}
    for twin in records.twins_of(store, id):
        fields = fields_for(question.fields, ours, partial(store.blobs.get, twin))
        if fields is not None:
            same = replace(question, key=records.question_key(twin, fields), graph_id=twin, fields=fields)
            asked[own_question(service, same).key] = twin, fields
    answered = records.answers_of(store, asked) if asked else {}
    for key, plan_id in answered.items():
        told = records.solve_payload(store, id, question.fields)
        theirs = records.solve_payload(store, *asked[key])
        figures, sections = records.parts_of(store, plan_id)
        limits = asdict(service.settings.limits())
        return told | {"theirs": theirs, "figures": figures, "sections": sections, "limits": limits}
    return None
