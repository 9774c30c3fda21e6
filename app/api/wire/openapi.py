"""The OpenAPI document: wire types as components, every error an operation may answer."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from app.api.schemas import batches, graphs, layouts, plans, transforms, write
from app.api.schemas.batch_request import AXES, MAX_PER_AXIS
from app.errors import ERROR_TABLE, PROBLEM_TYPE
from planner.request import curve_and_fit_request

REF = "#/components/schemas/"
ERROR_DESCRIPTIONS = {
    400: "The body is not what its content type says",
    401: "Where keys are asked for: none, or none that is good",
    403: "The key is not good for this",
    404: "There is no such thing",
    405: "This path has other methods",
    406: "No form of the answer is acceptable",
    408: "The body did not come in time",
    409: "The idempotency key came with another body before, or the work was stopped",
    413: "More was sent than a limit allows",
    415: "A content type or encoding that nobody reads",
    422: "The model or the question breaks a rule",
    429: "Too much is waiting, or the key has used up what it may; come back after Retry-After",
    500: "A fault of ours",
    503: "Draining, or the store cannot be written",
}
Responses = dict[int | str, dict[str, Any]]
#: Beside a good answer that has an ETag.
NOT_MODIFIED: Responses = {304: {"description": "The caller has it"}}


def ref(name: str) -> dict[str, str]:
    return {"$ref": REF + name}


def problem_docs(*statuses: int) -> Responses:
    """Documentation of error answers; those of keys and faults may come from anywhere."""
    return {
        status: {"description": ERROR_DESCRIPTIONS[status], "content": {PROBLEM_TYPE: {"schema": ref("Problem")}}}
        for status in sorted({*statuses, 401, 403, 429, 500, 503})
    }


def response_docs(status: int, description: str, content: Mapping[str, Any], **headers: str) -> Responses:
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


def with_links(answer: Responses, pointer: str, **operations: str) -> Responses:
    """The answer with links: the id at `pointer` is the parameter that each operation takes."""
    (status,) = answer
    said = {
        operation: {"operationId": operation, "parameters": {parameter: f"$response.body#{pointer}"}}
        for operation, parameter in operations.items()
    }
    return {status: answer[status] | {"links": said}}


def body_docs(content: Mapping[str, Any], examples: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """`openapi_extra` of an operation that reads its body itself."""
    media = {name: {"schema": schema} for name, schema in content.items()}
    if examples:
        media["application/json"]["examples"] = {name: {"value": value} for name, value in examples.items()}
    return {"requestBody": {"required": True, "content": media}}


def components() -> dict[str, Any]:
    """Every schema that operations refer to."""
    bases = (plans.Open, plans.Strict)
    rooms = (plans, batches, graphs, layouts)
    members = [member for room in rooms for member in inspect.getmembers(room, inspect.isclass)]
    records = dict.fromkeys(record for _, record in members if issubclass(record, bases) and record not in bases)
    models: list[type[BaseModel]] = [*records, transforms.Transform]
    _, found = models_json_schema([(model, "validation") for model in models], ref_template=REF + "{model}")
    all_schemas: dict[str, Any] = dict(found["$defs"])
    for schema in (schema for name, schema in write.json_schemas().items() if name in ("document", "columns")):
        all_schemas |= {name: _relocated(record) for name, record in schema["$defs"].items()}
    request = all_schemas["Request"]
    goals = ("budget", "max_overhead", "fits")
    all_schemas["Question"] = _question(
        request,
        "Question",
        "A graph and what is asked of it; of budget, max_overhead and fits at most one.",
        two_of=goals,
    )
    all_schemas["CurveQuestion"] = _question(
        request,
        "CurveQuestion",
        "A graph and the budgets it is planned at.",
        without=curve_and_fit_request.NOT_IN_CURVE,
        needed=("budgets",),
        budgets=_budgets(request["properties"]["budget"]),
    )
    all_schemas["FitQuestion"] = _question(
        request,
        "FitQuestion",
        "A graph, the memory to fit, in budget or fits, and what grows until it does not.",
        without=curve_and_fit_request.NOT_IN_FIT,
        two_of=("budget", "fits"),
        grow=GROW_SCHEMA,
    )
    all_schemas["BatchQuestion"] = _batch(request, _budgets(request["properties"]["budget"]))
    return all_schemas


def _batch(request: Mapping[str, Any], budgets: Mapping[str, Any]) -> dict[str, Any]:
    """A body: ids of graphs, what varies over the items, and the fields of a request that they share."""
    one_graph = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
    said = {name: {**request["properties"][name], "description": None} for name in ("planner", "seed")}
    axes = {
        "graph_ids": {"type": "array", "items": one_graph, "minItems": 1, "uniqueItems": True},
        "budgets": {**budgets, "maxItems": MAX_PER_AXIS, "description": "each of every graph"},
        **{
            f"{name}s": {
                "type": "array",
                "items": {key: field[key] for key in field if key not in ("default", "description")},
                "minItems": 1,
                "maxItems": MAX_PER_AXIS,
                "uniqueItems": True,
                "description": "each of every budget",
            }
            for name, field in said.items()
        },
    }
    fields = {name: field for name, field in request["properties"].items() if name not in (*AXES.values(), "return")}
    about = "Graphs, and what is asked of each: every combination is an item."
    named = {"title": "BatchQuestion", "description": about, "required": ["graph_ids"]}
    return {**request, **named, "properties": {**axes, **fields}}


GROW_SCHEMA = {
    "type": "string",
    "minLength": 1,
    "default": "batch",
    "examples": ["batch", "sequence"],
    "description": "batch, sequence, or the name of a dimension that is left open",
}


def _budgets(budget: Mapping[str, Any]) -> dict[str, Any]:
    one = {"anyOf": [form for form in budget["anyOf"] if form != {"type": "null"}]}
    return {
        "type": "array",
        "items": one,
        "minItems": 1,
        "maxItems": curve_and_fit_request.MAX_BUDGETS,
        "uniqueItems": True,
        "description": "each a share of the baseline peak, or bytes; 0: the lowest peak",
    }


def _question(
    request: Mapping[str, Any],
    title: str,
    description: str,
    *,
    without: Iterable[str] = (),
    needed: Iterable[str] = (),
    two_of: Iterable[str] = (),
    **more: Any,
) -> dict[str, Any]:
    """A body: the fields of a request but some, flat, and more, beside a graph or the id of one."""
    graph = {"oneOf": [ref("Document"), ref("Columns")], "description": "a document, rows or columns"}
    graph_id = {"type": "string", "pattern": "^[0-9a-f]{64}$", "description": "of a graph that was posted before"}
    fields = {name: field for name, field in request["properties"].items() if name not in without}
    made = {
        **request,
        "title": title,
        "description": description,
        "properties": {"graph": graph, "graph_id": graph_id, **fields, **more},
        "oneOf": [{"required": ["graph", *needed]}, {"required": ["graph_id", *needed]}],
    }
    pairs = [{"required": list(pair)} for pair in itertools.combinations(two_of, 2)]
    return made | ({"not": {"anyOf": pairs}} if pairs else {})


def _relocated(schema: Any) -> Any:
    """The schema with references to where the components are."""
    if isinstance(schema, Mapping):
        return {
            name: value.replace("#/$defs/", REF) if name == "$ref" and isinstance(value, str) else _relocated(value)
            for name, value in schema.items()
        }
    return [_relocated(entry) for entry in schema] if isinstance(schema, list) else schema


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of the app, made once."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        made.setdefault("components", {})["schemas"] = components()
        made["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{}, {"key": []}]  # the service says whether it asks for one
        made["components"]["x-problems"] = {row.code: {"status": row.status, "title": row.title} for row in ERROR_TABLE}
        app.openapi_schema = made
    return app.openapi_schema
