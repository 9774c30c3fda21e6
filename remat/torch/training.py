"""Training a module under a plan: `torch.compile` records the step, the planner orders it, both passes run op by op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import torch
from torch import fx, nn

from remat.report import Report
from remat.torch.copies.waits import waits_of
from remat.torch.step.aot import OptimizedModule, divides_graphs, refusing_second_order
from remat.torch.step.arena import Addresses, addresses_of, outside_bytes, without_workspaces
from remat.torch.step.errors import AlreadyPlanned, BudgetNotMet, NotCaptured, OtherStep, compiled_budget_text
from remat.torch.step.planning import PlanSource, order_for, plan_step, read, with_reserve
from remat.torch.step.recording import (
    NO_GRADIENT,
    Compiler,
    CompilerName,
    Passes,
    Step,
    backend_of,
    compiled_by,
    require_choice,
    step_backend,
    tensors_put_back,
)
from remat.torch.step.split import NO_COPIES, split

if TYPE_CHECKING:
    from remat.torch.inductor.saved_sets import Compiled

# Imports inside functions: Inductor takes seconds to load.

M = TypeVar("M", bound=nn.Module)
Budget = str | float | int | None
BUCKETS = (
    "torch.compile makes a graph for each bucket of DistributedDataParallel, and each would have the whole budget; "
    "wrap the planned module, DistributedDataParallel(remat.torch.optimize(model, ...)), or set "
    "torch._dynamo.config.optimize_ddp = False"
)
MemoryName = Literal["allocator", "arena"]


class Backend:
    """A backend of `torch.compile` that trains under plans.

    `reports` has the plan of each step it compiled, `compiled` with Inductor what is saved and the peak predicted, and
    `addresses` with an arena the size of the block and what is moved into it.
    """

    def __init__(
        self,
        budget: Budget,
        plan: PlanSource | None,
        measure: bool,
        new_steps: str,
        over_budget: str,
        compiler: str,
        memory: str,
        request: Mapping[str, Any],
    ):
        self.budget, self.plan, self.measure = budget, plan, measure and plan is None
        self.new_steps, self.over_budget, self.request = new_steps, over_budget, request
        self.compiler, self.memory = compiler, memory
        self.reports: list[Report | None] = []
        self.compiled: list[Compiled] = []
        self.addresses: list[Addresses] = []

    def __call__(self, graph: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        if divides_graphs():
            raise NotCaptured(BUCKETS)
        with refusing_second_order():
            return self._compiler()(graph, examples)

    def _compiler(self) -> Compiler:
        if self.compiler == "inductor":
            from remat.torch.inductor.backend import compiled_backend

            return compiled_backend(self._divided, measure=self.measure)
        run = self._placed if self.memory == "arena" else self._planned
        return step_backend(run, measure=self.measure)

    def _planned(self, step: Step) -> Passes:
        """The passes whose values PyTorch places, with the copies of the plan to the host and back."""
        order = self._order(step)
        report = self.reports[-1] if self.plan is None else read(self.plan)
        return split(step.joint, order, waits=waits_of(report or {"plan": {}}))

    def _placed(self, step: Step) -> Passes:
        """The passes whose values lie in one block, where the layout of the plan puts them.

        The block has its size throughout the step, so workspaces never share bytes with values: the plan reserves the
        largest one.
        """
        joint, saved = step.joint, None if self.plan is None else read(self.plan)
        document = step.document if saved is None else saved.get("source") or step.document
        outside = outside_bytes(joint, document)
        order = self._order(Step(joint, without_workspaces(step.document), step.device), outside)
        layout = (saved or self.reports[-1] or {}).get("layout")
        if layout is None:
            raise OtherStep(
                'the plan has no addresses: make it with layout="fast" and returns=("plan", "layout"), then save it'
            )
        self.addresses.append(addresses_of(joint, layout, outside))
        return split(joint, order, self.addresses[-1])

    def _divided(self, step: Step, plain: Callable[[], Passes]) -> Passes:
        """The passes that Inductor compiles."""
        from remat.torch.inductor.saved_sets import SavedSets, searched

        self._refuse_new_steps()
        given = None if self.plan is None else order_for(step, self.plan)
        sets = SavedSets(step, plain, self.measure)
        if given is not None:
            found, passes = sets.of_plan(given)
            self.reports.append(self.plan if isinstance(self.plan, Report) else None)
        else:
            found, passes, limit = searched(sets, self.budget, self.request)
            if limit is not None and found.peak_bytes > limit and self.over_budget == "error":
                text = compiled_budget_text(limit, found.peak_bytes, found.plain_peak_bytes)
                raise BudgetNotMet(found.report, text)
            self.reports.append(found.report)
        self.compiled.append(found)
        return passes

    def _refuse_new_steps(self) -> None:
        if self.reports and self.new_steps == "refuse":
            raise OtherStep(
                "the module was called with other shapes, or in another mode, than the plan is for; "
                'call it as before, or plan such steps too: new_steps="plan"'
            )

    def _order(self, step: Step, outside_bytes: int = 0) -> list[tuple[str, int]]:
        self._refuse_new_steps()
        if self.plan is not None:
            order = order_for(step, self.plan)
            self.reports.append(self.plan if isinstance(self.plan, Report) else None)
            return order
        report = plan_step(step, self.budget, with_reserve(self.request, outside_bytes))
        if report.status == "over_budget" and self.over_budget == "error":
            raise BudgetNotMet(report)
        self.reports.append(report)
        return report.order


def backend(
    budget: Budget = None,
    *,
    plan: PlanSource | None = None,
    measure: bool = True,
    new_steps: Literal["plan", "refuse"] = "plan",
    over_budget: Literal["error", "train"] = "error",
    compiler: CompilerName = "eager",
    memory: MemoryName = "allocator",
    **request: Any,
) -> Backend:
    """A backend for `torch.compile` that runs each training step under a plan.

    >>> step = torch.compile(model, backend=remat.torch.backend("8GiB"), fullgraph=True, dynamic=False)

    Parameters are those of `optimize`. A graph break makes several graphs, each of which is planned for the whole
    budget by itself: `fullgraph=True` refuses them. Graphs without a backward pass run unchanged.
    """
    if plan is not None and (budget is not None or request):
        raise TypeError("give a budget and request fields, or a plan that was made with them; not both")
    require_choice("new_steps", new_steps, ("plan", "refuse"))
    require_choice("over_budget", over_budget, ("error", "train"))
    require_choice("compiler", compiler, get_args(CompilerName))
    require_choice("memory", memory, get_args(MemoryName))
    if request.get("offload") and (compiler, memory) != ("eager", "allocator"):
        raise ValueError(f"offload: {NO_COPIES}")
    if memory == "arena":
        if compiler != "eager":
            raise ValueError(f'memory="arena" is for compiler="eager": {compiler} places values itself')
        if request.get("layout") == "none":
            raise ValueError('memory="arena" needs addresses; ask for layout="fast" or "best"')
        if plan is None:
            request = {"layout": "fast", **request, "returns": ("plan", "timeline", "layout")}
    return Backend(budget, plan, measure, new_steps, over_budget, compiler, memory, request)


def optimize(
    module: M,
    example_inputs: Sequence[Any] | Mapping[str, Any] | torch.Tensor,
    budget: Budget = None,
    *,
    plan: PlanSource | None = None,
    measure: bool = True,
    new_steps: Literal["plan", "refuse"] = "plan",
    over_budget: Literal["error", "train"] = "error",
    compiler: CompilerName = "eager",
    memory: MemoryName = "allocator",
    **request: Any,
) -> M:
    """A module that trains within a memory budget: same parameters, same numbers, less memory.

    The module returned shares parameters, buffers and submodules with the one given, which stays as it is. Loss,
    gradients, buffers and the state of random generators are bit for bit those of the module without a plan.

    >>> planned = remat.torch.optimize(model, (batch,), budget="50%")
    >>> planned(batch).square().mean().backward()

    Parameters:
        module: The model in the mode to plan; `train()` for training.
        example_inputs: Arguments of one call (a tensor, a sequence, or keyword arguments), with the shapes of training.
        budget: "8GiB", bytes, "50%" or 0.5 of the peak without recomputation, or 0 for the lowest peak: of one step of
            the module, with its parameters, buffers, gradients and inputs. What the loop around it holds (optimizer
            states, the loss if it is computed outside) comes on top. Without it: the lowest peak at most 10% slower.
        plan: A plan made before, instead of a budget: a `Report`, or the file that `Report.save` wrote. `measure` and
            `over_budget`, which are about a search, then have no effect.
        measure: Run the step a few times, so that times of its ops are measured, and its ops on made-up data, so that
            their workspaces are. A step that cannot be run (fake tensors, no memory, collectives) has its ops timed on
            made-up data, and a warning in its report. Without it, both are estimated from shapes, plans are
            reproducible, and the peak may be a few percent above the one predicted.
        new_steps: What to do when the module is called with other shapes or in another mode: "plan" again, or "refuse".
        over_budget: What to do if no plan is within the budget: an "error", or "train" with the lowest peak found.
        compiler: "eager" runs the plan op by op, in its order. "inductor" compiles both passes: the plan decides what
            is saved between them, shares of a budget are of the peak that Inductor has by itself, and numbers are those
            of `torch.compile` without a plan. Plans of one are refused by the other.
        memory: "allocator" lets PyTorch place values. "arena" makes one block for each step, in which every value lies
            at the address that the plan's layout gives it.
        request: Other fields of `remat.plan`, such as `search_seconds`, `max_overhead`, `device`, or `offload` for
            copies to host memory, which run on streams of their own on a CUDA device and on threads on a CPU.

    Raises:
        NotCaptured: The module is not one graph of fixed shapes, or nothing in it needs a gradient.
        BudgetNotMet: No plan within the budget was found; the message has the lowest peak.
        OtherStep: `plan` was made for another step.
        AlreadyPlanned: The module was returned by `optimize`.
        NotPlaced: A result of the step cannot lie in an arena.
        BadInput: A request field is invalid.
        TypeError: `module` is a function, or was made by `torch.compile` or `torch.jit`.
        ValueError: `new_steps`, `over_budget`, `compiler` or `memory` is none of its choices, or runs no copies.
    """
    require_module(module)
    refuse_planned(module)
    made = backend(
        budget,
        plan=plan,
        measure=measure,
        new_steps=new_steps,
        over_budget=over_budget,
        compiler=compiler,
        memory=memory,
        **request,
    )
    planned = planned_by(made)(module)
    args, kwargs = arguments(example_inputs)
    accelerators = sorted({p.device.index or 0 for p in module.parameters() if p.device.type == "cuda"})
    put_back = tensors_put_back(module, (list(args), dict(kwargs)))
    with torch.random.fork_rng(accelerators), put_back, torch.enable_grad():
        planned(*args, **kwargs)
    if not made.reports:
        raise NotCaptured(NO_GRADIENT)
    return planned


def planned_by(made: Backend, modules: int = 1) -> Callable[[M], M]:
    """A function of so many modules to ones that train under the plans of a backend, with compiled code in common."""
    compiled = compiled_by(made, modules)

    def planned(module: M) -> M:
        found = compiled(module)
        vars(found._compiled_call_impl)["remat_backend"] = made
        return found

    return planned


def require_module(given: object) -> None:
    """Raise TypeError for what is no module, or is one that `torch.compile` or `torch.jit` made."""
    if isinstance(given, OptimizedModule):
        raise TypeError("the module is compiled already; call optimize on the one it was made of, module._orig_mod")
    if isinstance(given, torch.jit.ScriptModule):
        raise TypeError("modules of torch.jit cannot be recorded; call optimize on the nn.Module it was made of")
    if not isinstance(given, nn.Module):
        raise TypeError(
            f"optimize takes an nn.Module, not {type(given).__name__}; call a function in the `forward` of a module, "
            "or compile it with remat.torch.backend"
        )


def refuse_planned(module: nn.Module) -> None:
    """Raise AlreadyPlanned for a module that trains under a plan, or holds one that does."""
    for path, each in module.named_modules():
        if backend_of(each) is not None:
            inside = f"the module {path!r} in it" if path else "the module"
            raise AlreadyPlanned(f"{inside} trains under a plan already; call optimize on the module it was made of")


def report_of(module: nn.Module) -> Report | None:
    """The plan of a module that `optimize` returned: of the step compiled last.

    None for a plan read from a file, and where Inductor meets the budget without a plan.
    """
    made = backend_of(module)
    if made is None:
        raise ValueError("the module has no plan; remat.torch.optimize gives it one")
    report: Report | None = made.reports[-1]
    return report


def arena_of(module: nn.Module) -> Addresses:
    """The block of a module that `optimize` returned with `memory="arena"`: of the step compiled last."""
    made = backend_of(module)
    if made is None or not made.addresses:
        raise ValueError('the module has no arena; remat.torch.optimize with memory="arena" gives it one')
    addresses: Addresses = made.addresses[-1]
    return addresses


def arguments(given: Sequence[Any] | Mapping[str, Any] | torch.Tensor) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Positional and keyword arguments of a call, from example inputs."""
    if isinstance(given, torch.Tensor):
        return (given,), {}
    return ((), given) if isinstance(given, Mapping) else (given, {})
