"""What several routes need: the service, negotiated graphs, immutable answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Depends, Header, Request, Response
from fastapi.dependencies.models import Dependant

from app.api.auth.middleware import CALLER
from app.api.auth.tenant_view import Caller, view_for
from app.api.service.service import Service
from app.api.wire.negotiation import etag_matches, negotiate
from app.api.wire.openapi import ref
from app.errors import Unsupported
from app.models.formats import FORMATS
from graph.errors import Finding
from planner.errors import BadRequest

CACHE_FOREVER = "public, max-age=31536000, immutable"
IdempotencyKey = Annotated[
    str | None,
    Header(alias="Idempotency-Key", min_length=1, max_length=255, description="the same key and body: the same answer"),
]
#: Media type -> schema, of graphs on their way out.
GRAPH_CONTENT: dict[str, Any] = {
    "application/json": ref("Document"),
    "application/vnd.remat.columns+json": ref("Columns"),
    "application/vnd.remat.mutable+json": ref("Document"),
    "application/msgpack": {"type": "string", "format": "binary"},
    "application/onnx": {"type": "string", "format": "binary"},
    "application/vnd.mxnet.symbol+json": {"type": "object"},
    "application/vnd.caffe2.net": {"type": "string", "format": "binary"},
    "application/vnd.caffe2.net+text": {"type": "string"},
    "application/vnd.paddle.program": {"type": "string", "format": "binary"},
    "application/vnd.paddle.program+json": {"type": "object"},
    "text/plain": {"type": "string"},
}


# Dependencies are async although nothing waits: FastAPI runs others in a thread each, half the time of a small answer.
async def get_service(request: Request) -> Service:
    """The service, and where keys are asked for the caller's part of it."""
    service: Service = request.app.state.service
    caller: Caller | None = request.scope.get(CALLER)
    return service if caller is None else view_for(service, caller)


ServiceDep = Annotated[Service, Depends(get_service)]


async def only_known_parameters(request: Request) -> None:
    """Raises BadRequest for a query parameter nobody reads: a misspelt one must not pass unseen."""
    dependant = getattr(request.scope.get("route"), "dependant", None)
    if dependant is None:
        return
    known = _parameters(dependant)
    findings = [
        Finding("unknown_parameter", f"query.{name[:80]}", "a parameter nobody reads", _one_of(known), "remove it")
        for name in dict.fromkeys(request.query_params)
        if name not in known
    ]
    if findings:
        raise BadRequest(findings[:10])


def _parameters(dependant: Dependant) -> list[str]:
    """Names of query parameters that the path or anything it depends on reads."""
    below = [name for one in dependant.dependencies for name in _parameters(one)]
    return [*(parameter.alias for parameter in dependant.query_params), *below]


def _one_of(known: Sequence[str]) -> str:
    return f"one of {', '.join(known)}" if known else "none"


def require_media_type(media_type: str, known: Sequence[str]) -> None:
    """Raises Unsupported for a content type that is not among `known` and no kind of JSON."""
    if media_type in known or (media_type.startswith("application/") and media_type.endswith("+json")):
        return
    raise Unsupported(
        f"content type {media_type[:80]!r} is not read here; send {', '.join(known)}",
        headers={"Accept-Post": ", ".join(known)},
    )


def immutable_response(request: Request, data: bytes, etag: str, media_type: str, **headers: str) -> Response:
    """200 with something that never changes, or 304 for who has it."""
    said = {"ETag": f'"{etag}"', "Cache-Control": CACHE_FOREVER, "X-Content-Type-Options": "nosniff", **headers}
    if etag_matches(request.headers.get("if-none-match", ""), said["ETag"]):
        return Response(status_code=304, headers=said)
    return Response(data, headers=said, media_type=media_type)


async def graph_response(request: Request, service: Service, document: bytes, etag: str) -> Response:
    """The graph in the form the caller likes best. `document` is the canonical JSON."""
    forms = sorted(
        FORMATS.values(), key=lambda form: form.name != "rows"
    )  # rows, unless something else is liked better
    aliases = {alias: form.name for form in forms for alias in form.media_types}
    media_type = negotiate(request.headers.get("accept", ""), list(aliases))
    name = aliases[media_type]
    shown = etag if name == "rows" else f"{etag}-{name}"
    if etag_matches(request.headers.get("if-none-match", ""), f'"{shown}"'):
        return immutable_response(request, b"", shown, media_type, Vary="Accept")
    data = document if name == "rows" else await service.write_graph(document, name)
    return immutable_response(request, data, shown, media_type, Vary="Accept")
