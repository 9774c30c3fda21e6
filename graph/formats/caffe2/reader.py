"""Reader of Caffe2 nets: repeated writes of a name are new versions, leading fill ops are the weights.

An init net and a predict net may be concatenated into one file (`cat init.pb predict.pb`): protocol buffers merge
their op lists. A fill of an external input determines its shape and element type. Exporters fill inputs with a
placeholder of one zero, which determines nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graph.errors import BadGraph, Findings, listed, quoted
from graph.formats.caffe2 import control_flow
from graph.formats.caffe2.compat.devices import read_route
from graph.formats.caffe2.ops import CAFFE2, GIVEN_DTYPES, fill_type
from graph.formats.caffe2.proto import caffe2, device_of_op, net_of, value_of
from graph.formats.shared.attributes import integer_list
from graph.formats.shared.op_helpers import checked_shape
from graph.formats.shared.op_table import OpUse, Unmapped
from graph.formats.shared.program import Program, declared_type
from graph.formats.shared.protobuf import message_to_dict
from graph.formats.shared.rows import Origin
from graph.ir import DTYPE_BITS, Graph, TensorType
from graph.limits import Limits, ShapeOverrides
from graph.ops.registry.onnx_fallback import numpy_dtype
from graph.transforms.device_placement import COPIED_FROM

#: (op, input position) -> default integer or bool type of an external input.
_INTEGERS = {
    ("Gather", 1): "int32",
    ("BatchGather", 1): "int32",
    ("SoftmaxWithLoss", 1): "int32",
    ("LabelCrossEntropy", 1): "int32",
    ("LSTMUnit", 3): "int32",
    ("LSTMUnit", 4): "int32",
    ("GRUUnit", 2): "int32",
    ("OneHot", 0): "int64",
    ("If", 0): "bool",
    ("While", 0): "bool",
}
_WEIGHTS = {
    "FC": (1, 2),
    "FCTransposed": (1, 2),
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "SpatialBN": (1, 2),
    "PRelu": (1,),
    "LayerNorm": (1, 2),
    "InstanceNorm": (1, 2),
    "Gather": (0,),
}
_STATES = {"SpatialBN": (3, 4)}
#: Ops of an optimizer.
_UPDATES = frozenset(
    {
        "Iter",
        "AtomicIter",
        "LearningRate",
        "Adagrad",
        "SparseAdagrad",
        "Adam",
        "MomentumSGD",
        "MomentumSGDUpdate",
        "WeightedSum",
        "ScatterWeightedSum",
        "RmsProp",
        "Ftrl",
    }
)
#: Prefixes of net arguments added by the writer, for fields without a Caffe2 equivalent.
NOTES = ("shape/", "dtype/", "role/", "copied_from/")
#: Net argument with the names that an init net fills with zeros, because their values are unknown.
SHAPES_ONLY = "shapes_only"
CONTROL_FLOW_OPS = frozenset({"If", "AsyncIf", "While", "Do", "RecurrentNetwork"})


def load(data: bytes, limits: Limits, shapes: ShapeOverrides) -> Graph:
    """Graph of a net in binary or text form. Raises BadGraph with up to ten findings."""
    net = net_of(data)
    if len(net.op) > limits.nodes:
        raise BadGraph.one(
            "too_many_nodes",
            "op",
            f"{len(net.op)} ops",
            f"at most {limits.nodes}",
            "send a smaller model, or raise the limit",
        )
    findings = Findings()
    reader = NetReader(Program(CAFFE2, limits, findings))
    reader.externals(net, shapes)
    reader.ops(net.op[reader.filled :])
    note = _header(net)
    if reader.placeholders:
        note["arguments"] = [*note.get("arguments", ()), *_shape_arguments(reader.placeholders)]
    if reader.filled:
        note["fills"] = [message_to_dict(op) for op in net.op[: reader.filled]]
    outputs = [name for name in net.external_output if name in reader.program.types] or reader.last_written()
    return reader.program.graph(net.name, outputs, {"caffe2": note})


def _header(net: Any) -> dict[str, Any]:
    """Fields of the net other than its ops, for the writer."""
    note = {
        "name": net.name,
        "type": net.type,
        "num_workers": net.num_workers,
        "external_input": list(net.external_input),
        "external_output": list(net.external_output),
        "arguments": arguments_json([a for a in net.arg if not a.name.startswith(NOTES)]),
    }
    note = {key: value for key, value in note.items() if value}
    if net.HasField("device_option"):
        note["device_option"] = message_to_dict(net.device_option)
    return note


def _shape_arguments(types: Mapping[str, TensorType]) -> list[dict[str, Any]]:
    """Arguments with the types of inputs whose fill is a placeholder."""
    arguments = []
    for name, type in types.items():
        shape, dtype = caffe2()["Argument"](name=f"shape/{name}"), caffe2()["Argument"](name=f"dtype/{name}")
        shape.ints.extend(type.shape)
        dtype.s = type.dtype.encode()
        arguments += [shape, dtype]
    return arguments_json(arguments)


def arguments_json(arguments: Sequence[Any]) -> list[dict[str, Any]]:
    return [message_to_dict(argument) for argument in arguments]


@dataclass(frozen=True, slots=True)
class Fill:
    """Value written by a leading fill op."""

    type: TensorType
    content: np.ndarray | None = None  # small integer content
    is_placeholder: bool = False  # [[0.0]], which exporters write for inputs


class NetReader:
    """Reads the ops of a net, top-level or nested, into a program."""

    def __init__(self, program: Program):
        self.program = program
        self.filled = 0  # number of leading ops that fill external inputs
        self.backward: set[str] = set()  # names last written by an op of the backward part
        self.read: set[str] = set()  # names whose latest version is read
        self.written: dict[str, None] = {}
        self.arguments: dict[str, Any] = {}  # of the net
        self.without_values: list[str] = []  # parameters and states with a shape, but without a fill
        self.placeholders: dict[str, TensorType] = {}  # inputs whose fill is a placeholder
        self.uses: dict[str, list[tuple[str, int]]] = {}  # name -> (op type, input position)

    def nested(self, program: Program) -> NetReader:
        """Reader of a net nested in an op."""
        return NetReader(program)

    def externals(self, net: Any, shapes: ShapeOverrides) -> None:
        """Declare the values that exist before the net runs. Raises BadGraph."""
        fills = self._fills(net)
        self._collect_uses(net.op[self.filled :], 0)
        self.arguments = {argument.name: value_of(argument) for argument in net.arg}
        names = dict.fromkeys(net.external_input)
        names.update(dict.fromkeys(fills))
        written: set[str] = set()
        for op in net.op[self.filled :]:
            names.update(dict.fromkeys(name for name in op.input if name and name not in written))
            written.update(op.output)
        self.program.check_input_shapes(shapes, sorted(names))
        for name in names:
            self._external(name, fills.get(name), shapes)
        self.without_values += self.arguments.get(SHAPES_ONLY, ())
        if self.without_values:
            warning = f"the net has shapes only, no values, of {listed(self.without_values)}"
            self.program.warnings[warning] = None

    def _collect_uses(self, ops: Sequence[Any], depth: int) -> None:
        """Collect where ops read names, including ops of nested nets, which see outer names."""
        if depth > self.program.limits.depth:
            return
        for op in ops:
            for i, name in enumerate(op.input):
                self.uses.setdefault(name, []).append((op.type, i))
            for argument in op.arg:
                for nested in (*([argument.n] if argument.HasField("n") else []), *argument.nets):
                    self._collect_uses(nested.op, depth + 1)

    def _fills(self, net: Any) -> dict[str, Fill]:
        """Leading fill ops of external inputs, by the name they write."""
        externals = set(net.external_input)
        fills: dict[str, Fill] = {}
        for op in net.op:
            if len(op.input) or len(op.output) != 1 or op.output[0] not in externals:
                break
            attributes = {argument.name: value_of(argument) for argument in op.arg}
            try:
                type = fill_type(op.type, OpUse(op.type, attributes))
            except Unmapped:
                type = None
            except (ValueError, TypeError) as error:
                raise BadGraph.one(
                    "bad_attribute",
                    f"op {quoted(op.output[0])}",
                    f"{op.type}: {error}",
                    "a shape",
                    "write the init net again",
                ) from None
            if type is None:
                break
            is_placeholder = type.shape == (1, 1) and attributes.get("values") == [0.0]
            fills[op.output[0]] = Fill(type, _content(op.type, attributes, type), is_placeholder)
            self.filled += 1
        return fills

    def _external(self, name: str, fill: Fill | None, shapes: ShapeOverrides) -> None:
        """Declare an external input of the net; its shape comes from the caller, the net, or its fill op."""
        role = str(self.arguments.get(f"role/{name}", self._role(name, fill, name in shapes.inputs)))
        is_placeholder = fill is not None and fill.is_placeholder and role == "input"
        fill = None if is_placeholder else fill
        type = None if fill is None else fill.type
        if f"shape/{name}" in self.arguments:
            type = _noted_type(self.arguments, name, type)
        if name in shapes.inputs:
            dtype = self._default_dtype(name) if type is None else type.dtype
            type = declared_type(name, dtype, shapes.inputs[name])
        elif role == "input" and type is not None and shapes.batch is not None and type.shape:
            type = TensorType(type.dtype, (shapes.batch, *type.shape[1:]))
        if type is None:
            self.program.untyped(
                name, "the placeholder in the init net" if is_placeholder else "the fill ops of the net"
            )
        elif is_placeholder:
            self.placeholders[name] = type
        elif fill is None and role in ("parameter", "state"):
            self.without_values.append(name)
        data = fill.content if fill is not None and role == "constant" else None
        self.program.give(name, type, role, data=data, annotations={"caffe2": {"fill": name}} if fill else None)

    def _role(self, name: str, fill: Fill | None, has_shape: bool) -> str:
        """Role by the ops that read the name; by its fill op when the caller gives no shape."""
        uses = self.uses.get(name, [])
        if any(place in _WEIGHTS.get(type, ()) for type, place in uses):
            return "parameter"
        if any(place in _STATES.get(type, ()) for type, place in uses):
            return "state"
        if fill is None or fill.is_placeholder or has_shape:
            return "input"
        return "parameter" if fill.content is None else "constant"

    def _default_dtype(self, name: str) -> str:
        return next((_INTEGERS[use] for use in self.uses.get(name, ()) if use in _INTEGERS), "float32")

    def ops(self, ops: Sequence[Any]) -> None:
        """Add ops in order. Raises BadGraph."""
        for op in ops:
            self.op(op)

    def op(self, op: Any) -> None:
        attributes = {argument.name: value_of(argument) for argument in op.arg}
        inputs, outputs = list(op.input), list(op.output)
        phase = self._phase(op)
        self.read.update(inputs)
        self.read.difference_update(outputs)
        self.written.update(dict.fromkeys(outputs))
        origin = Origin("", op.type, op.name, {"arg": arguments_json(op.arg)} if len(op.arg) else {}, inputs, outputs)
        more = {
            "engine": op.engine,
            "control_input": list(op.control_input),
            "is_gradient_op": op.is_gradient_op,
            "domain": op.domain,
            "debug_info": op.debug_info,
            "device_option": message_to_dict(op.device_option) if op.HasField("device_option") else None,
        }
        origin.attributes |= {key: value for key, value in more.items() if value}
        name = op.name or (outputs[0] if outputs and outputs[0] else op.type)
        if op.type in CONTROL_FLOW_OPS:
            rows = control_flow.control_flow_rows(self, op, attributes, inputs, outputs, origin)
        else:
            rows = self.program.op(
                op.type,
                name,
                inputs,
                outputs,
                attributes,
                declared=self._gradient_types(op, phase),
                phase=phase,
                origin=origin,
            )
        if not outputs:
            rows[-1].effect = "once"
        device, source = read_route(
            op.type, device_of_op(op), str(self.arguments.get(f"copied_from/{next(iter(outputs), name)}", ""))
        )
        for row in rows:
            if device:
                row.annotations = {**(row.annotations or {}), "device": device}
            if source:
                row.annotations = {**(row.annotations or {}), COPIED_FROM: source}
            row.phase = phase  # type: ignore[assignment]

    def last_written(self) -> list[str]:
        """Names written and not read afterwards."""
        return [name for name in self.written if name in self.program.types and name not in self.read]

    def _phase(self, op: Any) -> str:
        """Phase: gradient ops and readers of their results are backward, ops of an optimizer are updates."""
        if op.type in _UPDATES and any(name in self.backward for name in op.input):
            return "update"
        generated = op.is_gradient_op or op.type.endswith("Gradient") or _is_seed(op)
        if generated or any(name in self.backward for name in op.input):
            self.backward.update(op.output)
            return "backward"
        self.backward.difference_update(op.output)
        return "forward"

    def _gradient_types(self, op: Any, phase: str) -> list[TensorType | None]:
        """In the backward part `X_grad` has the type of `X`."""
        if phase == "forward":
            return []
        found: list[TensorType | None] = []
        for name in op.output:
            base = name.partition("_grad")[0] if "_grad" in name else name
            found.append(self.program.types.get(base))
        return found


def _noted_type(arguments: Mapping[str, Any], name: str, filled: TensorType | None) -> TensorType:
    """Type of an external input, from the arguments added by the writer. Raises BadGraph."""
    shape, dtype = arguments[f"shape/{name}"], arguments.get(f"dtype/{name}", "float32")
    try:
        if dtype not in DTYPE_BITS:
            raise ValueError(f"element type {dtype!r}")
        type = TensorType(str(dtype), checked_shape(integer_list(shape)))
        if filled not in (None, type):
            raise ValueError(f"{type}, but its fill op makes {filled}")
        return type
    except (ValueError, TypeError, OverflowError) as error:
        raise BadGraph.one(
            "bad_note", f"arg shape/{name}", str(error)[:120], "lengths and an element type", "write the net again"
        ) from None


def _is_seed(op: Any) -> bool:
    return op.type == "ConstantFill" and len(op.output) == 1 and op.output[0].endswith("_autogen_grad")


def _content(op: str, attributes: Mapping[str, Any], type: TensorType) -> np.ndarray | None:
    """Content of an integer fill of up to 4096 elements; None for other fills."""
    values = attributes.get("values")
    if op not in GIVEN_DTYPES or type.dtype.startswith("float") or not isinstance(values, list):
        return None
    if len(values) != type.elements or type.elements > 4096:
        return None
    return np.asarray(values).astype(numpy_dtype(type.dtype)).reshape(type.shape)
