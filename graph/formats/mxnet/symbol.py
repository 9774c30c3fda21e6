"""Records of a symbol file, in every version of the format, validated.

{"nodes": [{"op": "null", "name": "data", "attrs": {"__shape__": "(32, 784)"}, "inputs": []},
           {"op": "FullyConnected", "name": "fc1", "attrs": {"num_hidden": "10"}, "inputs": [[0, 0, 0], ...]}],
 "arg_nodes": [0, ...], "node_row_ptr": [0, 1, ...], "heads": [[3, 0, 0]], "attrs": {"mxnet_version": ["int", 10500]}}

Op parameters are in `attrs` (since 1.0), or in `attr` and `param` (before 1.0, possibly both).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from graph.errors import BadGraph, Findings, quoted
from graph.ir.names import reserve_name
from graph.limits import Limits

VARIABLE = "null"


class NodeRecord(msgspec.Struct):
    """A node of a symbol. `inputs` are (node, output) or (node, output, version)."""

    op: str
    name: str = ""
    inputs: list[list[int]] = []
    attrs: dict[str, Any] | None = None
    attr: dict[str, Any] | None = None
    param: dict[str, Any] | None = None
    control_deps: list[int] = []
    subgraphs: list[msgspec.Raw] = []

    @property
    def attributes(self) -> dict[str, Any]:
        return {**(self.param or {}), **(self.attr or {}), **(self.attrs or {})}

    @property
    def parameters(self) -> dict[str, Any]:
        """Attributes of the op itself: those in `param` where the file separates them from those of the user."""
        found = self.attributes if self.param is None else {**self.param, **(self.attrs or {})}
        return {key: value for key, value in found.items() if not key.startswith("__") and key not in MIRRORING}


class Symbol(msgspec.Struct):
    """A symbol: top-level, or nested in a node."""

    nodes: list[NodeRecord]
    heads: list[list[int]]
    arg_nodes: list[int] = []
    node_row_ptr: list[int] = []
    attrs: dict[str, Any] = {}


def decode(data: bytes | msgspec.Raw, path: str, limits: Limits) -> Symbol:
    """Records of a symbol. Raises BadGraph with up to ten findings."""
    try:
        symbol = msgspec.json.decode(data, type=Symbol)
    except RecursionError:
        raise BadGraph.one(
            "too_deep", path, "objects and lists nested hundreds deep", "a symbol", "save the symbol again"
        ) from None
    except msgspec.ValidationError as error:
        raise BadGraph.one("not_a_model", path, str(error), "an MXNet symbol", "save the symbol again") from None
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise BadGraph.one("not_parseable", path, str(error), "JSON", "send the whole file") from None
    if len(symbol.nodes) > limits.nodes:
        raise BadGraph.one(
            "too_many_nodes",
            f"{path}.nodes",
            f"{len(symbol.nodes)} nodes",
            f"at most {limits.nodes}",
            "send a smaller model, or raise the limit",
        )
    _check(symbol, path, limits)
    return symbol


def _check(symbol: Symbol, path: str, limits: Limits) -> None:
    """Raise BadGraph for entries that are no output of an earlier node, long names and too many outputs."""
    findings, largest = Findings(), [0] * len(symbol.nodes)

    def check_entry(entry: list[int], before: int, place: str) -> None:
        """Check an output of one of the first `before` nodes; variables have one output."""
        if len(entry) in (2, 3) and 0 <= entry[0] < before and 0 <= entry[1] < 1 << 16:
            largest[entry[0]] = max(largest[entry[0]], entry[1])
            if entry[1] == 0 or symbol.nodes[entry[0]].op != VARIABLE:
                return
        expected = f"an output of one of the {before} nodes before"
        findings.add("undefined_value", place, str(entry)[:80], expected, _IN_ORDER)

    for n, node in enumerate(symbol.nodes):
        place = f"{path}.nodes[{n}]"
        if len(node.name) > limits.name_length or len(node.op) > limits.name_length:
            expected = f"at most {limits.name_length} characters"
            findings.add("name_too_long", place, quoted(node.name), expected, "shorten it")
        for i, entry in enumerate(node.inputs):
            check_entry(entry, n, f"{place}.inputs[{i}]")
        for i, dep in enumerate(node.control_deps):
            if not 0 <= dep < n:
                expected = f"one of the {n} nodes before"
                findings.add("unknown_node", f"{place}.control_deps[{i}]", str(dep), expected, _IN_ORDER)
    for i, entry in enumerate(symbol.heads):
        check_entry(entry, len(symbol.nodes), f"{path}.heads[{i}]")
    outputs = sum(largest) + len(symbol.nodes)
    if sum(largest) > limits.values:
        findings.add("too_many_values", path, f"{outputs} outputs", f"at most {limits.values}", "save it again")
    findings.settle()


def output_counts(symbol: Symbol) -> list[int]:
    """Number of outputs per node: the largest index in use plus one, at least one."""
    counts = [1] * len(symbol.nodes)
    entries = [entry for node in symbol.nodes for entry in node.inputs] + symbol.heads
    for source, k, *_ in entries:
        counts[source] = max(counts[source], k + 1)
    for n, node in enumerate(symbol.nodes):
        if node.op in ("SliceChannel", "split", "_foreach", "_while_loop", "_cond"):
            declared = node.attributes.get("num_outputs")
            if str(declared).isdigit() and int(str(declared)) <= 1 << 16:
                counts[n] = max(counts[n], int(str(declared)))
    return counts


def value_names(symbol: Symbol, counts: Sequence[int]) -> dict[tuple[int, int], str]:
    """Value names as in MXNet: the variable's name, `NAME_output`, or `NAME_output0`, ... for several outputs."""
    names: dict[tuple[int, int], str] = {}
    taken: set[str] = set()
    for n, node in enumerate(symbol.nodes):
        name = node.name or f"{node.op}_{n}"
        for k in range(counts[n]):
            if node.op == VARIABLE:
                plain = name
            else:
                plain = f"{name}_output" if counts[n] == 1 else f"{name}_output{k}"
            names[n, k] = reserve_name(plain, taken)
    return names


_IN_ORDER = "save the symbol again: its nodes stand in order"


def recompute_of(attributes: dict[str, Any]) -> str | None:
    """Recompute hint of a node's mirroring attributes: "prefer", "never", or None without one.

    `force_mirroring` takes precedence over `mirror_stage`, which memory passes write as 1 or 0.
    """
    for key in ("force_mirroring", "__force_mirroring__", "mirror_stage", "__mirror_stage__"):
        word = str(attributes.get(key, "")).strip().lower()
        if word in ("true", "1"):
            return "prefer"
        if word in ("false", "0"):
            return "never"
    return None


def attribute_text(value: Any) -> str:
    """An attribute as MXNet writes it: the text of Python data."""
    if isinstance(value, str):
        return value
    return str(tuple(value) if isinstance(value, list) else value)


def preserved_attributes(attributes: dict[str, Any]) -> dict[str, str]:
    """Attributes to write back; mirroring attributes are left out when `recompute` represents them."""
    has_hint = recompute_of(attributes) is not None
    return {k: attribute_text(v) for k, v in attributes.items() if not (has_hint and k in MIRRORING)}


MIRRORING = ("force_mirroring", "__force_mirroring__", "mirror_stage", "__mirror_stage__")
