"""The OpenAPI document: wire types as components, every error an operation may answer."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from app import schemas, schemas_graphs, transforms
from app.errors import PROBLEM_TYPE, TABLE

REF = "#/components/schemas/"
WHY = {
    400: "The body is not what its content type says",
    404: "There is no such thing",
    405: "This path has other methods",
    406: "No form of the answer is acceptable",
    409: "The idempotency key came with another body before, or the work was stopped",
    413: "More was sent than a limit allows",
    415: "A content type or encoding that nobody reads",
    422: "The model or the question breaks a rule",
    429: "Too much is waiting; come back after Retry-After",
    500: "A fault of ours",
    503: "Draining, or the store cannot be written",
}
Responses = dict[int | str, dict[str, Any]]
#: Beside a good answer that has an ETag.
UNCHANGED: Responses = {304: {"description": "The caller has it"}}


def ref(name: str) -> dict[str, str]:
    return {"$ref": REF + name}


def problems(*statuses: int) -> Responses:
    """Documentation of error answers; 500 and 503 may come from anywhere."""
    return {
        status: {"description": WHY[status], "content": {PROBLEM_TYPE: {"schema": ref("Problem")}}}
        for status in (*statuses, 500, 503)
    }


def answers(status: int, description: str, content: Mapping[str, Any], **headers: str) -> Responses:
    """Documentation of one good answer: media type -> schema, header -> what it says."""
    return {
        status: {
            "description": description,
            "content": {media: {"schema": schema} for media, schema in content.items()},
            "headers": {
                name.replace("_", "-"): {"description": said, "schema": {"type": "string"}}
                for name, said in headers.items()
            },
        }
    }


def links(answer: Responses, pointer: str, **operations: str) -> Responses:
    """The answer with links: the id at `pointer` is the parameter that each operation takes."""
    (status,) = answer
    said = {
        operation: {"operationId": operation, "parameters": {parameter: f"$response.body#{pointer}"}}
        for operation, parameter in operations.items()
    }
    return {status: answer[status] | {"links": said}}


def bodies(content: Mapping[str, Any], examples: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """`openapi_extra` of an operation that reads its body itself."""
    media = {name: {"schema": schema} for name, schema in content.items()}
    if examples:
        media["application/json"]["examples"] = {name: {"value": value} for name, value in examples.items()}
    return {"requestBody": {"required": True, "content": media}}


def components() -> dict[str, Any]:
    """Every schema that operations refer to."""
    bases = (schemas.Open, schemas.Strict)
    members = [*inspect.getmembers(schemas, inspect.isclass), *inspect.getmembers(schemas_graphs, inspect.isclass)]
    records = dict.fromkeys(record for _, record in members if issubclass(record, bases) and record not in bases)
    models: list[type[BaseModel]] = [*records, transforms.Transform]
    _, found = models_json_schema([(model, "validation") for model in models], ref_template=REF + "{model}")
    all_schemas: dict[str, Any] = dict(found["$defs"])
    for schema in (schema for name, schema in schemas.json_schemas().items() if name in ("document", "columns")):
        all_schemas |= {name: _relocated(record) for name, record in schema["$defs"].items()}
    all_schemas["Question"] = _question(all_schemas["Request"])
    return all_schemas


def _question(request: Mapping[str, Any]) -> dict[str, Any]:
    """The body of POST /v1/plans: the fields of a request, flat, beside a graph or the id of one."""
    graph = {"oneOf": [ref("Document"), ref("Columns")], "description": "a document, rows or columns"}
    graph_id = {"type": "string", "pattern": "^[0-9a-f]{64}$", "description": "of a graph that was posted before"}
    goals = ("budget", "max_overhead", "fits")
    two_goals = [{"required": list(pair)} for pair in itertools.combinations(goals, 2)]
    return {
        **request,
        "title": "Question",
        "description": "A graph and what is asked of it; of budget, max_overhead and fits at most one.",
        "properties": {"graph": graph, "graph_id": graph_id, **request["properties"]},
        "oneOf": [{"required": ["graph"]}, {"required": ["graph_id"]}],
        "not": {"anyOf": two_goals},
    }


def _relocated(schema: Any) -> Any:
    """The schema with references to where the components are."""
    if isinstance(schema, Mapping):
        return {
            name: value.replace("#/$defs/", REF) if name == "$ref" and isinstance(value, str) else _relocated(value)
            for name, value in schema.items()
        }
    return [_relocated(entry) for entry in schema] if isinstance(schema, list) else schema


def document_of(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of the app, made once."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        made.setdefault("components", {})["schemas"] = components()
        made["components"]["x-problems"] = {row.code: {"status": row.status, "title": row.title} for row in TABLE}
        app.openapi_schema = made
    return app.openapi_schema
