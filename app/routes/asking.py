"""What questions in a body have in common: a graph or the id of one, and fields that stay within the settings."""

from __future__ import annotations

from typing import Any

import anyio.to_thread
import msgspec
from fastapi import Request

from app.admission import held_by
from app.bodies import body_of, decoded, fields_in, media_type_of
from app.routes.common import demand_media
from app.service import Service
from graph.errors import Finding
from planner.errors import BadRequest

GRAPH = ("graph", "graph_id")


async def sent_in(request: Request, service: Service) -> dict[str, msgspec.Raw]:
    """The fields of a JSON body, not decoded yet. Raises TooLarge, Unsupported, Unparseable, BadRequest."""
    demand_media(media_type_of(request.headers), ["application/json"])
    body = await body_of(request, service.settings)
    return await fields_of_body(request, service, body)


async def fields_of_body(request: Request, service: Service, body: bytes) -> dict[str, msgspec.Raw]:
    """As `app.bodies.fields_in`, in one of few threads."""
    parsers = held_by(request).admission.parsers
    return await anyio.to_thread.run_sync(fields_in, body, service.settings, limiter=parsers)


def fields_of(sent: dict[str, msgspec.Raw]) -> dict[str, Any]:
    """The fields beside the one graph. Raises BadRequest."""
    fields = {name: decoded(bytes(raw), Any) for name, raw in sent.items() if name not in GRAPH}
    if ("graph" in sent) == ("graph_id" in sent):
        found = "both" if "graph" in sent else "neither"
        raise BadRequest.one("one_graph", "graph", found, "a graph, or the graph_id of one", "send one of them")
    return fields


def demand_time(service: Service, search_seconds: float) -> None:
    """Raises BadRequest for a longer search than the settings allow."""
    longest = service.settings.search_seconds
    if search_seconds > longest:
        raise BadRequest([
            Finding("too_long", "search_seconds", f"{search_seconds:g}", f"at most {longest:g}",
                    "ask for less, or raise REMAT_SEARCH_SECONDS")
        ])  # fmt: skip


async def graph_id_of(service: Service, sent: dict[str, msgspec.Raw]) -> str:
    """Id of the graph asked about; an inline one is read and kept. Raises Problem, NotFound."""
    if "graph" in sent:
        return str((await service.read_graph(bytes(sent["graph"])))["id"])
    graph_id: str = decoded(bytes(sent["graph_id"]), str)
    await anyio.to_thread.run_sync(service.has_graph, graph_id)
    return graph_id
