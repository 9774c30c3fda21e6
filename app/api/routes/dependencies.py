"""Shared parts of routes: the service, parameter checks, negotiated graphs, immutable responses."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import Depends, Header, Query, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from app.api.auth.middleware import CALLER
from app.api.auth.tenant_view import Caller, view_for
from app.api.service.service import Service
from app.api.wire.negotiation import etag_matches, negotiate
from app.api.wire.openapi import Responses, problem_docs, ref, response_docs
from app.errors import Unsupported, expected_by, problem_body
from app.models.formats import FORMATS
from app.models.json_object import decode_object
from app.store.listing import CURSOR_PATTERN, PageRequest, Rows
from app.store.tables import to_timestamp
from graph.errors import MAX_FINDINGS, Finding, Findings
from planner.errors import BadRequest

Record = TypeVar("Record", bound=BaseModel)
TIME_PATTERN = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:[0-9]{2})?)?$"
GraphFilter = Annotated[str | None, Query(description="id of a graph")]
CACHE_FOREVER = "public, max-age=31536000, immutable"
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        description="key that makes retries with the same body idempotent",
    ),
]
#: Media type -> schema of graph responses.
GRAPH_CONTENT: dict[str, Any] = {
    "application/json": ref("Document"),
    "application/vnd.remat.columns+json": ref("Columns"),
    "application/vnd.remat.mutable+json": ref("Document"),
    "application/msgpack": {"type": "string", "format": "binary"},
    "application/onnx": {"type": "string", "format": "binary"},
    "application/vnd.mxnet.symbol+json": ref("MxnetSymbol"),
    "application/vnd.caffe2.net": {"type": "string", "format": "binary"},
    "application/vnd.caffe2.net+text": {"type": "string"},
    "application/vnd.paddle.program": {"type": "string", "format": "binary"},
    "application/vnd.paddle.program+json": ref("PaddleProgram"),
    "text/plain": {"type": "string"},
}


# Dependencies are async although they do not wait: FastAPI runs sync ones in threads, which doubles the response time.
async def get_service(request: Request) -> Service:
    """The service, or the tenant view of the caller if authentication is enabled."""
    service: Service = request.app.state.service
    caller: Caller | None = request.scope.get(CALLER)
    return service if caller is None else view_for(service, caller)


ServiceDep = Annotated[Service, Depends(get_service)]


async def only_known_parameters(request: Request) -> None:
    """Raises BadRequest for unknown query parameters, such as misspelt ones."""
    dependant = getattr(request.scope.get("route"), "dependant", None)
    if dependant is None:
        return
    known = _parameters(dependant)
    findings = [
        Finding("unknown_parameter", f"query.{name[:80]}", "unknown parameter", _one_of(known), "remove it")
        for name in dict.fromkeys(request.query_params)
        if name not in known
    ]
    if findings:
        raise BadRequest(findings[:10])


def _parameters(dependant: Dependant) -> list[str]:
    """Names of the query parameters of a route and its dependencies."""
    inherited = [name for dependency in dependant.dependencies for name in _parameters(dependency)]
    return [*(parameter.alias for parameter in dependant.query_params), *inherited]


def parameter_problem(request: Request, error: RequestValidationError) -> dict[str, Any]:
    """The problem object of invalid path, query or header parameters, with the first fault of each."""
    meanings, findings = _descriptions(getattr(request.scope.get("route"), "dependant", None)), dict[str, Finding]()
    for issue in error.errors():
        where, name, *inner = issue["loc"]
        path = ".".join(map(str, (where, name, *(part for part in inner if isinstance(part, int)))))
        remedy = "correct the parameter" + (f": {meanings[name]}" if name in meanings else "")
        given, expected = repr(issue.get("input"))[:80], expected_by(issue["msg"])
        findings.setdefault(path, Finding("bad_parameter", path, given, expected, remedy))
    detail, found = "\n".join(map(str, findings.values())), list(findings.values())
    return problem_body(422, "bad_parameter", "Invalid parameter", detail, request.url.path, findings=found)


def _descriptions(dependant: Dependant | None) -> dict[str, str]:
    """Description of each documented parameter of a route and its dependencies, by name."""
    if dependant is None:
        return {}
    own = (*dependant.query_params, *dependant.path_params, *dependant.header_params)
    found = {one.alias: one.field_info.description for one in own if one.field_info.description}
    for dependency in dependant.dependencies:
        found |= _descriptions(dependency)
    return found


def _one_of(known: Sequence[str]) -> str:
    return f"one of {', '.join(known)}" if known else "none"


def require_media_type(media_type: str, known: Sequence[str]) -> None:
    """Raises Unsupported for a content type that is neither in `known` nor application/*+json."""
    if media_type in known or (media_type.startswith("application/") and media_type.endswith("+json")):
        return
    raise Unsupported(
        f"unsupported content type {media_type[:80]!r}; send {', '.join(known)}",
        headers={"Accept-Post": ", ".join(known)},
    )


def validated(record: type[Record], body: bytes, remedy: str) -> Record:
    """The JSON object of a body as a record. Raises Unparseable, BadRequest."""
    try:
        return record.model_validate(decode_object(body, dict[str, Any]))
    except ValidationError as error:
        findings = Findings()
        for fault in error.errors(include_url=False)[:MAX_FINDINGS]:
            path = ".".join(map(str, fault["loc"])) or "body"
            findings.add("bad_field", path, repr(fault.get("input"))[:80], expected_by(fault["msg"]), remedy)
        raise BadRequest(findings.kept) from None


def immutable_response(request: Request, data: bytes, etag: str, media_type: str, **headers: str) -> Response:
    """200 with an immutable body, or 304 if If-None-Match has the ETag."""
    all_headers = {"ETag": f'"{etag}"', "Cache-Control": CACHE_FOREVER, "X-Content-Type-Options": "nosniff", **headers}
    if etag_matches(request.headers.get("if-none-match", ""), all_headers["ETag"]):
        return Response(status_code=304, headers=all_headers)
    return Response(data, headers=all_headers, media_type=media_type)


async def graph_response(request: Request, service: Service, document_key: str, etag: str) -> Response:
    """The graph in the format negotiated by Accept. `document_key` is the blob of the canonical JSON."""
    forms = sorted(FORMATS.values(), key=lambda form: form.name != "rows")  # rows is the default
    aliases = {alias: form.name for form in forms for alias in form.media_types}
    media_type = negotiate(request.headers.get("accept", ""), list(aliases))
    name = aliases[media_type]
    format_etag = etag if name == "rows" else f"{etag}-{name}"
    if etag_matches(request.headers.get("if-none-match", ""), f'"{format_etag}"'):
        return immutable_response(request, b"", format_etag, media_type, Vary="Accept")
    data = await service.write_graph(document_key, name)
    return immutable_response(request, data, format_etag, media_type, Vary="Accept")


def time_parameter(meaning: str, alias: str | None = None) -> Any:
    """A query parameter with a time, which `utc_time` reads."""
    described = f"{meaning} (ISO 8601), such as 2026-01-31T12:00:00Z"
    return Query(alias=alias, pattern=TIME_PATTERN, description=described)


async def page_request(
    limit: Annotated[int, Query(ge=1, le=1000, description="page size")] = 100,
    cursor: Annotated[str | None, Query(pattern=CURSOR_PATTERN, description="`next` of the previous page")] = None,
    created_after: Annotated[str | None, time_parameter("earliest creation time, inclusive")] = None,
) -> PageRequest:
    """Dependency of lists."""
    if cursor is not None:
        utc_time(cursor.partition("~")[0], "query.cursor")
    return PageRequest(limit, cursor, utc_time(created_after, "query.created_after"))


PageDep = Annotated[PageRequest, Depends(page_request)]


def page_response(name: str, page: Rows) -> Response:
    """200 with the rows of a page under `name`."""
    body = {name: page.rows, "next": page.next}
    return Response(msgspec.json.encode(body), 200, {"Cache-Control": "no-store"}, "application/json")


def page_docs(schema: str) -> Responses:
    """Documentation of the responses of a list."""
    return response_docs(200, "A page, newest first", {"application/json": ref(schema)}) | problem_docs(422)


def utc_time(text: str | None, path: str) -> str | None:
    """The time in wire format; times without an offset are UTC. Raises BadRequest."""
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
        return to_timestamp(time if time.tzinfo else time.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        raise BadRequest.one("bad_parameter", path, text, "a time from the year 1 to 9999", "correct it") from None
