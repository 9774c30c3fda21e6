"""Attributes with Paddle's suffix for automatic parallelism, as annotations of values and nodes, and back.

var  dims_mapping@AUTO_PARALLEL [0, -1]      process_mesh@AUTO_PARALLEL [0, 1, 2, 3]   its shape beside it
op   process_mesh@AUTO_PARALLEL ...          dims_mapping@x@AUTO_PARALLEL: how the op has its argument x

Paddle keeps these outside a program while it runs; in a file they are attributes under these names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graph.formats.document.schema import NodeRow
from graph.ir import TensorType
from graph.training.device_mesh import MAPPING, MESH

__all__ = [
    "AUTO_PARALLEL_SUFFIX",
    "CHECKPOINT",
    "MAPPING",
    "MESH",
    "MESH_SHAPE",
    "annotate_mesh",
    "flat_mesh",
    "mesh_annotations",
    "nested_mesh",
]

AUTO_PARALLEL_SUFFIX = "@AUTO_PARALLEL"
MESH_SHAPE = f"process_mesh_shape{AUTO_PARALLEL_SUFFIX}"
CHECKPOINT = "recompute_checkpoint"
_INTS = 3  # AttrType


def mesh_annotations(attrs: Sequence[Any]) -> dict[str, Any]:
    """Annotations of a variable, or of an op without what it says of its arguments."""
    found: dict[str, Any] = {}
    ints = {attr.name: list(attr.ints) for attr in attrs if len(attr.ints)}
    mesh = ints.get(MESH + AUTO_PARALLEL_SUFFIX)
    if mesh is not None:
        found[MESH] = nested_mesh(mesh, ints.get(MESH_SHAPE, [len(mesh)]))
    if MAPPING + AUTO_PARALLEL_SUFFIX in ints:
        found[MAPPING] = ints[MAPPING + AUTO_PARALLEL_SUFFIX]
    return found


def nested_mesh(ids: list[int], shape: list[int]) -> Any:
    """Process numbers as nested lists of a shape; as they stand where the shape does not hold them."""
    count = 1
    for length in shape:
        count *= max(length, 0)
    if count != len(ids) or len(shape) > 16:
        return ids
    found: list[Any] = ids
    for length in reversed(shape[1:]):
        found = [found[i : i + length] for i in range(0, len(found), length)]
    return found


def flat_mesh(mesh: Any) -> tuple[list[int], list[int]]:
    """(process numbers, shape) of a mesh as nested lists."""
    shape: list[int] = []
    while isinstance(mesh, list | tuple) and mesh and isinstance(mesh[0], list | tuple):
        shape.append(len(mesh))
        mesh = [item for row in mesh for item in row]
    ids = list(mesh)
    count = 1
    for length in shape:
        count *= length
    return ids, [*shape, len(ids) // max(count, 1)]


def annotate_mesh(
    rows: Sequence[NodeRow],
    op: Any,
    attributes: Mapping[str, Any],
    types: Mapping[str, TensorType | None],
    of_values: Mapping[str, Any],
) -> None:
    """Annotate the rows of an op that says its mesh; values made inside are whole on each process."""
    marks = mesh_annotations(op.attrs)
    if MESH not in marks:
        return
    suffix = AUTO_PARALLEL_SUFFIX
    said = {
        name.removesuffix(suffix).partition("@")[2]: list(attribute.ints)
        for name, attribute in attributes.items()
        if name.startswith(f"{MAPPING}@") and name.endswith(suffix) and name != MAPPING + suffix
    }
    for name, attrs in of_values.items():
        mapping = mesh_annotations(attrs).get(MAPPING)
        if mapping is not None:
            said.setdefault(name, mapping)
    for row in rows:
        mapping = {}
        for name in dict.fromkeys((*row.inputs, *row.outputs)):
            type = types.get(name)
            if name in said:
                mapping[name] = said[name]
            elif name and type is not None:
                mapping[name] = [-1] * len(type.shape)
        row.annotations = {**(row.annotations or {}), MESH: marks[MESH], MAPPING: mapping}
