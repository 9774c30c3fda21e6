"""Roles of tensors set by name patterns, and notes on the roles that a reader guessed.

frozen `*`, trainable `head.*`:   encoder.weight → CONSTANT,   head.weight → PARAMETER
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from msgspec.structs import replace

from graph.errors import BadGraph, listed, quoted
from graph.ir import FLOAT_DTYPES, Graph, Role, Value

#: Annotations of a graph with names of tensors, written by readers.
ROLE_ANNOTATIONS = frozenset(
    {
        "guessed_parameters",
        "guessed_constants",
        "untraced_parameters",
        "computed_constants",
        "equal_parameters",
        "folded_norms",
        "renamed_parameters",
        "padding_rows",
    }
)
_EXPORT = "export with torch.onnx.export(..., optimize=False)"


def with_roles(graph: Graph, trainable: Sequence[str], frozen: Sequence[str]) -> Graph:
    """The graph with the roles of matching tensors changed. Raises BadGraph for a pattern without a match.

    `trainable` patterns are exceptions to `frozen` ones.
    """
    if not trainable and not frozen:
        return graph
    for field, patterns in (("trainable", trainable), ("frozen", frozen)):
        for pattern in patterns:
            if not matching_names(graph, [pattern]):
                raise BadGraph.one(
                    "unknown_value",
                    field,
                    f"{quoted(pattern)}, which matches no parameter or constant of floating-point numbers",
                    "a pattern of names, such as `*.scale`",
                    "see `remat info` for the parameters of the model",
                )
    roles = dict.fromkeys(matching_names(graph, frozen), Role.CONSTANT)
    roles.update(dict.fromkeys(matching_names(graph, trainable), Role.PARAMETER))
    values = tuple(_with_role(value, roles.get(value.name, value.role)) for value in graph.values)
    annotations: Mapping[str, Any] = {
        key: [name for name in entry if name.partition(" ")[0] not in roles] if key in ROLE_ANNOTATIONS else entry
        for key, entry in graph.annotations.items()
    }
    return replace(graph, values=values, annotations=annotations)


def matching_names(graph: Graph, patterns: Sequence[str]) -> list[str]:
    """Names of the parameters and constants of floating-point numbers that match a pattern."""
    names = [value.name for value in graph.values if _is_tensor(value)]
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def role_notes(graph: Graph) -> list[str]:
    """Warnings about guessed roles, and about what PyTorch trains otherwise than the file says."""
    sizes = {value.name: str(value.type) for value in graph.values if _is_tensor(value)}
    parameters, constants = (
        [f"{name} {sizes[name]}" for name in _names(graph, key) if name in sizes]
        for key in ("guessed_parameters", "guessed_constants")
    )
    notes = []
    if parameters:
        notes.append(
            f"taken as trained parameters, which the file does not say: {listed(parameters)}; "
            "freeze them with --frozen PATTERN if they are not"
        )
    if constants:
        notes.append(
            f"taken as constants, which the file does not say: {listed(constants)}; "
            "train them with --trainable PATTERN if they are parameters"
        )
    if untraced := _names(graph, "untraced_parameters"):
        notes.append(
            f"parameters that the exporter folded, merged or left out, so that the file has no tensor of these names: "
            f"{listed(untraced)}; {_EXPORT} to keep them"
        )
    if computed := _names(graph, "computed_constants"):
        notes.append(
            "constants that the exporter computed from trained parameters, whose gradients lack the part that goes "
            f"through them: {listed(computed)}; {_EXPORT} to keep it"
        )
    if renamed := _names(graph, "renamed_parameters"):
        notes.append(
            "parameters that the exporter computed from the module's, by transposing or folding, and renamed: "
            f"{listed(renamed)}; they are trained as they are; to keep the module's, export with "
            "torch.onnx.export(..., dynamo=False, do_constant_folding=False)"
        )
    if folded := _names(graph, "folded_norms"):
        notes.append(
            "BatchNorm layers that the exporter folded into the layers before them, which are trained without them: "
            f"{listed(folded)}; to keep them, call model.train() and export with torch.onnx.export(..., dynamo=True, "
            "optimize=False), or dynamo=False, training=TrainingMode.TRAINING, do_constant_folding=False"
        )
    if equal := _names(graph, "equal_parameters"):
        notes.append(
            f"equal parameters under several names, each trained on its own: {listed(equal)}; if the model ties them, "
            "export it with torch.onnx.export(..., dynamo=True), which writes one tensor"
        )
    if padded := _names(graph, "padding_rows"):
        notes.append(
            f"rows of embeddings with a padding_idx, which ONNX cannot express, get a gradient that PyTorch does not "
            f"give them: {listed(padded)}; set it to zero before the update, or train without padding_idx"
        )
    return notes


def _with_role(value: Value, role: Role) -> Value:
    if role is value.role or not _is_tensor(value):
        return value
    return replace(value, role=role, data=None if role is Role.PARAMETER else value.data)


def _is_tensor(value: Value) -> bool:
    is_float = value.type is not None and value.type.dtype in FLOAT_DTYPES
    return is_float and value.role in (Role.PARAMETER, Role.CONSTANT)


def _names(graph: Graph, key: str) -> list[str]:
    """Names in an annotation; any document may have one, so other content is left out."""
    entry = graph.annotations.get(key, ())
    return [name for name in entry if isinstance(name, str)] if isinstance(entry, list | tuple) else []
