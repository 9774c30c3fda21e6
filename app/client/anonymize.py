"""Anonymize a model before it is sent to a service, and restore names and contents in the responses.

Graph ──▶ weights removed ──▶ names hashed (optional) ──▶ document ──▶ service
response with the caller's names and weights ◀── restored ◀───────────────╯
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from app.errors import about_file
from graph.autodiff.gradients.registry import GRADIENT_RULES
from graph.errors import BadGraph
from graph.formats.document.tensor_content import encode_array
from graph.formats.native.identity import GRAPH_NAME, with_model_name
from graph.formats.native.writer import canonical
from graph.formats.readers import importer_of, load, name_of_file
from graph.ir import IMPORT_WARNINGS, Body, Graph, Node, Value, walk
from graph.ir.names import reserve_name, unique_name
from graph.limits import Limits, ShapeOverrides
from graph.ops.registry.onnx_fallback import dtype_name
from graph.ops.registry.registry import find_op
from graph.ssa.lookup import find_value
from graph.training.loss import CrossEntropy
from graph.training.roles import ROLE_ANNOTATIONS, matching_names
from planner.request.plan_request import FIELDS

# Imports inside functions: the client plans nothing; onnx is loaded when a graph is read.

IMPORTER_ANNOTATION = "imported_from"  # annotation that names the framework of the original file
HIDDEN_OPS = "hidden::"  # domain of custom ops with hashed names
HASHED_NAME = re.compile(r"(?:hidden::)?(h_[0-9a-f]{24})")

MAX_SHAPE_ELEMENTS = 1024  # elements of an integer list that counts as a shape or axes
MAX_ATTRIBUTE_ELEMENTS = 16  # elements of an attribute; longer float lists may be weights
#: (op, input slot) whose contents configure the op and are never weights.
STRUCTURAL_INPUTS = frozenset({("Resize", 1), ("Resize", 2), ("Upsample", 1)})

#: Annotations that `graph` reads: with keywords and numbers, and with names of values or nodes (warnings as a whole).
KNOWN_ANNOTATIONS = frozenset(
    {
        "device",
        "copied_from",
        "process_mesh",
        "dims_mapping",
        "last_trip_first",
        "max_length",
        "max_trips",
        "recomputed",
        IMPORTER_ANNOTATION,
    }
)
NAME_ANNOTATIONS = (
    frozenset({"version_of", "gradient_of", "finalises_gradient_of", "origin", "checkpoints", IMPORT_WARNINGS})
    | ROLE_ANNOTATIONS
    | {GRAPH_NAME}
)

#: Fields of a request, and of its `differentiate`, that hold names of values or nodes.
NAME_FIELDS = tuple(name for name, row in FIELDS.items() if row.kind.names_values == "all")
NAME_OPTIONS = ("of", "with_respect_to", "head_gradients", "no_gradient")

Model = str | os.PathLike[str] | bytes | Mapping[str, Any] | Graph


class PreparedModel:
    """A model as it is sent, `document`, and the table that restores responses.

    Contents of parameters and constants are removed, except shapes, axes and scalars. With a `names_key`, names of
    values, nodes, custom ops, streams and annotations are replaced by keyed hashes.
    """

    def __init__(self, graph: Graph, names_key: bytes | None = None):
        self._graph = graph
        self._contents: dict[str, np.ndarray] = {}  # sent name -> removed content
        self._hasher = None if names_key is None else _NameHasher(names_key)
        self._count = Counter(value.name for part in walk(graph) for value in part.values)
        self._taken = set(self._count)
        self.document = canonical(self._sent(graph, is_outermost=True))

    @classmethod
    def of(
        cls, model: Model, shapes: ShapeOverrides | None = None, names_key: bytes | None = None, name: str | None = None
    ) -> PreparedModel:
        """Read a model with these shapes; a framework's file is called by the file, without `name`.

        Raises BadGraph, OSError.
        """
        if isinstance(model, Graph):
            return cls(with_model_name(model, name), names_key)
        if isinstance(model, Mapping):
            data = msgspec.json.encode(model)
        elif isinstance(model, bytes):
            data = model
        else:
            with about_file(model):
                data = Path(model).read_bytes()
        graph, origin = load(data, Limits(), shapes), importer_of(data)
        if origin != "native":  # the service then differentiates it as it would the file
            graph = structs.replace(graph, annotations={**graph.annotations, IMPORTER_ANNOTATION: origin})
        if name is None and isinstance(model, str | os.PathLike):
            name = name_of_file(model, data)
        return cls(with_model_name(graph, name), names_key)

    def fields(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Request fields with the names that are sent."""
        fields = dict(request)
        if self._hasher is None:
            return fields
        for name in {"trainable", "frozen"} & set(fields):
            fields[name] = matching_names(self._graph, fields[name]) or fields[name]
        for name in set(NAME_FIELDS) & set(fields):
            loss = CrossEntropy.of(self._graph, fields[name]) if name == "loss" and fields[name] else None
            fields[name] = self._hash_references(fields[name] if loss is None else loss.output)
            if loss is not None:
                fields[name] = str(replace(loss, output=fields[name]))
        if isinstance(options := fields.get("differentiate"), Mapping):
            fields["differentiate"] = self._options(dict(options))
        return fields

    def restore(self, data: Any) -> Any:
        """Response data with the caller's names, and with contents in its graphs."""
        if isinstance(data, Mapping):
            documents = [data, *(data[name] for name in ("source", "graph") if isinstance(data.get(name), Mapping))]
            for document in documents:
                if str(document.get("format", "")).startswith("remat/1") and "nodes" in document:
                    self._fill(document)
                    if self._hasher is not None:
                        document["opset"] = {**self._graph.opset, **document.get("opset", {})}
        return data if self._hasher is None else _map_strings(data, self._hasher.restored)

    def _sent(self, graph: Graph, is_outermost: bool = False) -> Graph:
        uses: dict[int, set[tuple[str, int]]] = {}
        for node in graph.nodes:
            for i, v in enumerate(node.inputs):
                uses.setdefault(v, set()).add((node.op, i))
        values = tuple(self._value(value, uses.get(v, set()), is_outermost) for v, value in enumerate(graph.values))
        nodes = tuple(map(self._node, graph.nodes))
        if self._hasher is None:
            return structs.replace(graph, values=values, nodes=nodes)
        hashed = self._hasher.hashed
        return structs.replace(
            graph,
            values=values,
            nodes=nodes,
            name=hashed(graph.name),
            annotations=self._hash_annotations(graph.annotations),
            opset={domain: version for domain, version in graph.opset.items() if domain in ("", "ai.onnx.ml")},
            gradient_rules={self._op(op): self._rule(rule) for op, rule in graph.gradient_rules.items()},
        )

    def _value(self, value: Value, uses: set[tuple[str, int]], is_outermost: bool) -> Value:
        name = value.name
        removed = value.data is not None and not _is_argument(value.data, uses)
        if removed and not is_outermost and self._count[name] > 1:  # the name identifies the content
            name = reserve_name(name, self._taken)
        if self._hasher is not None:
            name = self._hasher.hashed(name)
        if removed and value.data is not None:
            self._contents[name] = value.data
        data, annotations = None if removed else value.data, self._hash_annotations(value.annotations)
        return structs.replace(value, name=name, data=data, annotations=annotations)

    def _node(self, node: Node) -> Node:
        for name, attribute in node.attributes.items():
            if _holds_weights(attribute):
                raise BadGraph.one(
                    "weights_in_attribute",
                    f"nodes.{node.name}.attributes.{name}",
                    "numbers that may be weights",
                    f"at most {MAX_ATTRIBUTE_ELEMENTS} numbers",
                    "make them a constant; contents of constants are not sent",
                )
        bodies = {key: Body(self._sent(body.graph), body.captures) for key, body in node.bodies.items()}
        node = structs.replace(node, bodies=bodies) if bodies else node
        if self._hasher is None:
            return node
        hashed = self._hasher.hashed
        attributes = node.attributes if _is_known(node.op) else _map_strings(node.attributes, hashed)
        return structs.replace(
            node,
            name=hashed(node.name),
            op=self._op(node.op),
            attributes=attributes,
            stream=None if node.stream is None else hashed(node.stream),
            annotations=self._hash_annotations(node.annotations),
        )

    def _op(self, op: str) -> str:
        return op if self._hasher is None or _is_known(op) else HIDDEN_OPS + self._hasher.hashed(op)

    def _rule(self, rule: Any) -> Any:
        return {**rule, "op": self._op(rule["op"])} if isinstance(rule, Mapping) and rule.get("op") else rule

    def _hash_annotations(self, annotations: Mapping[str, Any]) -> Mapping[str, Any]:
        """Annotations with every string hashed, except keys and values that `graph` reads."""
        if self._hasher is None:
            return annotations
        hashed, result = self._hasher.hashed, {}
        for name, entry in annotations.items():
            key = name if name in KNOWN_ANNOTATIONS or name in NAME_ANNOTATIONS else hashed(name)
            result[key] = entry if name in KNOWN_ANNOTATIONS else _map_strings(entry, hashed)
        return result

    def _hash_references(self, data: Any) -> Any:
        return _map_strings(data, self._hash_reference)

    def _hash_reference(self, text: str) -> str:
        """Hash of a value's name; a version `y@2` is resolved first, because the service only has hashes."""
        assert self._hasher is not None
        if text not in self._count and "@" in text:
            with contextlib.suppress(BadGraph):  # unknown names are reported by the service
                text = self._graph.values[find_value(self._graph, text, "request")].name
        return self._hasher.hashed(text)

    def _options(self, options: dict[str, Any]) -> dict[str, Any]:
        for name in set(NAME_OPTIONS) & set(options):
            options[name] = _map_targets(options[name], self._hash_reference)
        for name in ("skip", "row_sparse"):
            if isinstance(options.get(name), list | tuple):
                options[name] = self._hash_references(options[name])
        if isinstance(rules := options.get("gradient_rules"), Mapping):
            options["gradient_rules"] = {self._op(op): self._rule(rule) for op, rule in rules.items()}
        return options

    def _fill(self, document: Any) -> None:
        """Restore the contents of constants in a graph document and its bodies."""
        for row in document.get("values", ()):
            if row.get("role") == "constant" and row.get("data") is None:
                content = self._content(row)
                if content is not None:
                    row["data"] = encode_array(content)
        for node in document.get("nodes", ()):
            for body in (node.get("bodies") or {}).values():
                self._fill(body)

    def _content(self, row: Mapping[str, Any]) -> np.ndarray | None:
        """Removed content of the value, or of the value it is a copy of."""
        name = row["name"]
        while name not in self._contents and (shorter := re.sub(r"/(\d+|copy)$", "", name)) != name:
            name = shorter
        content = self._contents.get(name)
        if content is None or (row.get("dtype"), row.get("shape")) != (dtype_name(content.dtype), [*content.shape]):
            return None
        return content


class _NameHasher:
    """Keyed hashes of names, and the names they stand for."""

    def __init__(self, key: bytes):
        self.key = key
        self._names: dict[str, str] = {}  # hash -> name
        self._taken: set[str] = set()
        self._derived: dict[str, str] = {}  # name that the service derived from hashes -> restored name

    def hashed(self, name: str) -> str:
        if not name:
            return name
        digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=12, key=self.key)
        token = f"h_{digest.hexdigest()}"
        self._names[token] = name
        self._taken.add(name)
        return token

    def restored(self, text: str) -> str:
        """The text with names in place of hashes. A derived name never collides with a name of the caller."""
        if text in self._names:
            return self._names[text]
        restored = HASHED_NAME.sub(lambda token: self._names.get(token[1], token[0]), text)
        if restored == text or text.startswith(HIDDEN_OPS) or any(map(str.isspace, text)):
            return restored
        if text not in self._derived:
            self._derived[text] = unique_name(restored, self._taken)
            self._taken.add(self._derived[text])
        return self._derived[text]


def _map_strings(data: Any, change: Callable[[str], str]) -> Any:
    """Plain data with `change` applied to every string, keys included."""
    if isinstance(data, str):
        return change(data)
    if isinstance(data, Mapping):
        return {
            change(name) if isinstance(name, str) else name: _map_strings(inner, change) for name, inner in data.items()
        }
    return [_map_strings(inner, change) for inner in data] if isinstance(data, list | tuple) else data


def _map_targets(data: Any, change: Callable[[str], str]) -> Any:
    """Targets and head gradients with `change` applied to names, but not to the fields of a constant head."""
    if isinstance(data, Mapping):
        return {
            change(name): head if isinstance(head, Mapping) else _map_strings(head, change)
            for name, head in data.items()
        }
    if isinstance(data, list | tuple):
        return [head if isinstance(head, Mapping) else _map_strings(head, change) for head in data]
    return _map_strings(data, change)


def _is_known(op: str) -> bool:
    """Whether the op is public: of the registry, of ONNX, or with a gradient rule."""
    if find_op(op) is not None or op in GRADIENT_RULES or op.startswith("remat::"):
        return True
    from onnx import defs

    domain, _, name = op.rpartition("::")
    return bool(defs.has(name, domain))


def _is_argument(data: np.ndarray, uses: set[tuple[str, int]]) -> bool:
    """Whether shapes or gradients depend on the content: scalars, shapes, axes and the like."""
    if data.size <= 1 or (uses and uses <= STRUCTURAL_INPUTS):
        return True
    return data.ndim == 1 and data.size <= MAX_SHAPE_ELEMENTS and data.dtype in (np.int64, np.int32, np.bool_)


def _holds_weights(attribute: Any) -> bool:
    if isinstance(attribute, np.ndarray):
        return attribute.size > 1 and not _is_argument(attribute, set())
    if isinstance(attribute, bytes):
        return len(attribute) > MAX_ATTRIBUTE_ELEMENTS
    if isinstance(attribute, list | tuple):
        return len(attribute) > MAX_ATTRIBUTE_ELEMENTS and any(isinstance(number, float) for number in attribute)
    return False
