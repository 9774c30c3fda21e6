"""Sharding annotations: process mesh and dimension mappings, their consistency check and their renaming.

process_mesh  [[0, 1], [2, 3]]     a 2 x 2 mesh of processes: axes 0 and 1
dims_mapping  [0, -1]              dimension 0 is sharded along axis 0 of the mesh, dimension 1 is replicated

A value has both annotations. A node has its mesh, and as `dims_mapping` a mapping per value that it reads or writes.
Source: Paddle's distribution attributes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from graph.errors import Findings, quoted
from graph.ir import Graph, Node, Phase, Role, Value
from graph.training.recompute_segments import RECOMPUTED_ANNOTATION

MESH, MAPPING = "process_mesh", "dims_mapping"


def has_mesh(graph: Graph) -> bool:
    """True when a node has a mesh."""
    return any(MESH in node.annotations for node in graph.nodes)


def mesh_shape(mesh: Any) -> tuple[int, ...] | None:
    """Shape of a mesh given as nested lists, or as an object with `shape`; None for anything else."""
    if isinstance(mesh, Mapping):
        mesh = mesh.get("shape")
        return tuple(mesh) if isinstance(mesh, list | tuple) and all(type(n) is int for n in mesh) else None
    shape: list[int] = []
    while isinstance(mesh, list | tuple):
        if not mesh or (isinstance(mesh[0], list | tuple) and len({len(row) for row in mesh}) != 1):
            return None
        shape.append(len(mesh))
        mesh = mesh[0]
    return tuple(shape) if type(mesh) is int else None


def check_mesh(graph: Graph) -> None:
    """Raise BadGraph for sharding annotations that are missing, do not fit the shapes, or are in conflict.

    Each node needs a mesh. Each value that a forward node or a recomputed node reads needs a mapping, its own or one
    of the reader; constants are replicated. A graph without any mesh passes.
    """
    if not has_mesh(graph):
        return
    findings = Findings()
    for v, value in enumerate(graph.values):
        if MESH in value.annotations or MAPPING in value.annotations:
            _check_value(value, v, findings)
    for n, node in enumerate(graph.nodes):
        if MESH not in node.annotations:
            findings.add(
                "missing_mesh",
                f"nodes[{n}].annotations",
                f"{quoted(node.name)} without a {MESH}",
                "a mesh for every node, since other nodes have one",
                f"add its {MESH}",
            )
            continue
        _check_node(graph, node, n, findings)
    findings.settle()


def _check_value(value: Value, v: int, findings: Findings) -> None:
    shape = mesh_shape(value.annotations.get(MESH))
    if shape is None:
        findings.add(
            "missing_mesh",
            f"values[{v}].annotations",
            f"{quoted(value.name)} with a {MAPPING} and no {MESH}",
            "a list of processes, or nested lists of equal length",
            f"add its {MESH}",
        )
        return
    _check_mapping(value.annotations.get(MAPPING), value, shape, f"values[{v}].annotations", findings)


def _check_node(graph: Graph, node: Node, n: int, findings: Findings) -> None:
    path, mesh = f"nodes[{n}].annotations", node.annotations[MESH]
    shape = mesh_shape(mesh)
    if shape is None:
        findings.add(
            "bad_mapping",
            f"{path}.{MESH}",
            repr(mesh)[:80],
            "a list of processes, or nested lists of equal length",
            "correct the mesh",
        )
        return
    mappings = node.annotations.get(MAPPING)
    values = {graph.values[v].name: graph.values[v] for v in (*node.reads, *node.writes)}
    for name, mapping in mappings.items() if isinstance(mappings, Mapping) else ():
        if name not in values:
            findings.add(
                "foreign_mapping",
                f"{path}.{MAPPING}.{name}",
                f"{quoted(name)}, which {quoted(node.name)} does not read or write",
                "values the node reads or writes",
                "remove the entry, or rename it with the value",
            )
        else:
            _check_mapping(mapping, values[name], shape, f"{path}.{MAPPING}.{name}", findings)
    if node.phase is Phase.FORWARD or node.annotations.get(RECOMPUTED_ANNOTATION):
        _check_complete(graph, node, path, findings)
    for v in node.writes:
        own = graph.values[v].annotations.get(MESH)
        if own is not None and own != mesh:
            findings.add(
                "mesh_conflict",
                f"{path}.{MESH}",
                f"{quoted(node.name)} on {mesh} writes {quoted(graph.values[v].name)} on {own}",
                "values on the mesh of the node that writes them",
                "correct the mesh of the node or of the value",
            )


def _check_complete(graph: Graph, node: Node, path: str, findings: Findings) -> None:
    mappings = node.annotations.get(MAPPING)
    mapped = mappings.keys() if isinstance(mappings, Mapping) else ()
    for v in node.reads:
        value = graph.values[v]
        if value.name not in mapped and MAPPING not in value.annotations and value.role is not Role.CONSTANT:
            findings.add(
                "missing_mesh",
                f"{path}.{MAPPING}",
                f"{quoted(value.name)} at {quoted(node.name)} without a {MAPPING}",
                "a mapping for every value",
                f"add its {MAPPING}: the mesh axis of each sharded dimension, -1 for a replicated one",
            )


def _check_mapping(mapping: Any, value: Value, shape: Sequence[int], path: str, findings: Findings) -> None:
    """Add a finding unless there is one entry per dimension: -1, or an unused mesh axis that divides its length."""
    if not isinstance(mapping, list | tuple) or any(type(axis) is not int for axis in mapping):
        fault = f"{quoted(value.name)} with {mapping!r:.80}"
    elif value.type is not None and len(mapping) != len(value.type.shape):
        fault = f"{quoted(value.name)} of {value.type} with {list(mapping)}"
    elif any(not -1 <= axis < len(shape) for axis in mapping):
        fault = f"{quoted(value.name)} sharded along {list(mapping)} of a mesh of {len(shape)} axes"
    elif len(used := [axis for axis in mapping if axis >= 0]) != len(set(used)):
        fault = f"{quoted(value.name)} sharded twice along one axis by {list(mapping)}"
    elif value.type is not None and any(
        axis >= 0 and length % shape[axis] for axis, length in zip(mapping, value.type.shape, strict=True)
    ):
        fault = f"{quoted(value.name)} of {value.type}, which {list(mapping)} of a mesh {list(shape)} does not divide"
    else:
        return
    findings.add(
        "bad_mapping",
        path,
        fault,
        "per dimension -1 or an axis of the mesh that divides its length, each axis once",
        f"correct the {MAPPING}",
    )


def renamed_mapping(annotations: Mapping[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    """The annotations of a node with the keys of `dims_mapping` renamed."""
    mappings = annotations.get(MAPPING)
    if not isinstance(mappings, Mapping):
        return dict(annotations)
    return {**annotations, MAPPING: {renamed.get(name, name): mapping for name, mapping in mappings.items()}}


def without_stale_mappings(graph: Graph) -> Graph:
    """`graph` without mappings of non-forward nodes for values that they neither read nor write.

    Such mappings are left over: gradient nodes inherit the annotations of forward nodes, and recomputed nodes omit
    saved outputs.
    """
    nodes = []
    for node in graph.nodes:
        if node.phase is not Phase.FORWARD:
            touched = {graph.values[v].name for v in (*node.reads, *node.writes)}
            node = replace(node, annotations=only_mappings(node.annotations, touched))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def only_mappings(annotations: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The annotations of a node with mappings for the named values only."""
    mappings = annotations.get(MAPPING)
    if not isinstance(mappings, Mapping):
        return dict(annotations)
    return {**annotations, MAPPING: {name: mapping for name, mapping in mappings.items() if name in names}}


def with_replicated(annotations: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The annotations of a node with one more value, replicated on every process of its mesh."""
    if MESH not in annotations:
        return dict(annotations)
    mappings = annotations.get(MAPPING)
    return {**annotations, MAPPING: {**(mappings if isinstance(mappings, Mapping) else {}), name: [-1]}}
