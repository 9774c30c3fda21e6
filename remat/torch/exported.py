"""The training step of an exported program (`.pt2`, `torch.export.save`), from the graph and the shapes in its archive.

Weights, constants and example inputs are neither read nor unpickled, and no text of the archive is run as code: the
graph is JSON, its ops are looked up by name among those of PyTorch, and its tensors are fake.

Run as a program, it writes the document of the request on standard input, or a problem, to the file that its argument
names: `remat plan` runs it, with limits.
"""

from __future__ import annotations

import json
import operator
import re
import resource
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from remat.steps.child import answer_request
from remat.torch.capturing import capture
from remat.torch.step.aot import FakeTensorMode, serialized_types
from remat.torch.step.errors import NotCaptured

MEMORY_BYTES = 16 << 30  # of the process
PROGRAM_BYTES = 256 << 20  # of the graph in the archive
_GRAPH = re.compile(r"(?:^|/)models/[^/]+\.json$")
_OP = re.compile(r"torch\.ops\.((?:aten|prims)\.\w+\.\w+)$")
_NAME = re.compile(r"\w+(?:\.\w+)*$")
_PLAIN = (
    "as_int",
    "as_ints",
    "as_float",
    "as_floats",
    "as_bool",
    "as_bools",
    "as_string",
    "as_strings",
    "as_int_lists",
)
_ELSEWHERE = "capture the module in your program with remat.torch.capture, and plan what its `save` writes"


def exported_step(path: str, loss: str | None = None) -> dict[str, Any]:
    """The document of the training step of an exported program, in the mode in which it was exported.

    Parameters:
        path: The archive.
        loss: Output of the program that is the loss, or `cross_entropy:OUTPUT[:AXIS]`. Without it, the step ends where
            the program does, and the gradients of its outputs come in from outside.

    Raises:
        NotCaptured: The archive is damaged, or the program has what a plan cannot have; the message says what.
    """
    try:
        program = _Program(_record(path))
    except (KeyError, IndexError, TypeError, AttributeError, RecursionError, ValueError, zipfile.BadZipFile) as error:
        if isinstance(error, NotCaptured):
            raise
        found = f"no {error} in it" if isinstance(error, KeyError) else "a damaged record"
        raise NotCaptured(f"not a program of torch.export {torch.__version__}: {found}; export it again") from None
    module, inputs = program.module(loss)
    try:
        return capture(module, *inputs, name=Path(path).stem).document
    except RuntimeError as error:
        raise NotCaptured(
            f"PyTorch cannot differentiate the program: {error}; export it without run_decompositions"
        ) from None


def _record(path: str) -> Any:
    """The JSON of the program in an archive."""
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if _GRAPH.search(name)]
        if len(names) != 1:
            raise NotCaptured(f"{len(names)} programs in the archive; save one with torch.export.save")
        with archive.open(names[0]) as file:
            data = file.read(PROGRAM_BYTES + 1)
    if len(data) > PROGRAM_BYTES:
        raise NotCaptured(f"the graph has more than {PROGRAM_BYTES:,} bytes; {_ELSEWHERE}")
    return json.loads(data)["graph_module"]


class _Program:
    """The graph of an exported program; `values` are its nodes by their names in the archive."""

    def __init__(self, record: Mapping[str, Any]):
        self.record, self.shapes = record["graph"], record["graph"]["tensor_values"]
        self.signature = record["signature"]
        self.dtypes, self.layouts, self.memory_formats = serialized_types()
        self.graph, self.values = fx.Graph(), dict[str, fx.Node]()
        self.root, self.mode = nn.Module(), FakeTensorMode(allow_non_fake_inputs=True)
        self.inputs: list[torch.Tensor] = []
        for spec in self.signature["input_specs"]:
            self._add_input(*_only(spec))
        for node in self.record["nodes"]:
            self._add_node(node)
        self.outputs: dict[str, fx.Node] = {}
        for spec in self.signature["output_specs"]:
            self._add_output(*_only(spec))

    def module(self, loss: str | None) -> tuple[fx.GraphModule, list[torch.Tensor]]:
        """The program as a module that ends with its loss, and fake inputs."""
        self.graph.output(tuple(self.outputs.values()) if loss is None else self._loss(loss))
        return fx.GraphModule(self.root, self.graph).train(), self.inputs

    def _loss(self, loss: str) -> fx.Node:
        kind, _, rest = loss.partition(":")
        name, _, axis = rest.partition(":") if kind == "cross_entropy" and rest else (loss, "", "")
        if name not in self.outputs:
            raise NotCaptured(f"--loss {loss}: no output of that name; the program returns {', '.join(self.outputs)}")
        scores, shape = self.outputs[name], self._tensor(name).shape
        if kind != "cross_entropy" or not rest:
            if shape.numel() != 1:
                raise NotCaptured(f"--loss {loss}: of shape {list(shape)}, not a scalar; try cross_entropy:{loss}")
            return scores
        if not re.fullmatch(r"|1|-1", axis) or len(shape) < 2:
            raise NotCaptured(f"--loss {loss}: classes are on axis 1 or the last of at least two axes")
        if axis != "1":
            scores = self.graph.call_function(torch.movedim, (scores, -1, 1))
            shape = torch.Size((shape[0], shape[-1], *shape[1:-1]))
        with self.mode:
            self.inputs.append(torch.empty((shape[0], *shape[2:]), dtype=torch.long))
        return self.graph.call_function(functional.cross_entropy, (scores, self._placeholder("classes")))

    def _placeholder(self, name: str) -> fx.Node:
        """An input after those before it, whatever nodes there are."""
        last = [node for node in self.graph.nodes if node.op == "placeholder"][-1:]
        with self.graph.inserting_after(last[0] if last else None):
            return self.graph.placeholder(name)

    def _add_input(self, kind: str, spec: Mapping[str, Any]) -> None:
        if kind == "constant_input":
            return
        argument = spec["arg"]
        tensor = argument.get("as_tensor", {}) if kind == "user_input" else argument
        name = tensor.get("name")
        if kind == "user_input" and name is not None:
            self.inputs.append(self._tensor(name))
            self.values[name] = self._placeholder(name)
        elif kind in ("parameter", "buffer", "tensor_constant"):
            self.values[name] = self._attribute(kind, spec[f"{kind}_name"], self._tensor(name))
        elif kind == "user_input":
            raise NotCaptured(f"an input that is no tensor: {argument}; export the module with that argument fixed")
        else:
            raise NotCaptured(f"an input of kind {kind}; {_ELSEWHERE}")

    def _attribute(self, kind: str, path: str, tensor: torch.Tensor) -> fx.Node:
        """A parameter, buffer or constant at its place in the modules."""
        if not _NAME.match(path):
            raise NotCaptured(f"{kind} {path!r} is no name of a {kind}; export the module again")
        owner = self.root
        *modules, last = path.split(".")
        for module in modules:
            if module not in owner._modules:
                owner.add_module(module, nn.Module())
            owner = getattr(owner, module)
        if kind == "parameter":
            owner.register_parameter(last, nn.Parameter(tensor, tensor.requires_grad))
        else:
            owner.register_buffer(last, tensor)
        return self.graph.get_attr(path)

    def _tensor(self, name: str) -> torch.Tensor:
        """A fake tensor like one of the archive."""
        meta = self.shapes[name]
        sizes, strides = ([_fixed(length, name) for length in meta[field]] for field in ("sizes", "strides"))
        device = self._device(meta["device"])
        with self.mode:
            tensor = torch.empty_strided(sizes, strides, dtype=self.dtypes[meta["dtype"]], device=device)
        return tensor.requires_grad_(bool(meta["requires_grad"]))

    def _device(self, record: Mapping[str, Any]) -> torch.device:
        device = torch.device(record["type"], record["index"])
        if device.type != "cpu" and not (device.type == "cuda" and torch.cuda.is_available()):
            raise NotCaptured(f"exported on {device}, which this machine does not have; export it on the CPU")
        return device

    def _add_node(self, node: Mapping[str, Any]) -> None:
        found = _OP.match(node["target"])
        if not found:
            raise NotCaptured(f"op {node['target']}, which a program alone does not define; {_ELSEWHERE}")
        namespace, name, overload = found[1].split(".")
        op = getattr(getattr(getattr(torch.ops, namespace), name), overload)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        keywords = {argument.name for argument in op._schema.arguments if argument.kwarg_only}
        positions = [argument.name for argument in op._schema.arguments if not argument.kwarg_only]
        for given in node["inputs"]:
            value = self._argument(*_only(given["arg"]))
            if given["name"] in keywords or positions.index(given["name"]) != len(args):
                kwargs[given["name"]] = value
            else:
                args.append(value)
        call = self.graph.call_function(op, tuple(args), kwargs)
        self._bind(call, node["outputs"], len(op._schema.returns) > 1)

    def _bind(self, call: fx.Node, outputs: list[Any], is_tuple: bool) -> None:
        """Name what a call returns: a tensor, the elements of a tuple, or those of a list."""
        kinds = [_only(output) for output in outputs]
        if len(kinds) == 1 and kinds[0][0] == "as_tensors":
            is_tuple, kinds = True, [("as_tensor", tensor) for tensor in kinds[0][1]]
        for i, (kind, output) in enumerate(kinds):
            if kind == "as_tensor":
                element = self.graph.call_function(operator.getitem, (call, i)) if is_tuple else call
                self.values[output["name"]] = element
            elif kind != "as_none":
                raise NotCaptured(f"{call.target}: a result that depends on data or on a shape; {_ELSEWHERE}")

    def _argument(self, kind: str, value: Any) -> Any:
        if kind == "as_tensor":
            return self.values[value["name"]]
        if kind in _PLAIN:
            return value
        read: dict[str, Callable[[Any], Any]] = {
            "as_tensors": lambda given: [self.values[each["name"]] for each in given],
            "as_optional_tensors": lambda given: [self._argument(*_only(each)) for each in given],
            "as_sym_int": lambda given: _fixed(given, "an argument"),
            "as_sym_ints": lambda given: [_fixed(each, "an argument") for each in given],
            "as_none": lambda _: None,
            "as_optional_tensor": lambda given: self._argument(*_only(given)),
            "as_scalar_type": self.dtypes.__getitem__,
            "as_layout": self.layouts.__getitem__,
            "as_memory_format": self.memory_formats.__getitem__,
            "as_device": self._device,
        }
        if kind not in read:
            raise NotCaptured(f"an argument of kind {kind}; {_ELSEWHERE}")
        return read[kind](value)

    def _add_output(self, kind: str, spec: Mapping[str, Any]) -> None:
        argument = spec["arg"]
        if kind in ("user_output", "loss_output"):
            tensor = argument.get("as_tensor") if kind == "user_output" else argument
            if tensor is not None:
                self.outputs[tensor["name"]] = self.values[tensor["name"]]
        elif kind in ("buffer_mutation", "user_input_mutation"):
            targets = {
                given["buffer_name"] if source == "buffer" else given["arg"]["as_tensor"]["name"]: given["arg"]
                for source, given in map(_only, self.signature["input_specs"])
                if source == "buffer" or (source == "user_input" and "as_tensor" in given["arg"])
            }
            target = targets[spec["buffer_name" if kind == "buffer_mutation" else "user_input_name"]]
            name = target.get("name") or target["as_tensor"]["name"]
            self.graph.call_method("copy_", (self.values[name], self.values[argument["name"]]))
        else:
            raise NotCaptured(f"an output of kind {kind}; {_ELSEWHERE}")


def _only(union: Mapping[str, Any]) -> tuple[str, Any]:
    """The kind and the value of a record that has one of several kinds."""
    ((kind, value),) = union.items()
    return kind, value


def _fixed(length: Mapping[str, Any], name: str) -> int:
    if "as_int" not in length:
        raise NotCaptured(f"{name}: a dynamic shape; only fixed ones can be planned: export without dynamic_shapes")
    return int(length["as_int"])


def main() -> None:
    """Write the document of the request on standard input."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    answer_request(lambda request: exported_step(**request), expected=(NotCaptured,))


if __name__ == "__main__":
    main()
