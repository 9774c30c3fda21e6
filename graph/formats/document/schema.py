"""Records of the document `remat/1`: the wire contract. `schemas/` holds the JSON Schemas derived from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

ROWS: Literal["remat/1"] = "remat/1"
COLUMNS: Literal["remat/1-columns"] = "remat/1-columns"

Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Id = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]  # index into another list of the document
IdOrAbsent = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
SizeOrUnknown = Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)]
Text = Annotated[str, msgspec.Meta(min_length=1)]
RoleWord = Literal["input", "parameter", "constant", "state", "activation"]
PhaseWord = Literal["forward", "backward", "update"]
EffectWord = Literal["pure", "random", "once", "collective", "unstable"]
RecomputeWord = Literal["allow", "never", "prefer"]
OrderWord = Literal["free", "given"]
NamingWord = Literal["single", "mutable"]
Opset = dict[str, Annotated[int, msgspec.Meta(ge=1, le=10_000)]]
Opaque = dict[str, Any]


class ValueRow(msgspec.Struct, forbid_unknown_fields=True, gc=False, omit_defaults=True):
    """A value: shape and dtype, or bytes; all may be left out where type inference finds them."""

    name: Text
    shape: list[Size | Text] | None = None  # a string is a named dimension, bound by the caller
    dtype: str | None = None
    role: RoleWord = "activation"
    bytes: Size | None = None
    fixed_bytes: bool = False
    data: str | None = None  # base64, little endian, row-major; sub-byte elements packed, low bits first
    annotations: Opaque | None = None
    stop_gradient: bool = False


class CostRow(msgspec.Struct, forbid_unknown_fields=True, gc=False, omit_defaults=True):
    """Measured or estimated cost of one run; null where unknown."""

    seconds: Seconds | None = None
    flops: Size | None = None
    traffic_bytes: Size | None = None
    workspace_bytes: Size | None = None


class BodyRow(msgspec.Struct, forbid_unknown_fields=True, gc=False, omit_defaults=True):
    """A nested graph; `captures` binds names inside to names outside."""

    inputs: list[Text]
    nodes: list[NodeRow]
    outputs: list[Text]
    values: list[ValueRow] = []
    captures: dict[str, str] = {}
    name: str = ""
    annotations: Opaque | None = None


class NodeRow(msgspec.Struct, forbid_unknown_fields=True, gc=False, omit_defaults=True):
    """One run of an op. `alias_of`, `in_place` and `takeover` bind an output's name to those of inputs."""

    name: Text
    op: Text
    inputs: list[str]
    outputs: list[str]
    attributes: Opaque | None = None
    phase: PhaseWord = "forward"
    after: list[Text] = []
    cost: CostRow | None = None
    effect: EffectWord | None = None
    stream: Text | None = None
    alias_of: dict[str, str] = {}
    in_place: dict[str, str] = {}
    recompute: RecomputeWord | None = None
    heavy: bool | None = None
    gradient_reads: list[Text] | None = None  # names; inputs[i] or outputs[i] for a name that is input and output
    bodies: dict[str, BodyRow] = {}
    annotations: Opaque | None = None
    takeover: dict[str, list[str]] = {}


class Document(msgspec.Struct, forbid_unknown_fields=True, gc=False, omit_defaults=True):
    """A graph as rows."""

    format: Literal["remat/1"]
    values: list[ValueRow]
    nodes: list[NodeRow]
    outputs: list[Text]
    name: str = ""
    opset: Opset | None = None
    order: OrderWord = "free"
    naming: NamingWord = "single"
    inputs: list[Text] | None = None  # order of the graph's inputs; null: the order of `values`
    gradients: dict[str, str] = {}  # parameter -> its gradient, after differentiation
    annotations: Opaque | None = None
    gradient_rules: Opaque = {}  # op -> declared gradient rule: the gradient op, its reads and writes


class ValueExtras(msgspec.Struct, forbid_unknown_fields=True, gc=False, omit_defaults=True):
    """Rare fields of a value in columns."""

    data: str | None = None
    annotations: Opaque | None = None
    stop_gradient: bool = False


class NodeExtras(msgspec.Struct, forbid_unknown_fields=True, gc=False, omit_defaults=True):
    """Rare fields of a node in columns, with the meaning they have in `NodeRow`."""

    attributes: Opaque | None = None
    stream: Text | None = None
    heavy: bool | None = None
    gradient_reads: list[Text] | None = None
    bodies: dict[str, BodyRow] = {}
    annotations: Opaque | None = None
    takeover: dict[str, list[str]] = {}


class Extras(msgspec.Struct, forbid_unknown_fields=True, gc=False, omit_defaults=True):
    """Rare fields by index of the value or node, as a decimal string."""

    values: dict[str, ValueExtras] = {}
    nodes: dict[str, NodeExtras] = {}


class Columns(msgspec.Struct, forbid_unknown_fields=True, gc=False, omit_defaults=True):
    """A graph as columns (CSR). An omitted column holds its default in every row.

    Names and ops are indices into `strings`; row i of a pointer is the range [pointer[i], pointer[i + 1]).
    """

    format: Literal["remat/1-columns"]
    strings: list[str]
    value_name: list[Id]
    node_name: list[Id]
    node_op: list[Id]
    input_pointer: list[Id]
    input_index: list[IdOrAbsent]
    output_pointer: list[Id]
    output_index: list[IdOrAbsent]
    output_values: list[Id]
    value_role: list[RoleWord] | None = None
    value_dtype: list[str | None] | None = None  # null: no dtype and no shape
    value_shape_pointer: list[Id] | None = None
    value_shape: list[Size | Text] = []
    value_bytes: list[SizeOrUnknown] | None = None  # -1: unknown
    value_fixed_bytes: list[bool] | None = None
    node_phase: list[PhaseWord] | None = None
    node_seconds: list[Seconds | None] | None = None
    node_flops: list[SizeOrUnknown | None] | None = None
    node_traffic_bytes: list[SizeOrUnknown | None] | None = None
    node_workspace_bytes: list[SizeOrUnknown | None] | None = None
    node_effect: list[EffectWord | None] | None = None  # null: the effect in the op table
    node_recompute: list[RecomputeWord | None] | None = None
    after_pointer: list[Id] | None = None
    after_index: list[Id] = []
    alias_output: list[Id] = []  # output value of the k-th alias
    alias_input: list[Id] = []  # input value whose storage it shares
    alias_in_place: list[bool] = []  # true: written in place; false: a view
    input_values: list[Id] | None = None
    gradients: list[tuple[Id, Id]] = []
    extras: Extras = msgspec.field(default_factory=Extras)
    name: str = ""
    opset: Opset | None = None
    order: OrderWord = "free"
    annotations: Opaque | None = None
    gradient_rules: Opaque = {}


def json_schemas() -> dict[str, dict[str, Any]]:
    """JSON Schemas by name: "document" (rows) and "columns"."""
    named = {"document": Document, "columns": Columns}
    return {
        name: {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(record)}
        for name, record in named.items()
    }


def write_schemas() -> None:
    """Regenerate the files of `graph/formats/document/schemas`."""
    for name, schema in json_schemas().items():
        path = Path(__file__).parent / "schemas" / f"{name}.json"
        path.write_text(json.dumps(schema, indent=1) + "\n")


if __name__ == "__main__":
    write_schemas()
