"""Distribution attributes of Paddle (suffix @AUTO_PARALLEL), converted to annotations of values and nodes and back.

var  dims_mapping@AUTO_PARALLEL [0, -1]      process_mesh@AUTO_PARALLEL [0, 1, 2, 3], process_mesh_shape@AUTO_PARALLEL
op   process_mesh@AUTO_PARALLEL ...          dims_mapping@x@AUTO_PARALLEL: mapping of the argument x

At run time Paddle stores them outside the program; in a file they are attributes with these names.
"""

from __future__ import annotations

import math
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


def mesh_annotations(attrs: Sequence[Any]) -> dict[str, Any]:
    """Mesh and mapping of a variable, or of an op without the mappings of its arguments."""
    found: dict[str, Any] = {}
    ints = {attr.name: list(attr.ints) for attr in attrs if len(attr.ints)}
    mesh = ints.get(MESH + AUTO_PARALLEL_SUFFIX)
    if mesh is not None:
        found[MESH] = nested_mesh(mesh, ints.get(MESH_SHAPE, [len(mesh)]))
    if MAPPING + AUTO_PARALLEL_SUFFIX in ints:
        found[MAPPING] = ints[MAPPING + AUTO_PARALLEL_SUFFIX]
    return found


def nested_mesh(ids: list[int], shape: list[int]) -> Any:
    """Process ids as nested lists of a shape; the flat list when the shape does not match."""
    if math.prod(max(length, 0) for length in shape) != len(ids) or len(shape) > 16:
        return ids
    found: list[Any] = ids
    for length in reversed(shape[1:]):
        found = [found[i : i + length] for i in range(0, len(found), length)]
    return found


def flat_mesh(mesh: Any) -> tuple[list[int], list[int]]:
    """(process ids, shape) of a mesh given as nested lists."""
    shape: list[int] = []
    while isinstance(mesh, list | tuple) and mesh and isinstance(mesh[0], list | tuple):
        shape.append(len(mesh))
        mesh = [item for row in mesh for item in row]
    ids = list(mesh)
    return ids, [*shape, len(ids) // max(math.prod(shape), 1)]


def annotate_mesh(
    rows: Sequence[NodeRow],
    op: Any,
    attributes: Mapping[str, Any],
    types: Mapping[str, TensorType | None],
    of_values: Mapping[str, Any],
) -> None:
    """Annotate the rows of an op that has a mesh; intermediate values of its rows are replicated on each process.

    `of_values`: attributes of the variables by name, for arguments whose mapping the op lacks.
    """
    distribution = mesh_annotations(op.attrs)
    if MESH not in distribution:
        return
    suffix = AUTO_PARALLEL_SUFFIX
    mappings = {
        name.removesuffix(suffix).partition("@")[2]: list(attribute.ints)
        for name, attribute in attributes.items()
        if name.startswith(f"{MAPPING}@") and name.endswith(suffix) and name != MAPPING + suffix
    }
    for name, attrs in of_values.items():
        mapping = mesh_annotations(attrs).get(MAPPING)
        if mapping is not None:
            mappings.setdefault(name, mapping)
    for row in rows:
        mapping = {}
        for name in dict.fromkeys((*row.inputs, *row.outputs)):
            type = types.get(name)
            if name in mappings:
                mapping[name] = mappings[name]
            elif name and type is not None:
                mapping[name] = [-1] * len(type.shape)
        row.annotations = {**(row.annotations or {}), MESH: distribution[MESH], MAPPING: mapping}
