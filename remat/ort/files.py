"""Exported training steps: what their inputs and outputs are, and contents of the model that they were made from."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import ModelProto, NodeProto, ValueInfoProto, numpy_helper

from graph.formats.onnx.read.metadata import METADATA_KEY, ModelNote, ValueNote, decode_note
from graph.formats.onnx.writer import dump
from graph.ir import Graph, Role
from remat.ort.errors import NotTrainable
from remat.report import Report

Model = Report | Graph | bytes | str | os.PathLike[str]
Contents = Mapping[str, np.ndarray] | str | os.PathLike[str]

#: Ops that compute an element of their result from the same element of each operand: they may write over an operand.
_ELEMENTWISE = frozenset({"Add", "Sub", "Mul", "Div", "Where", "Cast", "Neg", "Sqrt", "Identity"})


@dataclass(frozen=True, eq=False)
class StepFile:
    """An exported training step and the names of its inputs and outputs."""

    proto: ModelProto
    data: tuple[str, ...]  # inputs of every run, such as tokens and labels
    held: dict[str, np.ndarray | None]  # parameters, states and constants; None where the file has no content
    roles: dict[str, Role]  # of `held`
    gradients: dict[str, str]  # parameter -> output
    updates: dict[str, str]  # parameter or state -> output
    outputs: tuple[str, ...]  # all other outputs

    @classmethod
    def of(cls, model: Model) -> StepFile:
        """The step in a report, a graph, or a file. Raises NotTrainable, BadGraph, OSError."""
        proto = _proto(model)
        note = _note(proto.metadata_props)
        if note is None:
            raise NotTrainable(
                "the file was not written by remat, so its gradients are not known; "
                'plan it first: remat.plan("model.onnx", "60%", runtime="ort")'
            )
        described = decode_note(note, ModelNote, "model")
        graph = proto.graph
        notes = {item.name: _note(item.metadata_props) for item in (*graph.input, *graph.initializer)}
        roles = {name: decode_note(text, ValueNote, name).role for name, text in notes.items() if text is not None}
        stored = {tensor.name: tensor for tensor in graph.initializer}
        inputs = [item.name for item in graph.input]
        held = [name for name in inputs if roles.get(name, Role.INPUT) not in (Role.INPUT, Role.ACTIVATION)]
        names = [item.name for item in graph.output]
        updates = {before: after for before, after in described.updates if before in inputs}
        gradients = {parameter: name for parameter, name in described.gradients if name in names}
        known = {*updates.values(), *gradients.values()}
        return cls(
            proto,
            tuple(name for name in inputs if name not in held),
            {name: numpy_helper.to_array(stored[name]) if name in stored else None for name in held},
            {name: roles[name] for name in held},
            gradients,
            updates,
            tuple(name for name in names if name not in known),
        )

    def types(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Element type and shape of each input."""
        return {item.name: _type(item) for item in self.proto.graph.input}

    def overwritten(self) -> dict[str, str]:
        """The `updates` whose output may lie in the bytes of its input, when nodes run in the order of the file."""
        last: dict[str, int] = {}
        writer: dict[str, tuple[int, NodeProto]] = {}
        for place, node in enumerate(self.proto.graph.node):
            for name in _reads(node):
                last[name] = place
            for name in node.output:
                writer[name] = (place, node)
        found = {}
        for before, after in self.updates.items():
            place, node = writer.get(after, (-1, NodeProto()))
            if node.op_type in _ELEMENTWISE and last.get(before, -1) <= place:
                found[before] = after
        return found


def contents_of(given: Contents | None) -> Mapping[str, np.ndarray]:
    """Arrays by name: as given, or the initialisers and constants of an ONNX file. Raises NotTrainable, OSError."""
    if given is None or isinstance(given, Mapping):
        return given or {}
    try:
        graph = onnx.load(os.fspath(given)).graph
    except (DecodeError, onnx.checker.ValidationError) as error:
        raise NotTrainable(f"{os.fspath(given)}: {error}; weights are arrays by name or an ONNX file") from None
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    constants = [node for node in graph.node if node.op_type == "Constant" and node.attribute[0].name == "value"]
    return found | {node.output[0]: numpy_helper.to_array(node.attribute[0].t) for node in constants}


def _proto(model: Model) -> ModelProto:
    if isinstance(model, Report):
        model = model.graph
    if isinstance(model, Graph):
        model = dump(model)
    try:
        return onnx.load_from_string(model) if isinstance(model, bytes) else onnx.load(os.fspath(model))
    except (DecodeError, onnx.checker.ValidationError) as error:
        raise NotTrainable(f"not an ONNX file: {error}; export one with `remat plan ... --graph step.onnx`") from None


def _note(entries: Iterable[Any]) -> str | None:
    return next((entry.value for entry in entries if entry.key == METADATA_KEY), None)


def _type(item: ValueInfoProto) -> tuple[np.dtype[Any], tuple[int, ...]]:
    tensor = item.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    return dtype, tuple(dimension.dim_value for dimension in tensor.shape.dim)


def _reads(node: NodeProto) -> Iterable[str]:
    yield from node.input
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from _reads(inner)
