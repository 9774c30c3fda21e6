"""Every name of Inductor that is not public stands here: its partitioner hook, its lowering, the code that it writes.

    joint graph ──partition──▶ forward, backward ──lowering, fusion, scheduling──▶ Python code that allocates and frees
                                                                                            │
                                                 peak  ◀── run with fake tensors, kernels left out ◀┘

Written for PyTorch 2.13, which `pyproject.toml` pins.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch._functorch.config
import torch._inductor.config
from torch import fx
from torch._functorch._aot_autograd.graph_compile import collect_fw_donated_buffer_idxs
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor import compile_fx as compiler
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.custom_graph_pass import CustomPartitionerFn
from torch._inductor.debug import DebugContext
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from remat.torch.step.aot import outside_of_tracing, replaced

Passes = tuple[fx.GraphModule, fx.GraphModule]
Divide = Callable[[fx.GraphModule, int, Callable[[], Passes]], Passes]
SEEDS = torch.ops.prims.inductor_seeds.default
#: Ops without the tag `pointwise` that Inductor computes where they are read.
INLINED = {
    torch.ops.aten.embedding.default,
    torch.ops.aten.full.default,
    torch.ops.aten.gather.default,
    torch.ops.aten.index.Tensor,
    torch.ops.prims.inductor_lookup_seed.default,
    torch.ops.prims.inductor_random.default,
    torch.ops.prims.iota.default,
}


class _Partitioner(CustomPartitionerFn):
    """The partitioner that Inductor calls; it has no id, as a graph read from a cache would come without its plan."""

    def __init__(self, divide: Divide):
        self.divide = divide

    def __call__(self, joint: fx.GraphModule, joint_inputs: Sequence[Any], **options: Any) -> Passes:
        def plain() -> Passes:
            return min_cut_rematerialization_partition(_copied(joint), joint_inputs, **options)

        return self.divide(joint, options["num_fwd_outputs"], plain)

    def uuid(self) -> None:
        return None


def inductor_backend(divide: Divide) -> Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
    """A backend of `torch.compile` that divides the joint graph by `divide` and compiles both parts with Inductor.

    `divide` gets the joint graph after the passes of Inductor, the number of forward outputs, and a function that
    divides it as Inductor does. Graphs are not cached, compiled kernels are.
    """
    patches = {"custom_partitioner_fn": _Partitioner(divide), "fx_graph_cache": False}

    def compiled(graph: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        with torch._functorch.config.patch(enable_autograd_cache=False):
            made: Callable[..., Any] = compiler.compile_fx(graph, examples, config_patches=patches)
        return made

    return compiled


def is_inlined(node: fx.Node) -> bool:
    """Whether Inductor computes an op in the kernels that read it, unless it has to be stored."""
    return torch.Tag.pointwise in getattr(node.target, "tags", ()) or node.target in INLINED


def is_generated(node: fx.Node) -> bool:
    """Whether Inductor writes the kernel of an op, so that ops before it can be computed inside it."""
    return is_inlined(node) or torch.Tag.reduction in getattr(node.target, "tags", ())


@dataclass(frozen=True, slots=True)
class Layout:
    """Stands for a tensor among the arguments of a call."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    storage_bytes: int

    @staticmethod
    def of(tensor: torch.Tensor) -> Layout:
        size = tensor.untyped_storage().nbytes()
        return Layout(
            tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), tensor.dtype, tensor.device, size
        )

    def example(self) -> torch.Tensor:
        """A tensor of zeros like this."""
        storage = torch.zeros(self.storage_bytes // self.dtype.itemsize, dtype=self.dtype, device=self.device)
        return storage.as_strided(self.shape, self.stride, self.offset)


@dataclass(frozen=True, slots=True)
class Moment:
    """An op of PyTorch that the generated code calls: what it is called with, and the bytes held once it has run."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    live_bytes: int

    @property
    def call(self) -> str:
        """Equal for calls that need the same workspace."""
        return str((self.target, self.args, self.kwargs))

    def example(self) -> Callable[[], Any]:
        """The call with made-up data."""
        args, kwargs = tree_map_only(Layout, Layout.example, (self.args, self.kwargs))
        return lambda: self.target(*args, **kwargs)


def moments(passes: Passes) -> list[Moment]:
    """What happens to memory when Inductor's code for the two passes runs; inputs of the step count from the start.

    The code is written as for a compilation and called with fake tensors; its kernels are left out.
    """
    forward, backward = (_copied(module) for module in passes)
    with outside_of_tracing(), torch.no_grad(), torch.random.fork_rng([]):
        code = _code(forward, _placeholders(forward))
        memory = _Memory()
        with FakeTensorMode(allow_non_fake_inputs=True) as mode, memory:
            inputs: dict[str, torch.Tensor] = {}
            for node in forward.graph.find_nodes(op="placeholder"):
                inputs[node.name] = _fake_like(node.meta["val"])
            returned = _called(code, list(inputs.values()))
        saved = dict(zip(_saved_names(backward), returned[len(returned) - len(_saved_names(backward)) :], strict=True))
        examples = []
        for node in backward.graph.find_nodes(op="placeholder"):
            value, like = node.meta["val"], saved.get(node.name)
            if like is not None and value.stride() != like.stride():
                with value.fake_mode:
                    value = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
            examples.append(value)
        code = _code(backward, examples, _donated(*passes))
        with mode, memory:
            arguments = [
                saved[node.name] if node.name in saved else _fake_like(node.meta["val"])
                for node in backward.graph.find_nodes(op="placeholder")
            ]
            saved.clear()
            del like
            held = returned[: len(returned) - len(_saved_names(backward))]
            returned.clear()
            gradients = _called(code, arguments)
        del held, gradients, inputs
    return memory.moments


def _saved_names(backward: fx.GraphModule) -> list[str]:
    """Inputs of the backward pass that the forward pass saves; they come before the tangents."""
    names = [node.name for node in backward.graph.find_nodes(op="placeholder")]
    return [name for name in names if not name.startswith("tangents_")]


def _donated(forward: fx.GraphModule, backward: fx.GraphModule) -> list[int]:
    """Inputs of the backward pass that nothing else holds."""
    (returned,), (gradients,) = (module.graph.find_nodes(op="output") for module in (forward, backward))
    values = [node.meta.get("val") if isinstance(node, fx.Node) else None for node in returned.args[0]]
    ends = [node.meta.get("val") if isinstance(node, fx.Node) else None for node in gradients.args[0]]
    first = len(values) - len(_saved_names(backward))
    donated: list[int] = collect_fw_donated_buffer_idxs(_placeholders(forward), values[:first], ends, values[first:])
    return donated


def _placeholders(module: fx.GraphModule) -> list[Any]:
    return [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]


def _copied(module: fx.GraphModule) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}, return_output_node=False))
    (before,), (after,) = (g.find_nodes(op="output") for g in (module.graph, graph))
    after.meta = dict(before.meta)
    return fx.GraphModule(module, graph)


def _fake_like(value: Any) -> Any:
    """A fake tensor of the active mode like one of another mode."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def _code(module: fx.GraphModule, examples: Sequence[Any], donated: list[int] | None = None) -> _Code:
    """What Inductor writes for a pass, as in a compilation, but nothing is compiled.

    `donated` are the inputs of a backward pass that its code may overwrite; None for a forward pass.
    """
    compiler.view_to_reshape(module)
    (output,) = module.graph.find_nodes(op="output")
    output.meta.setdefault("user_visible_output_idxs", [])
    mode = compiler.fake_tensor_prop(module, examples)
    compiler._recursive_record_original_output_strides(module)
    with DebugContext(), V.set_fake_mode(mode), compiler.maybe_disable_comprehensive_padding(examples):
        compiler._recursive_post_grad_passes(module, is_inference=False)
        lowering = GraphLowering(module, example_inputs=examples, is_backward=donated is not None)
        lowering.bw_donated_idxs = donated
        with V.set_graph_handler(lowering), V.set_extern_kernel_nodes([]):
            lowering.run(*examples)
            code, _ = lowering.codegen()
    return _Code(code.value, dict(lowering.constants))


@dataclass(frozen=True, slots=True)
class _Code:
    """Python code of Inductor, and the constants that it reads as globals."""

    text: str
    constants: dict[str, torch.Tensor]


class _Kernel:
    """Stands for a compiled kernel and does nothing, nor does whatever is taken of it."""

    def __call__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, name: str) -> _Kernel:
        return self


class _NoCompilation:
    """Stands for the compiler of kernels."""

    def __getattr__(self, name: str) -> Callable[..., _Kernel]:
        return lambda *_, **__: _Kernel()


def _called(code: _Code, arguments: list[Any]) -> list[Any]:
    """Run generated code with fake tensors; the list of arguments is emptied, as the code does."""
    module: dict[str, Any] = {"__name__": "remat_generated", **code.constants}
    with replaced(sys.modules[AsyncCompile.__module__], "AsyncCompile", _NoCompilation):
        exec(compile(code.text, "<generated by Inductor>", "exec"), module)
    module["assert_size_stride"] = module["assert_alignment"] = lambda *_: None
    module["reinterpret_tensor"] = lambda t, size, stride, offset=0: t.as_strided(
        size, stride, t.storage_offset() + offset
    )
    for device in ("cpu", "cuda"):
        module[f"empty_strided_{device}"] = lambda size, stride, dtype, device=device: torch.empty_strided(
            size, stride, dtype=dtype, device=device
        )
    return list(module["call"](arguments))


class _Memory(TorchDispatchMode):
    """Counts the bytes of all storages that exist, and notes the ops that run."""

    def __init__(self) -> None:
        super().__init__()
        self.live_bytes = 0
        self.moments: list[Moment] = []
        self._known: set[int] = set()

    def __torch_dispatch__(self, target: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = target(*args, **kwargs)
        for tensor in result if isinstance(result, (list, tuple)) else [result]:
            if isinstance(tensor, torch.Tensor):
                self._add(tensor.untyped_storage())
        described_args, described_kwargs = tree_map_only(torch.Tensor, Layout.of, (args, kwargs))
        self.moments.append(Moment(target, described_args, described_kwargs, self.live_bytes))
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known.add(key)
            self.live_bytes += size
            weakref.finalize(storage, self._remove, key, size)

    def _remove(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live_bytes -= size
