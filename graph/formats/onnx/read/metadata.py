"""Fields without an ONNX equivalent, stored in `metadata_props` under the key `remat`, for lossless round trips.

node   {"phase":"backward","after":["a"],"annotations":{"origin":["fc1",1]}}
value  {"role":"parameter"}
model  {"gradients":[["w","grad/w"]]}
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, cast

import msgspec
import numpy as np

from graph.errors import BadGraph
from graph.ir import UNKNOWN_COST, Cost, Effect, Graph, Node, Phase, Role, Value
from graph.ops.registry.onnx_fallback import dtype_name, numpy_dtype

METADATA_KEY = "remat"
PhaseName = Literal["forward", "backward", "update"]
RecomputeHint = Literal["allow", "never", "prefer"] | None
_Pairs = tuple[tuple[int, int], ...]


class Expansion(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Original node of a decomposition: the nodes from this note on are its standard ops."""

    name: str
    op: str
    inputs: tuple[str, ...]  # "" where absent
    outputs: tuple[str, ...]
    parts: tuple[str, ...]  # ops of the nodes of the decomposition, in order
    attributes: dict[str, Any] = {}


class NodeNote(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Fields of `Node` other than op, names and attributes."""

    phase: PhaseName = "forward"
    after: tuple[str, ...] = ()  # node names
    cost: Cost = UNKNOWN_COST
    effect: Effect | None = None
    stream: str | None = None
    views: _Pairs = ()
    in_place: _Pairs = ()
    recompute: RecomputeHint = None
    heavy: bool | None = None
    gradient_reads: tuple[str, ...] | None = None
    annotations: dict[str, Any] = {}
    seeded: bool = False  # the `seed` attribute was added for other runtimes
    expands: Expansion | None = None
    unused: tuple[int, ...] = ()  # absent outputs, which have names in the file


class ValueNote(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Fields of `Value` other than name and type."""

    role: Role = Role.ACTIVATION
    bytes: int | None = None
    fixed_bytes: bool = False
    untyped: bool = False  # the type in the file only encodes `bytes`
    annotations: dict[str, Any] = {}
    stop_gradient: bool = False


class ModelNote(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Fields of `Graph` other than values and nodes."""

    order_is_given: bool = False
    gradients: tuple[tuple[str, str], ...] = ()
    annotations: dict[str, Any] = {}
    gradient_rules: dict[str, Any] = {}
    value_ids: tuple[int, ...] = ()  # id of the k-th value defined in the file; () for id k
    updates: tuple[tuple[str, str], ...] = ()  # (parameter or state, what overwrites it)
    added_outputs: int = 0  # the last outputs of the file, which are none of the graph


_Note = TypeVar("_Note", NodeNote, ValueNote, ModelNote)


def encode_note(note: msgspec.Struct) -> str:
    """The note as JSON text."""
    return msgspec.json.encode(note, enc_hook=_plain).decode()


def decode_note(text: str, kind: type[_Note], path: str) -> _Note:
    """The note parsed from JSON text. Raises BadGraph."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadGraph.one(
            "bad_note",
            f"{path}.metadata_props[{METADATA_KEY}]",
            str(error),
            "a note written by remat",
            "export the graph again, or remove the entry",
        ) from None


def node_note(graph: Graph, node: Node) -> NodeNote:
    """Note of a node: all fields without an ONNX equivalent."""
    names = graph.values
    return NodeNote(
        cast(PhaseName, node.phase.name.lower()),
        tuple(graph.nodes[n].name for n in node.after),
        node.cost,
        node.effect,
        node.stream,
        node.views,
        node.in_place,
        cast(RecomputeHint, node.recompute),
        node.heavy,
        None if node.gradient_reads is None else tuple(names[v].name for v in node.gradient_reads),
        dict(node.annotations),
    )


def value_note(value: Value) -> ValueNote:
    return ValueNote(
        value.role, value.bytes, value.fixed_bytes, value.type is None, dict(value.annotations), value.stop_gradient
    )


def node_fields(note: NodeNote, node_id: Callable[[str], int], value_id: Callable[[str], int]) -> dict[str, Any]:
    """Keyword arguments of `Builder.node` for the fields of the note."""
    return {
        "phase": Phase[note.phase.upper()],
        "after": tuple(node_id(name) for name in note.after),
        "cost": note.cost,
        "effect": note.effect,
        "stream": note.stream,
        "views": note.views,
        "in_place": note.in_place,
        "recompute": note.recompute,
        "heavy": note.heavy,
        "gradient_reads": None if note.gradient_reads is None else tuple(value_id(n) for n in note.gradient_reads),
        "annotations": note.annotations,
    }


def packed_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as JSON data; arrays become objects with dtype, shape and base64 data."""
    return {k: _packed_array(v) if isinstance(v, np.ndarray) else v for k, v in attributes.items()}


def unpacked_attributes(packed: Mapping[str, Any], path: str) -> dict[str, Any]:
    return {k: _array(v, path) if isinstance(v, dict) else v for k, v in packed.items()}


def _packed_array(array: np.ndarray) -> dict[str, Any]:
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"dtype": dtype_name(array.dtype), "shape": list(array.shape), "data": data}


def _array(packed: Mapping[str, Any], path: str) -> np.ndarray:
    try:
        data = base64.b64decode(packed["data"], validate=True)
        return np.frombuffer(data, numpy_dtype(packed["dtype"])).reshape(packed["shape"]).copy()
    except (KeyError, ValueError, TypeError) as error:
        raise BadGraph.one(
            "bad_note",
            path,
            f"an array attribute that cannot be read: {error}",
            "dtype, shape and base64 data",
            "export the graph again",
        ) from None


def _plain(value: Any) -> Any:
    """JSON data for numpy values and mappings in annotations."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be written to a file")
