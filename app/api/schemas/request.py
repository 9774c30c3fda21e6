"""JSON Schema of a request: from the table of request fields, and from the records of a differentiation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.json_schema import models_json_schema

from app.api.schemas.plans import Strict
from planner.request.field_kinds import MAX_LENGTH, SHAPE_KINDS
from planner.request.plan_request import FIELDS

Length = Annotated[int, Field(ge=0, le=MAX_LENGTH)]


class RowsOf(Strict):
    """A gradient given as rows (IndexedSlices)."""

    rows_of: str = Field(examples=["inputs[1]"])
    count: Length


class GradientRule(Strict):
    """Inputs and outputs of the gradient op of a custom op."""

    op: str = Field("", description='type of the gradient op; default: the type of the op + "Grad"')
    reads: list[str] = Field(["incoming"], description="inputs, outputs, incoming, or one such as inputs[0]")
    writes: Literal["inputs"] | list[str | RowsOf] = Field("inputs", description="inputs that get a gradient")
    needs_all_incoming: bool = Field(False, description="whether every output must have a gradient")


class Head(Strict):
    """A constant head gradient."""

    value: Any = Field(1, description="one number for every element, or content")
    shape: list[Length] | None = None


class Differentiate(Strict):
    """Options of the differentiation; see docs/concepts/gradients.md."""

    of: list[str] | dict[str, Head | str | float | None] | None = Field(None, description="targets")
    with_respect_to: list[str] | None = Field(None, description="default: every parameter")
    head_gradients: dict[str, Head | str | float | None] | list[Head | str | float | None] = Field(
        {}, description="names of values, numbers, or null for ones; a list has one for each target"
    )
    no_gradient: list[str] = Field([], description="values at which gradients stop")
    unreachable: Literal["null", "error", "zeros"] = Field(
        "null", description="gradient of a value on which no target depends"
    )
    update: str | None = Field(None, description="optimizer; short for that of the recipe")
    gradient_rules: dict[str, GradientRule | Literal["none", "refused", "missing"]] = Field(
        {}, description="by op type; override the built-in rules"
    )
    skip: list[str] | dict[str, int | list[int]] = Field(
        [], description='nodes to leave out: names, {"first": n} or {"range": [begin, end]}'
    )
    row_sparse: list[str] | Literal["all"] = Field([], description="values whose gradient may be rows")
    mixed: Literal["error", "densify"] = Field("error", description="rows and dense parts of one gradient")
    devices: Literal["error", "copy"] = Field("error", description="parts of one gradient on different devices")
    shared: Literal["one", "copies"] = Field("one", description="values with one and the same gradient")
    versions: Literal["keep", "strict"] = Field(
        "keep", description="names that are written again before a gradient reads them"
    )


def request_schema() -> dict[str, Any]:
    """JSON Schema of a plan request."""
    _, records = models_json_schema([(Differentiate, "validation")])
    about = "One set of input shapes; overrides those of the request; see docs/concepts/several-shapes.md."
    definitions = {**records["$defs"], "ShapeSet": _object("ShapeSet", about, SHAPE_KINDS) | {"minProperties": 1}}
    about = "Fields of a request, all optional. Without a goal: lowest peak within 10% overhead."
    return {"$defs": definitions, **_object("Request", about, FIELDS)}


def _object(title: str, description: str, names: Iterable[str]) -> dict[str, Any]:
    properties = {}
    for row in (FIELDS[name] for name in names):
        default = list(row.default) if isinstance(row.default, tuple) else row.default
        properties[row.name] = {**row.kind.schema, "default": default, "description": row.description}
    about = {"title": title, "description": description}
    return {"type": "object", **about, "properties": properties, "additionalProperties": False}
