"""Name-free form of graphs and plan requests: the graph without names, the request with positions instead of names."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from graph.formats.document.tensor_content import write_attributes
from graph.formats.native.identity import without_model_name
from graph.formats.native.writer import shape_hash
from graph.ir import walk

if TYPE_CHECKING:
    from graph.ir import Graph

SEARCH = "search"  # section of a stored plan: its search result, by number
#: Request fields whose results are not reused: several sets of shapes, sections that search or name values, and
#: patterns of names.
UNSHARED_FIELDS = frozenset(
    {
        "shapes",
        "advise",
        "advise_checkpoints",
        "share_buffers",
        "gradient_events",
        "trainable",
        "frozen",
        "max",
        "offload",
        "overlap",
    }
)
VALUE_LIST_FIELDS = frozenset({"checkpoints", "keep", "recompute"})  # request fields that are lists of value names
DIFFERENTIATE_LISTS = frozenset({"of", "with_respect_to", "no_gradient"})  # the same inside `differentiate`
Json = dict[str, Any]
Number = Callable[[Any], int]


class NoForm(Exception):
    """The request has no name-free form."""


def form_hash(graph: Graph) -> str | None:
    """SHA-256 of the graph without the names of nodes and values, with its name in its file and its annotations.

    Equal for graphs that differ in those names only; the order of nodes matters. None if an annotation or attribute
    contains a name of the graph, because it may refer to that node or value.
    """
    graph = without_model_name(graph)
    names, annotations, attributes = set[str](), list[Any](), list[Any]()
    for each in walk(graph):
        notes = [each.annotations, *(value.annotations for value in each.values)]
        notes += [node.annotations for node in each.nodes]
        annotations += [write_attributes(note) if note else None for note in notes]
        attributes += [write_attributes(node.attributes) for node in each.nodes if node.attributes]
        names.update(value.name for value in each.values)
        names.update(node.name for node in each.nodes)
    if not names.isdisjoint(_strings([annotations, attributes])):
        return None
    return hashlib.sha256(
        msgspec.json.encode([graph.name, shape_hash(graph), annotations], order="deterministic")
    ).hexdigest()


def _strings(document: Any) -> Iterable[str]:
    """Every string in a JSON document, keys included."""
    if isinstance(document, str):
        yield document
    elif isinstance(document, Mapping):
        for key, value in document.items():
            yield key
            yield from _strings(value)
    elif isinstance(document, list | tuple):
        for value in document:
            yield from _strings(value)


class _Value(msgspec.Struct):
    name: str


class _Values(msgspec.Struct):
    values: list[_Value]


def numbered_fields(fields: Mapping[str, Any], document: Callable[[], bytes]) -> Json:
    """The fields of a plan request with value numbers instead of names. Raises NoForm.

    `document` returns the canonical document of the graph; it is called only if a field names values.
    """
    numbers: dict[str, int] = {}

    def number(name: Any) -> int:
        if not numbers:
            data = document()
            if "recompute" in fields and b'"bodies"' in data:  # may name values inside bodies
                raise NoForm("recompute")
            rows = msgspec.json.decode(data, type=_Values).values
            numbers.update((value.name, v) for v, value in enumerate(rows))
        if not isinstance(name, str) or name not in numbers:
            raise NoForm(name)
        return numbers[name]

    return {field: _numbered(field, given, number) for field, given in fields.items()}


def _numbered(field: str, given: Any, number: Number) -> Any:
    if field in UNSHARED_FIELDS and given:
        raise NoForm(field)
    if field == "loss" and given is not None:
        return number(given)
    if field in VALUE_LIST_FIELDS:
        return [number(name) for name in given]
    if field == "inputs":
        return {str(number(name)): shape for name, shape in given.items()}
    if field == "differentiate" and isinstance(given, Mapping):
        return {key: _numbered_option(key, value, number) for key, value in given.items()}
    return given


def _numbered_option(key: str, given: Any, number: Number) -> Any:
    """The same for one option of `differentiate`."""
    if key in DIFFERENTIATE_LISTS and isinstance(given, list):
        return [number(name) for name in given]
    if given is None or key in ("unreachable", "update"):
        return given
    raise NoForm(key)
