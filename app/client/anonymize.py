"""What of a model leaves the house, and how what is said of it comes back.

Graph ──▶ contents taken out ──▶ names hashed, if wanted ──▶ document ──▶ service
answer with the caller's names and contents ◀── put back ◀──────────────────╯
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

from graph.autodiff.gradients.registry import GRADIENT_RULES
from graph.errors import BadGraph
from graph.formats.document.tensor_content import encode_array
from graph.formats.native.writer import canonical
from graph.formats.readers import importer_of, load
from graph.ir import Body, Graph, Node, Value, walk
from graph.ir.names import reserve_name, unique_name
from graph.limits import Limits, ShapeOverrides
from graph.ops.registry.onnx_fallback import dtype_name
from graph.ops.registry.registry import find_op
from graph.ssa.lookup import find_value

# Imports inside functions: the client plans nothing; onnx is loaded when a graph is read.

IMPORTER_ANNOTATION = "imported_from"  # annotation by which the service knows a framework's file
HIDDEN_OPS = "hidden::"  # domain of ops nobody knows, once their names are hashed
HASHED_NAME = re.compile(r"(?:hidden::)?(h_[0-9a-f]{24})")

MAX_SHAPE_ELEMENTS = 1024  # elements of a list of whole numbers that is a shape, axes or such
MAX_ATTRIBUTE_ELEMENTS = 16  # elements of an attribute that no training changes
#: (op, input) whose numbers say how the op works, not what was learned.
STRUCTURAL_INPUTS = frozenset({("Resize", 1), ("Resize", 2), ("Upsample", 1)})

#: Annotations the graph room reads: those that hold words and numbers, and those that hold names.
KNOWN_ANNOTATIONS = frozenset(
    {
        "device",
        "copied_from",
        "process_mesh",
        "dims_mapping",
        "last_trip_first",
        "max_trips",
        "recomputed",
        IMPORTER_ANNOTATION,
    }
)
NAME_ANNOTATIONS = frozenset({"version_of", "gradient_of", "finalises_gradient_of", "origin", "checkpoints"})

#: Fields of a request, and of its `differentiate`, that hold names of values or nodes.
NAME_FIELDS = ("loss", "checkpoints", "keep", "recompute")
NAME_OPTIONS = ("of", "with_respect_to", "head_gradients", "no_gradient")

Model = str | os.PathLike[str] | bytes | Mapping[str, Any] | Graph


class PreparedModel:
    """One model on its way out, and the way back: `document` is all that is sent of it.

    Contents of parameters and constants stay, but for shapes, axes and single numbers. With a `names_key`,
    names of values, nodes, ops nobody knows, streams and annotations become keyed hashes as well.
    """

    def __init__(self, graph: Graph, names_key: bytes | None = None):
        self._graph = graph
        self._contents: dict[str, np.ndarray] = {}  # sent name -> what stayed
        self._words = None if names_key is None else _NameHasher(names_key)
        self._count = Counter(value.name for part in walk(graph) for value in part.values)
        self._taken = set(self._count)
        self.document = canonical(self._sent(graph, is_outermost=True))

    @classmethod
    def of(cls, model: Model, shapes: ShapeOverrides | None = None, names_key: bytes | None = None) -> PreparedModel:
        """The model read here, under these shapes. Raises BadGraph, OSError."""
        if isinstance(model, Graph):
            return cls(model, names_key)
        if isinstance(model, Mapping):
            data = msgspec.json.encode(model)
        else:
            data = model if isinstance(model, bytes) else Path(model).read_bytes()
        graph, origin = load(data, Limits(), shapes), importer_of(data)
        if origin != "native":  # so that the service differentiates it as it would the file
            graph = replace(graph, annotations={**graph.annotations, IMPORTER_ANNOTATION: origin})
        return cls(graph, names_key)

    def fields(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a request under the names that are sent."""
        fields = dict(request)
        if self._words is None:
            return fields
        for name in set(NAME_FIELDS) & set(fields):
            fields[name] = self._referring(fields[name])
        if isinstance(options := fields.get("differentiate"), Mapping):
            fields["differentiate"] = self._options(dict(options))
        return fields

    def restore(self, said: Any) -> Any:
        """Plain data as the service sent it, with the caller's names, and contents in its graphs."""
        if isinstance(said, Mapping):
            documents = [said, *(said[name] for name in ("source", "graph") if isinstance(said.get(name), Mapping))]
            for document in documents:
                if str(document.get("format", "")).startswith("remat/1") and "nodes" in document:
                    self._fill(document)
                    if self._words is not None:
                        document["opset"] = {**self._graph.opset, **document.get("opset", {})}
        return said if self._words is None else _mapped(said, self._words.shown)

    def _sent(self, graph: Graph, is_outermost: bool = False) -> Graph:
        uses: dict[int, set[tuple[str, int]]] = {}
        for node in graph.nodes:
            for i, v in enumerate(node.inputs):
                uses.setdefault(v, set()).add((node.op, i))
        values = tuple(self._value(value, uses.get(v, set()), is_outermost) for v, value in enumerate(graph.values))
        nodes = tuple(map(self._node, graph.nodes))
        if self._words is None:
            return replace(graph, values=values, nodes=nodes)
        hidden = self._words.hidden
        return replace(
            graph,
            values=values,
            nodes=nodes,
            name=hidden(graph.name),
            annotations=self._opaque(graph.annotations),
            opset={domain: version for domain, version in graph.opset.items() if domain in ("", "ai.onnx.ml")},
            gradient_rules={self._op(op): self._rule(rule) for op, rule in graph.gradient_rules.items()},
        )

    def _value(self, value: Value, uses: set[tuple[str, int]], is_outermost: bool) -> Value:
        name = value.name
        stays = value.data is not None and not _is_argument(value.data, uses)
        if stays and not is_outermost and self._count[name] > 1:  # so that its name says whose content it was
            name = reserve_name(name, self._taken)
        if self._words is not None:
            name = self._words.hidden(name)
        if stays and value.data is not None:
            self._contents[name] = value.data
        data, annotations = None if stays else value.data, self._opaque(value.annotations)
        return replace(value, name=name, data=data, annotations=annotations)

    def _node(self, node: Node) -> Node:
        for name, attribute in node.attributes.items():
            if _holds_weights(attribute):
                raise BadGraph.one(
                    "weights_in_attribute",
                    f"nodes.{node.name}.attributes.{name}",
                    "numbers that may be weights",
                    f"at most {MAX_ATTRIBUTE_ELEMENTS} of them",
                    "make them a constant, whose content stays at home",
                )
        bodies = {key: Body(self._sent(body.graph), body.captures) for key, body in node.bodies.items()}
        node = replace(node, bodies=bodies) if bodies else node
        if self._words is None:
            return node
        hidden = self._words.hidden
        attributes = node.attributes if _is_known(node.op) else _mapped(node.attributes, hidden)
        return replace(
            node,
            name=hidden(node.name),
            op=self._op(node.op),
            attributes=attributes,
            stream=None if node.stream is None else hidden(node.stream),
            annotations=self._opaque(node.annotations),
        )

    def _op(self, op: str) -> str:
        return op if self._words is None or _is_known(op) else HIDDEN_OPS + self._words.hidden(op)

    def _rule(self, rule: Any) -> Any:
        return {**rule, "op": self._op(rule["op"])} if isinstance(rule, Mapping) and rule.get("op") else rule

    def _opaque(self, annotations: Mapping[str, Any]) -> Mapping[str, Any]:
        """Annotations with every word hashed that the graph room does not look for."""
        if self._words is None:
            return annotations
        hidden, found = self._words.hidden, {}
        for name, said in annotations.items():
            key = name if name in KNOWN_ANNOTATIONS or name in NAME_ANNOTATIONS else hidden(name)
            found[key] = said if name in KNOWN_ANNOTATIONS else _mapped(said, hidden)
        return found

    def _referring(self, said: Any) -> Any:
        return _mapped(said, self._reference)

    def _reference(self, text: str) -> str:
        """The hash of the value called so; `y@2` is looked up here, where the names are known."""
        assert self._words is not None
        if text not in self._count and "@" in text:
            with contextlib.suppress(BadGraph):  # the service says that there is none, of a hash
                text = self._graph.values[find_value(self._graph, text, "request")].name
        return self._words.hidden(text)

    def _options(self, options: dict[str, Any]) -> dict[str, Any]:
        for name in set(NAME_OPTIONS) & set(options):
            options[name] = _heads(options[name], self._reference)
        for name in ("skip", "row_sparse"):
            if isinstance(options.get(name), list | tuple):
                options[name] = self._referring(options[name])
        if isinstance(rules := options.get("gradient_rules"), Mapping):
            options["gradient_rules"] = {self._op(op): self._rule(rule) for op, rule in rules.items()}
        return options

    def _fill(self, document: Any) -> None:
        """Put contents back where a graph, or a body of one, has a constant without any."""
        for row in document.get("values", ()):
            if row.get("role") == "constant" and row.get("data") is None:
                content = self._content(row)
                if content is not None:
                    row["data"] = encode_array(content)
        for node in document.get("nodes", ()):
            for body in (node.get("bodies") or {}).values():
                self._fill(body)

    def _content(self, row: Mapping[str, Any]) -> np.ndarray | None:
        """What stayed of the value, or of the one it is a copy of."""
        name = row["name"]
        while name not in self._contents and (shorter := re.sub(r"/(\d+|copy)$", "", name)) != name:
            name = shorter
        content = self._contents.get(name)
        if content is None or (row.get("dtype"), row.get("shape")) != (dtype_name(content.dtype), [*content.shape]):
            return None
        return content


class _NameHasher:
    """Words and the hashes that stand for them."""

    def __init__(self, key: bytes):
        self.key = key
        self._back: dict[str, str] = {}
        self._words: set[str] = set()
        self._derived: dict[str, str] = {}  # names the service made of hashes

    def hidden(self, word: str) -> str:
        if not word:
            return word
        digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=12, key=self.key)
        token = f"h_{digest.hexdigest()}"
        self._back[token] = word
        self._words.add(word)
        return token

    def shown(self, text: str) -> str:
        """The text with words for hashes. Names that are made of several never become one the caller has."""
        if text in self._back:
            return self._back[text]
        shown = HASHED_NAME.sub(lambda token: self._back.get(token[1], token[0]), text)
        if shown == text or text.startswith(HIDDEN_OPS) or any(map(str.isspace, text)):
            return shown
        if text not in self._derived:
            self._derived[text] = unique_name(shown, self._words)
            self._words.add(self._derived[text])
        return self._derived[text]


def _mapped(said: Any, change: Callable[[str], str]) -> Any:
    """Plain data with every string changed, keys too."""
    if isinstance(said, str):
        return change(said)
    if isinstance(said, Mapping):
        return {change(name) if isinstance(name, str) else name: _mapped(inner, change) for name, inner in said.items()}
    return [_mapped(inner, change) for inner in said] if isinstance(said, list | tuple) else said


def _heads(said: Any, change: Callable[[str], str]) -> Any:
    """Targets and head gradients with their names changed; a constant's own fields are no names."""
    if isinstance(said, Mapping):
        return {
            change(name): head if isinstance(head, Mapping) else _mapped(head, change) for name, head in said.items()
        }
    if isinstance(said, list | tuple):
        return [head if isinstance(head, Mapping) else _mapped(head, change) for head in said]
    return _mapped(said, change)


def _is_known(op: str) -> bool:
    """Whether the op's name is everybody's."""
    if find_op(op) is not None or op in GRADIENT_RULES or op.startswith("remat::"):
        return True
    from onnx import defs

    domain, _, name = op.rpartition("::")
    return bool(defs.has(name, domain))


def _is_argument(data: np.ndarray, uses: set[tuple[str, int]]) -> bool:
    """Whether shapes or gradients depend on the content: single numbers, shapes, axes and the like."""
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
