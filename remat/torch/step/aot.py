"""Every name of PyTorch that is not public stands here: ahead-of-time autograd, its partitioners and random states.

Written for PyTorch 2.13, which `pyproject.toml` pins.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
import torch._dynamo.config
import torch._functorch.config
import torch.distributed as dist
import torch.profiler
from torch import fx
from torch._C._profiler import _EventType
from torch._dispatch.python import no_python_dispatcher
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.eval_frame import OptimizedModule
from torch._dynamo.exc import BackendCompilerFailed, FailOnRecompileLimitHit, TorchRuntimeError, Unsupported, UserError
from torch._dynamo.utils import get_optimize_ddp_mode
from torch._export.serde import serialize
from torch._functorch._aot_autograd import runtime_wrappers
from torch._functorch._aot_autograd.descriptors import SavedForBackwardsAOTOutput
from torch._guards import TracingContext, detect_fake_mode
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.distributed.tensor import DTensor
from torch.nn.modules import module as of_modules
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import _disable_current_modes

from remat.torch.step.program import program_of

__all__ = [
    "BackendCompilerFailed",
    "FailOnRecompileLimitHit",
    "FakeTensorMode",
    "OptimizedModule",
    "TorchRuntimeError",
    "UnknownValue",
    "Unsupported",
    "UserError",
    "allocated_bytes",
    "allocated_peak",
    "allocations",
    "allow_compilations",
    "divides_graphs",
    "eager_backend",
    "fake_bytes",
    "fake_group",
    "fake_on_host",
    "fake_random_state",
    "forget_meshes",
    "graph_module",
    "group_size",
    "has_avx512",
    "has_global_hooks",
    "has_kernel",
    "outside_of_tracing",
    "peak_and_rest",
    "refusing_second_order",
    "replaced",
    "run_and_save_rng_state",
    "run_as_it_is",
    "run_with_rng_state",
    "saved_description",
    "serialized_types",
    "undivided_graphs",
    "without_autocast",
]

without_autocast = torch._C._DisableAutocast  # context manager
#: Errors of code that reads the values of fake tensors.
UnknownValue = (DataDependentOutputException, DynamicOutputShapeException)
MARK = "remat: "
Partition = Callable[..., tuple[fx.GraphModule, fx.GraphModule]]
#: Ops that tracing replaces by others, which round otherwise and take more memory than the kernels of eager PyTorch.
REPLACED = re.compile("_?upsample_.*|softshrink|hardshrink|multi_margin_loss|multilabel_margin_loss_forward")
DROPOUT = torch.ops.aten.dropout.default
REPLACED_FOR = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
SECOND_ORDER = (
    "second-order gradients (create_graph=True) of a module under a plan are refused; take them of the module without "
    "the plan, which has the same parameters"
)


@contextlib.contextmanager
def replaced(module: ModuleType, name: str, value: Any) -> Iterator[None]:
    """Scope in which an attribute of a module has another value, where PyTorch has no hook."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


@contextlib.contextmanager
def outside_of_tracing() -> Iterator[None]:
    """Ops run as in training: no mode of the compiler sees them, and no dispatch goes through Python."""
    with _disable_current_modes(), no_python_dispatcher():
        yield


def fake_group(ranks: Sequence[int]) -> dist.ProcessGroup:
    """A group of these ranks, this one among them, that does not communicate. Each of them makes it."""
    from torch.testing._internal.distributed import fake_pg  # noqa: F401  makes the backend known

    group: dist.ProcessGroup = dist.new_group(list(ranks), backend="fake", use_local_synchronization=True)
    return group


def allow_compilations(count: int) -> None:
    """One function may be compiled so many times more in this process, over all uses of `torch.compile`."""
    torch._dynamo.config.accumulated_recompile_limit += count


def divides_graphs() -> bool:
    """Whether PyTorch compiles a graph of its own for each bucket of the DistributedDataParallel that runs."""
    return _runs_ddp() and get_optimize_ddp_mode() == "ddp_optimizer"


def undivided_graphs() -> contextlib.AbstractContextManager[Any]:
    """Scope in which a module inside of DistributedDataParallel is compiled as one graph, not one for each bucket."""
    return torch._dynamo.config.patch(optimize_ddp=False) if _runs_ddp() else contextlib.nullcontext()


def _runs_ddp() -> bool:
    return DistributedDataParallel._get_active_ddp_module() is not None


def forget_meshes() -> None:
    """Empties a cache of DTensor in which one of two meshes of the same ranks stands for both."""
    DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_clear()
    torch._C._clear_DTensor_sharding_propagator_cache()


def eager_backend(partition: Partition) -> Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
    """A backend of `torch.compile` that divides the joint graph by `partition` and runs both parts op by op.

    Arguments arrive in a list that the graph empties, so each tensor goes after its last reader. A module that is
    called under autocast has its backward pass recorded without, as it runs in eager PyTorch.
    """
    backend = aot_autograd(fw_compiler=run_as_it_is, bw_compiler=run_as_it_is, partition_fn=partition)

    def compiled(graph: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        with torch._functorch.config.patch(backward_pass_autocast="off"), _replacing_no_ops():
            run: Callable[..., Any] = backend(graph, examples)
        return run

    return compiled


@contextlib.contextmanager
def refusing_second_order() -> Iterator[None]:
    """Scope in which passes are compiled whose backward pass refuses `create_graph=True`.

    Those of PyTorch leave out what second-order gradients have of the module, and raise for some of them only.
    """

    def refused(*_: Any) -> Any:
        raise RuntimeError(SECOND_ORDER)

    def generated(*options: Any, **named: Any) -> Callable[..., Any]:
        backward = generate(*options, **named)
        return lambda *arguments: backward(*arguments[:-1], refused)

    generate = runtime_wrappers._codegen_compiled_backward
    with replaced(runtime_wrappers, "_codegen_compiled_backward", generated):
        yield


@contextlib.contextmanager
def _replacing_no_ops() -> Iterator[None]:
    """Scope in which ops of REPLACED are traced as they are, and dropout of everything draws no random numbers."""
    packets = [getattr(torch.ops.aten, name) for name in dir(torch.ops.aten) if REPLACED.fullmatch(name)]
    ops = [DROPOUT, *(getattr(packet, overload) for packet in packets for overload in packet.overloads())]
    before = [(op, op.py_kernels.copy()) for op in ops]
    for op, kernels in before:
        for key in REPLACED_FOR:
            op.py_kernels.pop(key, None)
            if op is DROPOUT:
                op.py_kernels[key] = _without_dropout_of_everything(kernels[key])
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, kernels in before:
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()


def _without_dropout_of_everything(traced: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Dropout as it is traced, but with p=1 as eager PyTorch computes it."""

    def dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        return x * x.new_zeros(()) if train and p == 1 else traced(x, p, train)

    return dropout


def run_as_it_is(graph: fx.GraphModule, examples: Sequence[Any]) -> Callable[[list[Any]], Any]:
    """The graph op by op. It writes into no saved tensor, so a backward pass may retain them.

    Ops of PyTorch alone run below autograd, which records nothing here: small ops take less time without its kernels.
    """
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []
    program = program_of(graph, _kernel)
    below = torch._C._AutoDispatchBelowAutograd if _is_of_torch(graph) else contextlib.nullcontext

    def run(arguments: list[Any]) -> Any:
        with below():
            return program(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _kernel(target: Any) -> Callable[..., Any]:
    """What a call of an op does, without the frame and the look-ups of `torch.ops`."""
    called: Callable[..., Any] = target._op if isinstance(target, torch._ops.OpOverload) else target
    return called


def _is_of_torch(graph: fx.GraphModule) -> bool:
    """Whether all ops of a graph are PyTorch's own: kernels of others may use autograd inside."""
    called = (value for node in graph.graph.nodes for value in (node.target, *node.args))
    return all(op.namespace in ("aten", "prims") for op in called if isinstance(op, torch._ops.OpOverload))


def graph_module(root: fx.GraphModule, graph: fx.Graph) -> fx.GraphModule:
    """A module that runs a graph whose constants are attributes of `root`."""
    return fx.GraphModule(root, graph)


def group_size(arguments: Sequence[Any]) -> int | None:
    """Number of ranks of the process group among the arguments of an op: the group, or its name, the last text."""
    for argument in reversed(arguments):
        if isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type()):
            return int(torch.distributed.ProcessGroup.unbox(argument).size())
        if isinstance(argument, str):
            return int(torch.distributed.distributed_c10d._resolve_process_group(argument).size())
    return None


def saved_description(number: int) -> Any:
    """What ahead-of-time autograd notes on an output of the forward pass that is saved for the backward pass."""
    return SavedForBackwardsAOTOutput(number)


def serialized_types() -> tuple[
    Mapping[int, torch.dtype], Mapping[int, torch.layout], Mapping[int, torch.memory_format]
]:
    """Element types, layouts and memory formats by their numbers in an archive of `torch.export.save`."""
    return (
        serialize._SERIALIZE_TO_TORCH_DTYPE,
        serialize._SERIALIZE_TO_TORCH_LAYOUT,
        serialize._SERIALIZE_TO_TORCH_MEMORY_FORMAT,
    )


def fake_random_state(example: torch.Tensor) -> torch.Tensor:
    """A fake tensor like the state of the generator of a fake tensor's device."""
    device = example.device
    state = torch.get_rng_state() if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)
    mode = detect_fake_mode([example])
    assert mode is not None
    fake: torch.Tensor = mode.from_tensor(state, static_shapes=True)
    return fake


def fake_bytes(example: torch.Tensor, count: int, device: torch.device) -> torch.Tensor:
    """A fake tensor of so many bytes, in the mode of a fake tensor."""
    mode = detect_fake_mode([example])
    assert mode is not None
    with mode:
        return torch.empty(count, dtype=torch.uint8, device=device)


def fake_on_host(example: torch.Tensor) -> torch.Tensor:
    """A fake tensor in host memory like a fake tensor."""
    mode = detect_fake_mode([example])
    assert mode is not None
    with mode:
        return torch.empty_strided(example.shape, example.stride(), dtype=example.dtype, device="cpu")


def has_kernel(op: torch._ops.OpOverload, device_type: str) -> bool:
    """Whether an op has a kernel of its own for a type of device, instead of one made of other ops."""
    schema = op._schema
    name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    key = torch._C._dispatch_key_for_device(device_type)
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))


def has_avx512() -> bool:
    """Whether the processor has AVX-512, whatever PyTorch's own kernels were limited to."""
    return bool(torch.cpu._is_avx512_supported())


def has_global_hooks() -> bool:
    """Whether hooks of all modules are registered, but for those that `torch.compiler.disable` keeps out of graphs."""
    kinds = (
        of_modules._global_forward_pre_hooks,
        of_modules._global_forward_hooks,
        of_modules._global_backward_pre_hooks,
        of_modules._global_backward_hooks,
    )
    return any(not getattr(hook, "_torchdynamo_disable", False) for hooks in kinds for hook in hooks.values())


def allocations(calls: Mapping[str, Callable[[], Callable[[], Any]]]) -> dict[str, int]:
    """Bytes that each call needs beyond its inputs and outputs. A call is made with its inputs, then run once."""
    if torch.cuda.is_available():
        return {key: _cuda_workspace(make()) for key, make in calls.items()}
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")
    activities = [torch.profiler.ProfilerActivity.CPU]
    keys = list(calls)
    with torch.profiler.profile(activities=activities, profile_memory=True) as record:
        for number, key in enumerate(keys):
            call = calls[key]()
            with torch.profiler.record_function(f"{MARK}{number}"):
                held = call()
            del held, call
    found = dict.fromkeys(keys, 0)
    events = list(record.profiler.kineto_results.experimental_event_tree())
    while events:
        event = events.pop()
        if event.name.startswith(MARK):
            peak, rest = peak_and_rest([event])
            found[keys[int(event.name.removeprefix(MARK))]] = peak - rest
        else:
            events.extend(event.children)
    return found


def allocated_peak(call: Callable[[], Any]) -> int:
    """Largest number of bytes that a call holds at once on a CPU beyond what was there before, workspaces included."""
    return allocated_bytes(call)[0]


def allocated_bytes(call: Callable[[], Any]) -> tuple[int, int]:
    """(largest number of bytes that a call holds at once on a CPU, bytes left after it) beyond those before."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as record:
        call()
    return peak_and_rest(record.profiler.kineto_results.experimental_event_tree())


def peak_and_rest(events: Iterable[Any]) -> tuple[int, int]:
    """(largest number of bytes allocated at once, bytes left at the end) of the allocations below profiler events.

    What was allocated before the events and is freed among them, such as garbage in cycles, does not count.
    """
    changes, events = [], list(events)
    while events:
        below = events.pop()
        events.extend(below.children)
        kind, allocation = below.typed
        if kind == _EventType.Allocation:
            changes.append((below.start_time_ns, allocation.ptr, allocation.alloc_size))
    blocks: dict[int, int] = {}
    live = peak = 0
    for _, address, size in sorted(changes, key=lambda change: change[0]):
        if size > 0:
            blocks[address] = size
            live += size
        else:
            live -= blocks.pop(address, 0)
        peak = max(peak, live)
    return peak, live


def _cuda_workspace(call: Callable[[], Any]) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held = call()
    torch.cuda.synchronize()
    workspace = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    del held
    return int(workspace)
