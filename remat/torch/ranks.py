"""One plan for all processes of a distributed run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from remat.torch.step.errors import OtherStep
from remat.torch.step.planning import fingerprint, saved_plan

if TYPE_CHECKING:
    from remat.torch.capturing import Capture


def plan_on_rank_0(
    captured: Capture,
    budget: str | float | int | None = None,
    *,
    group: dist.ProcessGroup | None = None,
    **request: Any,
) -> dict[str, Any]:
    """Plan a step once and hand the plan to every rank, for `optimize(..., plan=...)`.

    Every rank calls it with its own step. Searches that end by the clock find other plans on other ranks; one plan for
    all keeps their peaks and times equal, and may recompute collectives, such as an all-gather of parameters, because
    all ranks then run them in one order.

    >>> plan = remat.torch.plan_on_rank_0(remat.torch.capture(model, batch), "8GiB")
    >>> model = DistributedDataParallel(remat.torch.optimize(model, (batch,), plan=plan))

    Parameters:
        captured: The step of this rank.
        budget, request: As of `Capture.plan`; only those of rank 0 count. `collectives` is "repeated" by default if
            the step has collectives that may be recomputed; "once" keeps each to one run.
        group: The processes; all of them by default.

    Raises:
        OtherStep: The step of a rank is not that of rank 0; raised on every rank.
        RuntimeError: Rank 0 has no plan; on rank 0 the error itself is raised.
    """

    def make() -> dict[str, Any]:
        nodes = captured.document["nodes"]
        repeated = any(node.get("effect") == "collective" and node.get("recompute") != "never" for node in nodes)
        return saved_plan(captured.plan(budget, **({"collectives": "repeated"} if repeated else {}) | request))

    return made_on_rank_0(make, fingerprint(captured.document), group)


def made_on_rank_0(
    make: Callable[[], dict[str, Any]], description: str, group: dist.ProcessGroup | None = None
) -> dict[str, Any]:
    """What rank 0 makes of the step that all ranks have in common, handed to every rank.

    Parameters:
        make: Called on rank 0 only.
        description: Text that is equal for equal steps.
        group: The processes; all of them by default.

    Raises as `plan_on_rank_0` does.
    """
    prints: list[str] = [""] * dist.get_world_size(group)
    dist.all_gather_object(prints, description, group)
    others = [rank for rank, found in enumerate(prints) if found != prints[0]]
    if others:
        raise OtherStep(
            f"the step of rank {', '.join(map(str, others))} is not that of rank 0: other ops, shapes or inputs; "
            "give every rank batches of one shape and the same model, or plan on each rank by itself"
        )
    sent: list[Any] = [None, ""]
    failure: Exception | None = None
    if dist.get_rank(group) == 0:
        try:
            sent[0] = make()
        except Exception as error:  # the other ranks wait for an answer
            failure, sent[1] = error, str(error)
    dist.broadcast_object_list(sent, group=group, group_src=0)
    if failure is not None:
        raise failure
    if sent[0] is None:
        raise RuntimeError(f"rank 0 has no plan: {sent[1]}")
    made: dict[str, Any] = sent[0]
    return made
