"""The graph document of a training step: what `remat.plan` reads, written from a joint graph.

    joint graph                               document
    task                                 ──▶  node, with its flops, traffic, effect, module path and source line
    view                                 ──▶  node with `alias_of`
    sum of gradients                     ──▶  node with `takeover`: it is written over an operand that ends there
    random op                            ──▶  node that reads the state of the generator, which a node before it notes
    what the caller does with the loss   ──▶  node `tangents`, between the forward and the backward pass

Needs PyTorch and the standard library only.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from remat.torch.step.aot import fake_random_state, group_size
from remat.torch.step.joint import (
    BATCH_NORM,
    Joint,
    is_mutation,
    is_random,
    module_path,
    source_line,
    storage_of,
    tensors_of,
)
from remat.torch.step.workspace import workspace_of

TANGENTS = "tangents"
COLLECTIVES = ("_c10d_functional", "c10d_functional", "_dtensor", "c10d")
FUNCTIONAL_COLLECTIVES = COLLECTIVES[:2]  # write to new tensors only
TAGGED = ("aten", "prims", "inductor_prims")  # namespaces whose ops have a tag if they draw random numbers
STATE = ".state"
CPU_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
CPU_ATTENTION_GRADIENT = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def document(
    joint: Joint,
    name: str = "",
    roles: Mapping[str, tuple[str, str]] | None = None,
    costs: Mapping[str, Any] | None = None,
    replay: bool = True,
    root: str = "",
) -> dict[str, Any]:
    """The document of a step.

    Parameters:
        joint: The step.
        name: Name of the model.
        roles: For inputs by name: role in the document, and name of the parameter, buffer or argument in the module.
            Left out: `input`.
        costs: Measured `cost` of nodes by name; others get flops and bytes moved.
        replay: Random ops may run again from a saved state of the generator; else they never do.
        root: Path of the model in what was recorded; paths of modules begin there.

    Returns:
        A `remat/1` document, ready for `json.dumps`.
    """
    return _Writer(joint, roles or {}, costs or {}, replay, root).document(name)


class _Writer:
    """State of one `document` call."""

    def __init__(
        self, joint: Joint, roles: Mapping[str, tuple[str, str]], costs: Mapping[str, Any], replay: bool, root: str
    ):
        self.joint, self.roles, self.costs, self.replay, self.root = joint, roles, costs, replay, root
        self.values: list[dict[str, Any]] = []
        self.nodes: list[dict[str, Any]] = []
        self.bytes: dict[str, int] = {}  # value -> bytes in the document
        self.last_random: str | None = None

    def document(self, name: str) -> dict[str, Any]:
        joint = self.joint
        for node in joint.nodes:
            if node.op == "get_attr" and tensors_of(node):
                self._add_value(node.name, tensors_of(node)[0], role="constant")
        for node in joint.inputs:
            role, origin = self.roles.get(node.name, ("input", ""))
            for tensor in tensors_of(node):
                self._add_value(node.name, tensor, role=role, **noted(origin=path_below(self.root, origin)))
        calls = [node for node in joint.nodes if node.op == "call_function" and node.target is not operator.getitem]
        forward = [node for node in calls if not joint.is_backward(node)]
        for node in forward:
            self._add_node(node)
        self._add_tangents(forward)
        for node in calls:
            if joint.is_backward(node):
                self._add_node(node)
        held = [node for node in joint.outputs if node is not None and joint.result(node).node.op == "call_function"]
        return {
            "format": "remat/1",
            "name": name,
            "values": self.values,
            "nodes": self.nodes,
            "outputs": list(dict.fromkeys(value_name(joint, node) for node in held)),
            "gradients": {source.name: value_name(joint, gradient) for source, gradient in joint.gradients},
            "annotations": {
                "framework": f"torch {torch.__version__}",
                "device": joint.device.type,
                "modules": [path_below(self.root, path) for path in joint.modules() if path != self.root],
            },
        }

    def _add_value(self, name: str, tensor: torch.Tensor, **fields: Any) -> None:
        self._add_sized(name, tensor, tensor.untyped_storage().nbytes(), **fields)

    def _add_sized(self, name: str, tensor: torch.Tensor, size: int, **fields: Any) -> None:
        value = {"name": name, "shape": list(tensor.shape), "dtype": dtype_name(tensor.dtype), **fields}
        if size != tensor.numel() * tensor.element_size():
            value |= {"bytes": size, "fixed_bytes": True}
        self.bytes[name] = size
        self.values.append(value)

    def _add_node(self, node: fx.Node) -> None:
        joint = self.joint
        inputs = [value_name(joint, source) for source in node.all_input_nodes if tensors_of(source)]
        outputs = self._add_results(node)
        if is_random(node) and self.replay:
            inputs.append(self._add_random_state(node))
        record: dict[str, Any] = {
            "name": node.name,
            "op": op_name(node),
            "inputs": inputs,
            "outputs": outputs,
            "attributes": {
                "arguments": f"{node.args} {node.kwargs}" if node.kwargs else str(node.args),
                **ranks_of(node),
            },
            "phase": "backward" if joint.is_backward(node) else "forward",
            **noted(module=path_below(self.root, module_path(node)), line=source_line(node)),
        }
        if joint.is_view(node):
            source = value_name(joint, joint.shown(node))
            record["alias_of"] = {output: source for output in outputs if output}
        else:
            record |= self._cost(node) | self._effect(node)
        if overwritable := [value_name(joint, node.args[position]) for position in joint.overwritable(node)]:
            record["takeover"] = {node.name: overwritable}
        if is_mutation(node):
            written = joint.result(node.args[0])
            others = (task for task in joint.tasks if task is not node and not joint.is_backward(task))
            record["after"] = [task.name for task in others if written in joint.reads(task)]
        self.nodes.append(record)

    def _add_results(self, node: fx.Node) -> list[str]:
        """Add the values that a call computes; returns their names, "" for None."""
        value = None if is_mutation(node) and not node.users else node.meta.get("val")
        if isinstance(value, torch.Tensor):
            self._add_result(node, value, node.name)
            return [node.name]
        names = []
        for i, tensor in enumerate(value if isinstance(value, (list, tuple)) else ()):
            names.append(element_name(self.joint, node, i) if isinstance(tensor, torch.Tensor) else "")
            if names[-1]:
                self._add_result(node, tensor, names[-1])
        return names

    def _add_result(self, node: fx.Node, tensor: torch.Tensor, name: str) -> None:
        if self.joint.is_view(node):
            self._add_sized(name, tensor, self.bytes[value_name(self.joint, self.joint.shown(node))])
        else:
            self._add_value(name, tensor)

    def _add_random_state(self, node: fx.Node) -> str:
        """Before its first run a random op notes the state of the generator, which its repeats restore."""
        name = f"{node.name}{STATE}"
        before, self.last_random = self.last_random, node.name
        self._add_value(name, fake_random_state(tensors_of(node)[0]))
        record: dict[str, Any] = {
            "name": name,
            "op": "generator::State",
            "inputs": [],
            "outputs": [name],
            "phase": "backward" if self.joint.is_backward(node) else "forward",
            "after": [] if before is None else [before],  # first runs draw in the order of the step
            "recompute": "never",
            "cost": {"seconds": 0.0},
        }
        self.nodes.append(record)
        return name

    def _cost(self, node: fx.Node) -> dict[str, Any]:
        if node.name in self.costs:
            return {"cost": self.costs[node.name]}
        workspace = {"workspace_bytes": held} if (held := workspace_of(node)) else {}
        return {"cost": {"flops": flops_of(node), "traffic_bytes": traffic_of(node), **workspace}}

    def _effect(self, node: fx.Node) -> dict[str, Any]:
        """Fields about repeats: what draws random numbers, communicates, writes, or reads what changes meanwhile."""
        namespace = getattr(node.target, "namespace", "")
        if namespace in FUNCTIONAL_COLLECTIVES:
            return {"effect": "collective"}
        if namespace in COLLECTIVES:
            return {"effect": "collective", "recompute": "never"}
        schema = getattr(node.target, "_schema", None)
        if schema is None or schema.is_mutable or not tensors_of(node):
            return {"effect": "once"}
        if is_random(node) and not self.replay:
            return {"recompute": "never"}
        if namespace not in TAGGED and not is_random(node):  # may draw random numbers, in the order of the step
            before, self.last_random = self.last_random, node.name
            return {"recompute": "never"} | ({} if before is None else {"after": [before]})
        if torch.Tag.nondeterministic_bitwise in node.target.tags:
            return {"effect": "unstable"}
        if node.target is not BATCH_NORM and any(read.node in self.joint.mutated for read in self.joint.reads(node)):
            return {"recompute": "never"}
        heavy = node.target._overloadpacket in flop_registry
        return {"heavy": True} if heavy else {}

    def _add_tangents(self, forward: list[fx.Node]) -> None:
        """Between the passes the caller computes the gradients of what the forward pass returns."""
        joint = self.joint
        for node in joint.tangents:
            self._add_value(node.name, tensors_of(node)[0])
        read = {joint.result(n).node for node in forward if not joint.is_view(node) for n in node.all_input_nodes}
        self.nodes.append(
            {
                "name": TANGENTS,
                "op": "autograd::Tangents",
                "inputs": [],
                "outputs": [node.name for node in joint.tangents],
                "after": [node.name for node in forward if node not in read and not joint.is_view(node)],
                "recompute": "never",
                "cost": {"seconds": 0.0},
            }
        )


def value_name(joint: Joint, node: fx.Node) -> str:
    """Name of a node's value in the document; nodes that pick one element of a tuple share a name."""
    if node.target is operator.getitem:
        return element_name(joint, joint.shown(node), int(node.args[1]))
    return node.name


def element_name(joint: Joint, node: fx.Node, element: int) -> str:
    """Name of an element of a tuple: that of the first node that picks it, if there is one."""
    picked = joint.elements.get(node, {}).get(element)
    return f"{node.name}.{element}" if picked is None else picked.name


def op_name(node: fx.Node) -> str:
    """`namespace::op.overload`."""
    namespace, _, rest = str(node.target).partition(".")
    return f"{namespace}::{rest}" if rest else f"higher_order::{namespace}"


def dtype_name(dtype: torch.dtype) -> str:
    """Element type in the document, such as `float32` or `float8e4m3fn`."""
    return str(dtype).removeprefix("torch.").replace("float8_", "float8")


def path_below(root: str, path: str) -> str:
    """A path as it reads from the module at `root`."""
    return "" if path == root else path.removeprefix(f"{root}.") if root else path


def noted(**given: str) -> dict[str, Any]:
    """The field `annotations` with what is known, or nothing."""
    known = {name: text for name, text in given.items() if text}
    return {"annotations": known} if known else {}


def ranks_of(node: Any) -> dict[str, int]:
    """Attribute `ranks` of a collective: processes that take part; nothing for other ops."""
    if getattr(node.target, "namespace", "") not in COLLECTIVES:
        return {}
    ranks = group_size([*node.args, *node.kwargs.values()])
    return {} if ranks is None else {"ranks": ranks}


def flops_of(node: fx.Node) -> int:
    """Floating-point operations of one run: PyTorch's formulas, else one for each element of the outputs."""
    args, kwargs = (fx.map_arg(given, lambda source: source.meta["val"]) for given in (node.args, node.kwargs))
    result = node.meta.get("val")  # None of calls that return nothing, such as assertions
    if node.target is CPU_ATTENTION:  # has no formula of its own
        return int(sdpa_flop_count(*(tensor.shape for tensor in args[:3])))
    if node.target is CPU_ATTENTION_GRADIENT:
        return int(sdpa_backward_flop_count(*(tensor.shape for tensor in args[:4])))
    formula = flop_registry.get(getattr(node.target, "_overloadpacket", None))
    if formula is not None:
        return int(formula(*args, **kwargs, out_val=result))
    return sum(tensor.numel() for tensor in tensors_of(node))


def traffic_of(node: fx.Node) -> int:
    """Bytes read and written by one run; a storage that several inputs show counts once."""
    read = {storage_of(tensor): tensor for source in node.all_input_nodes for tensor in tensors_of(source)}
    return sum(stored_bytes(tensor) for tensor in (*read.values(), *tensors_of(node)))


def stored_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the elements that a tensor shows, repeated ones (`expand`) once."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
