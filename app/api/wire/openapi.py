"""The OpenAPI document: wire types as components, and the error responses of operations."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from app.api.schemas import batches, graphs, layouts, measurements, plans, transforms, write
from app.api.schemas.batch_request import MAX_PER_AXIS, NOT_IN_BATCH
from app.api.schemas.descriptions import with_descriptions
from app.api.schemas.request import request_schema
from app.errors import ERROR_TABLE, PROBLEM_TYPE
from planner.report.schema import schema_components
from planner.request.curve_and_fit_request import MAX_BUDGETS, MEMORY_FIELDS
from planner.request.field_kinds import BUDGET, NOT_IN_SUMMARY
from planner.request.plan_request import FIELDS, GOALS, fields_of

REF = "#/components/schemas/"
ERROR_DESCRIPTIONS = {
    400: "The body does not match its content type",
    401: "Missing or invalid API key, if authentication is enabled",
    403: "The scopes of the API key do not cover the request",
    404: "Not found",
    405: "Method not allowed",
    406: "No representation matches Accept",
    408: "The body was not received in time",
    409: "The idempotency key was used with a different body, or the operation was cancelled",
    413: "A size limit is exceeded",
    415: "Unsupported content type or content encoding",
    422: "Invalid model or request",
    429: "The queue is full, or the quota of the key is exhausted; retry after Retry-After",
    500: "Internal error",
    503: "The service is draining, or the store is not writable",
}
#: Documents of other frameworks in JSON.
FOREIGN_DOCUMENTS = {"MxnetSymbol": "Symbol file of MXNet", "PaddleProgram": "Program of PaddlePaddle in JSON"}
Responses = dict[int | str, dict[str, Any]]
#: For responses with an ETag.
NOT_MODIFIED: Responses = {304: {"description": "Not modified"}}


def ref(name: str) -> dict[str, str]:
    return {"$ref": REF + name}


def problem_docs(*statuses: int) -> Responses:
    """Documentation of error responses; 401, 403, 429, 500 and 503 apply to all operations."""
    return {
        status: {"description": ERROR_DESCRIPTIONS[status], "content": {PROBLEM_TYPE: {"schema": ref("Problem")}}}
        for status in sorted({*statuses, 401, 403, 429, 500, 503})
    }


def response_docs(status: int, description: str, content: Mapping[str, Any], **headers: str) -> Responses:
    """Documentation of one success response: media type -> schema, header -> description."""
    return {
        status: {
            "description": description,
            "content": {media: {"schema": schema} for media, schema in content.items()},
            "headers": {
                name.replace("_", "-"): {"description": text, "schema": {"type": "string"}}
                for name, text in headers.items()
            },
        }
    }


def with_links(answer: Responses, pointer: str, **operations: str) -> Responses:
    """The response with links: the id at `pointer` is passed as the parameter of each operation."""
    (status,) = answer
    links = {
        operation: {"operationId": operation, "parameters": {parameter: f"$response.body#{pointer}"}}
        for operation, parameter in operations.items()
    }
    return {status: answer[status] | {"links": links}}


def body_docs(content: Mapping[str, Any], examples: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """`openapi_extra` of an operation that parses its body itself."""
    media = {name: {"schema": schema} for name, schema in content.items()}
    if examples:
        media["application/json"]["examples"] = {name: {"value": value} for name, value in examples.items()}
    return {"requestBody": {"required": True, "content": media}}


def components() -> dict[str, Any]:
    """All schemas that operations refer to."""
    bases = (plans.Open, plans.Strict)
    modules = (plans, batches, graphs, layouts, measurements)
    members = [member for module in modules for member in inspect.getmembers(module, inspect.isclass)]
    records = dict.fromkeys(record for _, record in members if issubclass(record, bases) and record not in bases)
    models: list[type[BaseModel]] = [*records, transforms.Transform]
    _, definitions = models_json_schema([(model, "validation") for model in models], ref_template=REF + "{model}")
    all_schemas: dict[str, Any] = definitions["$defs"] | schema_components(REF + "{name}")
    all_schemas["Analysis"]["properties"]["baseline"] = {"$ref": f"{REF}Measured"}
    for schema in (schema for name, schema in write.json_schemas().items() if name in ("document", "columns")):
        all_schemas |= {name: _relocated(record) for name, record in schema["$defs"].items()}
    all_schemas["Plan"]["required"] = [name for name in all_schemas["Plan"]["required"] if name not in NOT_IN_SUMMARY]
    request = _relocated(request_schema())
    all_schemas |= request.pop("$defs")
    all_schemas["Request"] = request
    all_schemas["Question"] = _question(
        request,
        "plan",
        "Question",
        "A graph and the request fields; at most one of budget, max_overhead and fits.",
        exclusive=GOALS,
    )
    all_schemas["CurveQuestion"] = _question(
        request,
        "curve",
        "CurveQuestion",
        "A graph, and the budgets to plan it at.",
        needed=("budgets",),
        budgets=BUDGETS_SCHEMA,
    )
    all_schemas["FitQuestion"] = _question(
        request,
        "fit",
        "FitQuestion",
        "A graph, the memory to fit (budget or fits), and the dimension to maximize (grow).",
        exclusive=MEMORY_FIELDS,
        grow=GROW_SCHEMA,
    )
    all_schemas["BatchQuestion"] = _batch(request)
    for name, about in FOREIGN_DOCUMENTS.items():  # named: generators of clients need distinct types
        all_schemas[name] = {"type": "object", "title": name, "description": about}
    generated: dict[str, Any] = _for_generators(with_descriptions(all_schemas))
    return generated


def _batch(request: Mapping[str, Any]) -> dict[str, Any]:
    """Schema of a batch: ids of graphs, lists of values to combine, and request fields common to all items."""
    axes = {
        "graph_ids": {"type": "array", "items": GRAPH_ID_SCHEMA, "minItems": 1, "uniqueItems": True},
        "budgets": {**BUDGETS_SCHEMA, "maxItems": MAX_PER_AXIS, "description": "budgets for every graph"},
        **{
            f"{name}s": {
                "type": "array",
                "items": FIELDS[name].kind.schema,
                "minItems": 1,
                "maxItems": MAX_PER_AXIS,
                "uniqueItems": True,
                "description": f"{name}s for every budget",
            }
            for name in ("planner", "seed")
        },
    }
    fields = {name: field for name, field in request["properties"].items() if name not in NOT_IN_BATCH}
    about = "Graphs and request fields; every combination of graph, budget, planner and seed is an item."
    named = {"title": "BatchQuestion", "description": about, "required": ["graph_ids"]}
    return {**request, **named, "properties": {**axes, **fields}}


GRAPH_ID_SCHEMA = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
BUDGETS_SCHEMA = {
    "type": "array",
    "items": BUDGET.schema,
    "minItems": 1,
    "maxItems": MAX_BUDGETS,
    "uniqueItems": True,
    "description": "fractions of the baseline peak, or bytes; 0: the minimum peak",
}
GROW_SCHEMA = {
    "type": "string",
    "minLength": 1,
    "default": "batch",
    "examples": ["batch", "sequence"],
    "description": "batch, sequence, or the name of a symbolic dimension",
}


def _question(
    request: Mapping[str, Any],
    kind: str,
    title: str,
    description: str,
    *,
    needed: Iterable[str] = (),
    exclusive: Iterable[str] = (),
    **more: Any,
) -> dict[str, Any]:
    """Schema of a plan, curve or fit: a graph or its id, the request fields of that kind, and the fields `more`."""
    graph = {"oneOf": [ref("Document"), ref("Columns")], "description": "a graph document in rows or columns"}
    graph_id = {**GRAPH_ID_SCHEMA, "description": "id of a stored graph"}
    fields = {row.name: request["properties"][row.name] for row in fields_of(kind)}
    schema = {
        **request,
        "title": title,
        "description": description,
        "properties": {"graph": graph, "graph_id": graph_id, **fields, **more},
        "required": list(needed),
    }
    together = [("graph", "graph_id"), *itertools.combinations(exclusive, 2)]
    return schema | {"not": {"anyOf": [{"required": list(pair)} for pair in together]}}


def _for_generators(schema: Any) -> Any:
    """The schema without `items: false`, which generators of clients refuse; `maxItems` closes a tuple as well."""
    if isinstance(schema, Mapping):
        kept = {name: value for name, value in schema.items() if name != "items" or value is not False}
        return {name: _for_generators(value) for name, value in kept.items()}
    return [_for_generators(entry) for entry in schema] if isinstance(schema, list) else schema


def _relocated(schema: Any) -> Any:
    """The schema with its references moved to #/components/schemas/."""
    if isinstance(schema, Mapping):
        return {
            name: value.replace("#/$defs/", REF) if name == "$ref" and isinstance(value, str) else _relocated(value)
            for name, value in schema.items()
        }
    return [_relocated(entry) for entry in schema] if isinstance(schema, list) else schema


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of the app, cached."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        document.setdefault("components", {})["schemas"] = components()
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{}, {"key": []}]  # authentication is optional in the deployment
        document["components"]["x-problems"] = {
            row.code: {"status": row.status, "title": row.title} for row in ERROR_TABLE
        }
        app.openapi_schema = document
    return app.openapi_schema
