"""Training under a plan: a function like `jax.value_and_grad` of the user's, in the order of the plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax

from remat.jax.capturing import Capture, capture
from remat.jax.planning import PlanSource, tasks_in_order
from remat.jax.step.compiling import compiler_options, warn_of_lacking_options
from remat.jax.step.emission import Emission
from remat.jax.step.private import with_weak_type
from remat.jax.step.program import Program, trace
from remat.jax.step.tasks import Task
from remat.jax.step.weak_types import WeakTypeRules
from remat.report import Report
from remat.steps.errors import BudgetNotMet, OtherStep

VARYING = (
    "a planned function follows no values that vary over devices of a shard_map: put the shard_map into the function "
    "that is planned, or call jax.shard_map with check_vma=False, where gradients are those of each device"
)


class Planned:
    """`jax.value_and_grad` of a function under a plan, from `optimize`.

    `report` is the plan, None for one read from a file; `capture` is the step. Called outside `jax.jit` it compiles
    itself; inside, it is part of what is compiled, and a `PlanNotKept` warning names options that this lacks.
    """

    def __init__(
        self,
        captured: Capture,
        order: Sequence[Task],
        report: Report | None,
        traced: Callable[[Sequence[Any]], Program],
    ):
        self.capture, self.report = captured, report
        self._emission = Emission(captured.program, order)
        self._rules = WeakTypeRules(captured.program, traced)
        self._compiled = jax.jit(self._emission, compiler_options=compiler_options())

    def __call__(self, *args: Any) -> Any:
        flat, tree = jax.tree.flatten(args)
        avals = [jax.typeof(leaf) for leaf in flat]
        self._require_equal_shapes(avals, tree)
        weak = None if self._rules.are_planned(avals) else self._rules.of_results(avals)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in flat):
            warn_of_lacking_options()
            results = self._emission(flat)
        else:
            results = self._compiled(flat)
        if weak is not None:
            results = [with_weak_type(result, is_weak) for result, is_weak in zip(results, weak, strict=True)]
        return jax.tree.unflatten(self.capture.program.out_tree, results)

    @property
    def flops(self) -> int:
        """Floating-point operations of a step in the order of the plan."""
        return self._emission.flops

    def lower(self, *args: Any) -> Any:
        """As of a jitted function: `lower(...).compile(remat.jax.compiler_options()).memory_analysis()`."""
        return jax.jit(self.__call__).lower(*args)

    def _require_equal_shapes(self, avals: Sequence[Any], tree: Any) -> None:
        program = self.capture.program
        if tree != program.in_tree:
            raise OtherStep(f"the plan is for arguments {program.in_tree}, these are {tree}; call optimize for these")
        for value, found in zip(program.inputs, avals, strict=True):
            planned = value.aval
            if found.manual_axis_type.varying:
                raise OtherStep(VARYING)
            is_sharded = any(found.sharding.spec)  # over axes of the type Explicit
            if (found.shape, found.dtype) != (planned.shape, planned.dtype) or (
                is_sharded and found.sharding.spec != planned.sharding.spec
            ):
                raise OtherStep(
                    f"the plan is for {value.name} of {planned.str_short()}, this is {found.str_short()}; "
                    "call optimize for these shapes"
                )

    def __repr__(self) -> str:
        return f"<Planned {self.capture.document['name']!r}: {self.report!r}>"


def optimize(
    function: Callable[..., Any],
    *shapes: Any,
    budget: str | float | int | None = None,
    plan: PlanSource | None = None,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    measure: bool = True,
    over_budget: Literal["error", "train"] = "error",
    **request: Any,
) -> Planned:
    """A function like `jax.value_and_grad(function)` that computes the same within a memory budget.

    Repeats are computed from the same values by the same equations; random keys are values, so dropout draws the same
    masks. The function returned works under `jax.jit`, `jax.lax.scan` and other transformations.

    >>> loss_and_gradients = remat.jax.optimize(loss, params, batch, budget="60%")
    >>> step = jax.jit(train_step, compiler_options=remat.jax.compiler_options())

    Parameters:
        function: Returns a scalar loss, or with `has_aux` a pair of loss and anything else.
        shapes: The positional arguments of one call: pytrees of arrays or of `jax.ShapeDtypeStruct`.
        budget: "8GiB", bytes, "50%" or 0.5 of the peak without recomputation, or 0 for the lowest peak: of one step,
            with arguments and gradients. Without it: the lowest peak at most 10% slower.
        plan: A plan made before, instead of a budget: a `Report`, or the file that `Report.save` wrote.
        argnums, has_aux: As of `jax.value_and_grad`.
        measure: Compile every distinct task of the step alone, so that the plan knows its workspace.
        over_budget: What to do if no plan is within the budget: an "error", or "train" with the lowest peak found.
        request: Other fields of `remat.plan`, such as `search_seconds`, `max_overhead` or `device`.

    Raises:
        NotCaptured: The function cannot be traced; see `capture`.
        BudgetNotMet: No plan within the budget was found; the message has the lowest peak.
        OtherStep: `plan` was made for another step, or with another version of JAX.
        BadInput: A request field is invalid.
        TypeError: Both a plan and a budget, or request fields, are given.
        ValueError: `over_budget` is none of its choices, or `offload` is requested, which plans of JAX steps have not.
    """
    if plan is not None and (budget is not None or request):
        raise TypeError("give a budget and request fields, or a plan that was made with them; not both")
    if over_budget not in ("error", "train"):
        raise ValueError(f"over_budget={over_budget!r} is not known; use 'error' or 'train'")
    in_tree = jax.tree.structure(shapes)

    def traced(avals: Sequence[Any]) -> Program:
        return trace(function, jax.tree.unflatten(in_tree, avals), argnums, has_aux)

    captured = capture(function, *shapes, argnums=argnums, has_aux=has_aux, measure=measure and plan is None)
    if plan is not None:
        return Planned(captured, tasks_in_order(captured, plan), plan if isinstance(plan, Report) else None, traced)
    report = captured.plan(budget, **request)
    if report.status == "over_budget" and over_budget == "error":
        raise BudgetNotMet(report)
    return Planned(captured, tasks_in_order(captured, report), report, traced)
