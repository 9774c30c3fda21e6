"""Lookup of stored search results by form key: they serve graphs that differ in names only.

request, its graph ──▶ form key, without names ──▶ stored plan of the same tenant ──▶ its search result, by number
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from app.errors import AppError
from app.jobs.answers.form import SEARCH, NoForm, numbered_fields
from app.store import records
from app.store.store import Store
from app.store.tenancy import scoped_name

log = logging.getLogger(__name__)


def form_key(store: Store, graph_id: str, fields: Mapping[str, Any], tenant: str | None) -> str | None:
    """Key of a plan request without names, scoped to the tenant; None: the graph or the request has no form.

    Equal for requests on equivalent graphs that name the same places. Raises NotFound.
    """
    graph = records.graph_of(store, graph_id)
    if graph["form"] is None:
        return None
    try:
        numbered = numbered_fields(fields, partial(store.blobs.get, graph["blob"]))
    except NoForm:
        return None
    key = records.request_key(graph["form"], numbered)
    return scoped_name(tenant, key) if tenant else key


def find_search(store: Store, key: str | None) -> bytes | None:
    """Stored search result of the form key as JSON; None if there is none, or if it cannot be read."""
    try:
        plan_id = None if key is None else records.find_answer(store, key)
        return None if plan_id is None else records.section_of(store, plan_id, SEARCH)
    except AppError as error:  # deleted since, or damaged: search instead
        log.warning("event=search_result_unavailable error=%r", str(error))
        return None
