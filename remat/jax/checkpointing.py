"""The best policy of names for a budget: `policy`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax

from graph.analysis.devices import resolve_device
from planner.request.plan_request import parse_request
from remat.jax.capturing import capture
from remat.jax.policies.saving import Judged
from remat.jax.policies.search import Traced, save_only
from remat.jax.step.compiling import compiler_options, warn_of_lacking_options
from remat.jax.step.workspaces import workspaces
from remat.report import Report
from remat.steps.errors import BudgetNotMet, OtherStep

REFINEMENTS = 40  # names that are tried beside the best set of a price


@dataclass(frozen=True, eq=False)
class Policy:
    """A function that JAX differentiates within a budget by `jax.checkpoint` and names alone, from `policy`.

    It is called as the function is, and returns the same; `jax.value_and_grad` of it keeps the budget.

    names: What is saved. offloaded: Those of them that wait on the host.
    policy: The policy of JAX that saves them, for `jax.checkpoint` in code without remat.
    peak_bytes, overhead: Predicted for a step, with arguments and gradients; overhead is a share of the unplanned time.
    report: The full plan, without this restriction, for the same budget.
    useless: Names in the function that save no recomputation, since an op before the name needs its result again.
    """

    function: Callable[..., Any]
    traced: Traced
    names: frozenset[str]
    offloaded: frozenset[str]
    peak_bytes: int
    overhead: float
    baseline_peak_bytes: int
    report: Report
    useless: tuple[str, ...] = ()

    @property
    def policy(self) -> Any:
        """The policy of JAX that saves the names: of `jax.checkpoint` around each part that is recomputed as one.

        `names_in_scans` need it around the body: `lax.scan(jax.checkpoint(body, policy=..., prevent_cse=False), ...)`.
        Around the whole function, the scan is recomputed whole, and saves all that its backward pass reads.
        """
        return save_only(self.names, self.offloaded)

    @property
    def names_in_scans(self) -> frozenset[str]:
        """Names of values in bodies of `lax.scan`."""
        return self.names & self.traced.names_in_scans

    @property
    def extra_overhead(self) -> float:
        """What the restriction to names costs: overhead beyond that of the full plan."""
        return self.overhead - self.report.overhead

    def __call__(self, *args: Any) -> Any:
        shapes = jax.tree.map(jax.typeof, args)
        if jax.tree.structure(shapes) != jax.tree.structure(tuple(self.traced.shapes)):
            raise OtherStep("the policy is for other arguments; call remat.jax.policy for these")
        for found, body_input in zip(jax.tree.leaves(shapes), self.traced.body.inputs, strict=True):
            planned = body_input.aval
            if (found.shape, found.dtype) != (planned.shape, planned.dtype):
                raise OtherStep(
                    f"the policy is for {planned.str_short()}, this is {found.str_short()}; "
                    "call remat.jax.policy for these shapes"
                )
        warn_of_lacking_options()
        return self.function(*args)

    def __repr__(self) -> str:
        return (
            f"<Policy: {len(self.names)} names saved, {self.peak_bytes / 2**20:.1f} MiB instead of "
            f"{self.baseline_peak_bytes / 2**20:.1f}, {self.overhead:+.1%} time, "
            f"{self.report.overhead:+.1%} with a full plan{self._place_text()}>"
        )

    def _place_text(self) -> str:
        if not self.traced.is_own or not self.names_in_scans:
            return ""
        return f"; names in a scan need jax.checkpoint around the body: {', '.join(sorted(self.names_in_scans))}"


def policy(
    function: Callable[..., Any],
    *shapes: Any,
    budget: str | float | int | None = None,
    names: Literal["all", "own"] = "all",
    offload: bool = False,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    measure: bool = True,
    over_budget: Literal["error", "train"] = "error",
    **request: Any,
) -> Policy:
    """The names to save so that `jax.value_and_grad` of a function stays within a budget, as a policy of JAX.

    The function returned saves values by `checkpoint_name` and recomputes all others by `jax.checkpoint`; the bodies of
    `lax.scan` have checkpoints of their own. It needs nothing of remat while it trains. A full plan (`optimize`) can
    order and recompute more freely; what the difference costs is in the result.

    >>> chosen = remat.jax.policy(loss, params, batch, budget="60%")
    >>> value, gradients = jax.value_and_grad(chosen)(params, batch)

    With names of your own, the result is the best subset of them:

    >>> chosen = remat.jax.policy(loss, params, batch, budget="60%", names="own")
    >>> jax.checkpoint(loss, policy=chosen.policy)

    Parameters:
        function, shapes, argnums, has_aux: As of `optimize`.
        budget: As of `optimize`. Without it: the lowest peak at most 10% slower.
        names: "all" names any value; "own" chooses among the `checkpoint_name` in the function.
        offload: Hold on the host what is recomputed slower than it is transferred; needs a `device` with a host
            bandwidth.
        measure: Compile every distinct task alone, so that the prediction knows its workspace.
        over_budget: What to do if no policy is within the budget: an "error", or "train" with the lowest peak found.
        request: Fields of `remat.plan`, of the full plan that the policy is compared with.

    Raises:
        NotCaptured: The function cannot be traced; see `capture`.
        BudgetNotMet: No policy within the budget was found; the message has the lowest peak.
        BadInput: A request field is invalid.
        ValueError: `names` or `over_budget` is none of its choices, the function has no useful name of its own, or the
            device has no host bandwidth.
    """
    if over_budget not in ("error", "train"):
        raise ValueError(f"over_budget={over_budget!r} is not known; use 'error' or 'train'")
    if names not in ("all", "own"):
        raise ValueError(f"names={names!r} is not known; use 'all' or 'own'")
    captured = capture(function, *shapes, argnums=argnums, has_aux=has_aux, measure=measure)
    report = captured.plan(budget, **request)
    on_cpu = captured.document["annotations"]["device"] == "cpu"
    device = {"device": request.get("device", "cpu-reference" if on_cpu else "a100-80gb")}
    options = compiler_options()
    traced = Traced(
        function,
        shapes,
        argnums,
        has_aux,
        device,
        (lambda tasks: workspaces(tasks, options)) if measure else (lambda tasks: {}),
        names == "own",
        _transfer(device["device"]) if offload else math.inf,
    )
    if not traced.names:
        raise ValueError(_no_names_text(traced))
    limit = parse_request(request).max_overhead
    most_seconds = report.baseline_seconds * (1 + (0.1 if limit is None else limit))

    def rank(found: Judged) -> tuple[float, float]:
        if report.budget_bytes is None:
            return max(0.0, found.seconds - most_seconds), found.peak_bytes
        return max(0, found.peak_bytes - report.budget_bytes), found.seconds

    tried = _own_names(traced, rank) if traced.is_own else _any_names(traced, rank)
    best = min(tried, key=rank)
    if report.budget_bytes is not None and best.peak_bytes > report.budget_bytes and over_budget == "error":
        raise BudgetNotMet(
            report,
            f"no policy within {report.budget_bytes / 2**20:.1f} MiB: the lowest peak found is "
            f"{min(found.peak_bytes for found in tried) / 2**20:.1f} MiB, that of a full plan "
            f"{report.peak_bytes / 2**20:.1f} MiB; ask for more, or train with remat.jax.optimize",
        )
    return Policy(
        traced.named(traced.naming(best.names, best.offloaded)),
        traced,
        best.names,
        best.offloaded,
        best.peak_bytes,
        best.seconds / report.baseline_seconds - 1,
        report.baseline_peak_bytes,
        report,
        tuple(traced.useless),
    )


def _any_names(traced: Traced, rank: Callable[[Judged], Any]) -> list[Judged]:
    """Sets of minimum cuts over the prices of a byte, and the best of them with single names of its neighbors."""
    tried = dict.fromkeys((traced.at_price(price), traced.offloads(price)) for price in traced.prices())
    judged = [traced.judged(names, on_host) for names, on_host in tried]
    best = min(judged, key=rank)
    others = sorted(frozenset().union(*(names for names, _ in tried)) - best.names)
    for name in others[:: max(1, -(-len(others) // REFINEMENTS))]:
        judged.append(traced.judged(best.names | {name}, bool(best.offloaded)))
        best = min(best, judged[-1], key=rank)
    return judged


def _own_names(traced: Traced, rank: Callable[[Judged], Any]) -> list[Judged]:
    """All names, and sets with ever fewer of them: the best name to leave out is left out next."""
    on_host = traced.offloads(math.inf)
    judged = [traced.judged(traced.names, on_host)]
    while judged[-1].names:
        kept = judged[-1].names
        judged.append(min((traced.judged(kept - {name}, on_host) for name in sorted(kept)), key=rank))
    return judged


def _transfer(device: Any) -> float:
    """Seconds to offload a byte and to fetch it."""
    bandwidth = resolve_device(device).host_bytes_per_second
    if not bandwidth:
        raise ValueError(f"device {device!r} has no host bandwidth to offload with; name a device with host_bandwidth")
    return 2 / bandwidth


def _no_names_text(traced: Traced) -> str:
    if traced.useless:
        return (
            f"the names {', '.join(traced.useless)} save no recomputation: an op needs its result before the name, as "
            "the gradient of tanh does; name its operand instead, such as the result of a matrix product"
        )
    return "the function has no jax.ad_checkpoint.checkpoint_name; add some, or use names='all'"
