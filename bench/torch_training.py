"""Training in PyTorch under plans: numbers bit for bit, peak and time measured beside the prediction.

    python bench/torch_training.py                                   # small instances, 10 plans of each
    python bench/torch_training.py --only resnet18 --budgets 80%,60%,45%
    python bench/torch_training.py --batches 4 --rounds 20           # longer steps, each run 20 times
    python bench/torch_training.py --full --only gpt2_small          # full depth and width; needs memory

Each network trains some steps (`--steps`) with SGD, without and with each plan, in a process of its own that keeps its
memory. Budgets are spread evenly from the lowest peak found to the peak without a plan. Columns: status of the plan;
peak measured beyond what is held before the step, in MiB, and how far the predictions are off, with measured workspaces
and without; extra time predicted and measured over the step that runs every op once in the same way; whether losses,
gradients, buffers and the state of the generator are equal bit for bit.

The steps of all plans are timed in turns, op by op (`remat/torch/step/timing.py`), `--rounds` times each. The time of a
step is the sum of the least seconds of the processor of each of its runs of an op: other work on the machine only adds
to them, and rarely at the same op in all rounds. In parentheses: by how many points the even and the odd rounds differ.
What a step does outside of ops is in neither time.

The table at the end has for each network the tasks of the step, seconds of the processor to record it without and with
a profile and to plan, the largest errors of its rows, the rank correlation of predicted and measured peaks and times,
how many plans have their times within 2 points, and the time of the step that runs every op once beside PyTorch's own
(the whole step, `remat/torch/time_ratio.py`). Results are kept in bench/results/torch_training.json; `--shown` prints
the last ones. Needs the extra `torch`. Exits 1 if something is not equal.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from torch import fx, nn

import remat.torch
from bench.run import add_only, machine
from bench.torch_instances import NETWORKS, made
from graph.formats.readers import load
from planner.formulation.formulate import formulate
from planner.problem.plan import Candidate
from planner.request.plan_request import parse_request
from remat.report import Report
from remat.torch.step.aot import BackendCompilerFailed, eager_backend
from remat.torch.step.joint import Joint
from remat.torch.step.recording import Passes, Step, inputs_of, roles_of
from remat.torch.step.split import Order, order_as_recorded
from remat.torch.step.timing import Inputs, TimedStep, clocks_of, undisturbed
from remat.torch.time_ratio import TimeRatio, time_ratio
from tests.torch.steps import equal, peak_bytes

STEPS = 3  # of training
WITHIN = 0.02  # difference of predicted and measured extra time that is asked for
MIB = 2**20
RESULTS = Path(__file__).parent / "results" / "torch_training.json"
COLUMNS = (
    "network",
    "budget",
    "status",
    "peak MiB",
    "off",
    "without profile",
    "extra",
    "measured (halves differ)",
    "equal",
)
OF_NETWORKS = (
    "network",
    "tasks",
    "seconds: record, with profile, plan",
    "equal",
    "peak off",
    "without profile",
    "time off",
    "rank correlation of peaks, times",
    "within 2 points",
    "every op once",
)
Row = dict[str, Any]


def trained(step: Callable[[], Any], module: Any, steps: int = STEPS) -> list[torch.Tensor]:
    """Losses and gradients of some steps of SGD, then buffers and the state of the generator."""
    optimizer = torch.optim.SGD(module.parameters(), 1e-3)
    torch.manual_seed(3)
    found = []
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss = step()
        loss.backward()
        found += [loss.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)]
        optimizer.step()
    return [*found, *(buffer.clone() for buffer in module.buffers()), torch.get_rng_state()]


def peak_of(step: Callable[[], Any], module: nn.Module) -> int:
    """Peak in bytes of a step beyond what is held before; steps have run before."""
    module.zero_grad(set_to_none=True)
    return peak_bytes(lambda: step().backward())


def compared(base: nn.Module, other: nn.Module, inputs: dict[str, Any], rounds: int) -> TimeRatio:
    """Time of a step of one module over that of another one, in seconds of the processor."""

    def seconds(module: nn.Module) -> float:
        module.zero_grad(set_to_none=True)
        began = time.process_time()
        module(**inputs).backward()
        return time.process_time() - began

    return time_ratio(partial(seconds, base), partial(seconds, other), runs=rounds)


class Recorded(Exception):
    """Ends a compilation once a step is recorded with measured costs."""

    def __init__(self, step: Step, inputs: Inputs):
        self.step, self.inputs = step, inputs


def recorded(module: nn.Module, inputs: dict[str, Any]) -> tuple[Step, Inputs]:
    """(step of a module with measured costs, its inputs)."""

    def compiled(graph: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        def divided(joint: fx.GraphModule, _: Any, *, num_fwd_outputs: int, **__: Any) -> Passes:
            step = Step.of(joint, num_fwd_outputs, roles_of(graph, examples), measure=True, examples=examples)
            raise Recorded(step, inputs_of(step.joint, examples))

        return eager_backend(divided)(graph, examples)

    try:
        torch.compile(module, backend=compiled, fullgraph=True, dynamic=False)(**inputs)
    except BackendCompilerFailed as error:
        if isinstance(found := error.inner_exception, Recorded):
            return found.step, found.inputs
        raise
    raise ValueError("the step has no backward pass")


def extra_times(joint: Joint, inputs: Inputs, orders: Sequence[Order], rounds: int) -> list[tuple[float, float]]:
    """For each order, (extra time over every task once, difference between the even and the odd rounds)."""
    clock = clocks_of(joint.device)[-1]
    steps = [TimedStep(joint, inputs, order) for order in (order_as_recorded(joint), *orders)]
    with undisturbed(joint):
        for each in steps:
            each.run(clock)  # warms caches and the allocator up
        runs = [[[seconds for _, seconds in each.run(clock)] for each in steps] for _ in range(rounds)]

    def extra(first: int, stride: int) -> np.ndarray:
        least = (np.min([round_[at] for round_ in runs[first::stride]], axis=0).sum() for at in range(len(steps)))
        totals = np.fromiter(least, float)
        return np.asarray(totals[1:] / totals[0] - 1)

    return list(zip(extra(0, 1).tolist(), np.abs(extra(0, 2) - extra(1, 2)).tolist(), strict=True))


def plans_of(captured: remat.torch.Capture, given: argparse.Namespace) -> list[Report]:
    """Plans within the budgets given, or within budgets from the lowest peak to the one without a plan."""
    if given.budgets:
        return [captured.plan(budget, search_seconds=given.seconds) for budget in given.budgets.split(",")]
    lowest = captured.plan(0, search_seconds=given.seconds)
    spread = np.linspace(lowest.baseline_peak_bytes, lowest.peak_bytes, given.plans + 1)[1:-1]
    return [*(captured.plan(int(budget), search_seconds=given.seconds) for budget in spread), lowest]


def network_row(name: str, given: argparse.Namespace) -> Row:
    """The row of a network; the row of each plan is printed as soon as it is known."""
    torch.set_num_threads(1)
    remat.torch.keep_memory()
    network = NETWORKS[name]
    shapes = network.inputs if given.full else {**network.inputs, **network.small_inputs}
    batch = next(iter(shapes.values()))[0] * given.batches
    module, inputs = made(network, given.full, batch)
    clock = [time.process_time()]
    unmeasured = remat.torch.capture(module, **inputs)
    clock.append(time.process_time())
    step, given_inputs = recorded(module, inputs)
    captured = remat.torch.Capture(step.document, step.device)
    clock.append(time.process_time())
    reports = plans_of(captured, given)
    clock.append(time.process_time())
    orders = [report.order for report in reports]
    times = extra_times(step.joint, given_inputs, orders, given.rounds) if given.rounds else []
    tensors = {id(tensor): tensor.nbytes for tensor in (*module.parameters(), *module.buffers(), *inputs.values())}
    held = sum(tensors.values())
    plain = copy.deepcopy(module)
    expected = trained(lambda: plain(**inputs), plain, given.steps)
    found = []
    for report, taken in zip_longest(reports, times):
        own = copy.deepcopy(module)
        planned = remat.torch.optimize(own, inputs, plan=report)
        same = equal(expected, trained(lambda run=planned: run(**inputs), planned, given.steps))  # type: ignore[misc]
        peak = peak_of(lambda run=planned: run(**inputs), planned)  # type: ignore[misc]
        row: Row = {
            "budget": (report.budget_bytes or 0) / report.baseline_peak_bytes,
            "status": report.status,
            "predicted": report.peak_bytes - held,
            "peak": peak,
            "off": peak / (report.peak_bytes - held) - 1,
            "without profile": peak / (peak_on(unmeasured.to_json().encode(), report) - held) - 1,
            "extra": report.overhead,
            "equal": same,
        }
        if taken is not None:
            row |= dict(zip(("measured", "halves"), taken, strict=True))
        found.append(row)
        print(of_plan(name, row), flush=True)
        torch._dynamo.reset()
    recorded_in, profiled, planned_in = np.diff(clock)
    whole: Row = {
        "tasks": len(captured.document["nodes"]),
        "seconds": [recorded_in, profiled, planned_in / len(reports)],
        "plans": len(found),
        "equal": sum(row["equal"] for row in found),
        "off": max((row["off"] for row in found), key=abs),
        "without profile": max((row["without profile"] for row in found), key=abs),
        "peak rank": correlation([(row["predicted"], row["peak"]) for row in found]),
    }
    if times:
        once = remat.torch.optimize(module, inputs, plan=captured.plan("100%", iterations=1))
        once(**inputs).backward()
        whole |= {
            "points": max((row["measured"] - row["extra"] for row in found), key=abs),
            "within": sum(abs(row["measured"] - row["extra"]) <= WITHIN for row in found),
            "once": compared(plain, once, inputs, given.rounds).ratio - 1,
            "time rank": correlation([(row["extra"], row["measured"]) for row in found]),
        }
    return whole


def correlation(pairs: list[tuple[float, float]]) -> float:
    """Spearman's rank correlation; plans with one predicted figure count once, with the mean of what was measured."""
    groups: dict[float, list[float]] = {}
    for predicted, found in pairs:
        groups.setdefault(predicted, []).append(found)
    if len(groups) < 3:
        return float("nan")
    means = [sum(group) / len(group) for group in groups.values()]
    ranks = (np.argsort(np.argsort(values)) for values in (list(groups), means))
    return float(np.corrcoef(*ranks)[0, 1])


def peak_on(document: bytes, report: Report) -> int:
    """Peak of a plan by another document of the same step."""
    request = {"runtime": "torch-eager-cpu", "device": "cpu-reference", "execute": "no", "budget": "100%"}
    formulation = formulate(load(document), parse_request(request))
    number = {formulation.lowered.name_of_task(task): task for task in range(formulation.lowered.problem.tasks)}
    order = np.array([number[name] for name, _ in report.order if name in number], np.int32)  # views are no tasks
    return formulation.counted_peak(formulation.plan_of(Candidate(order, "given")))


def line(cells: Iterable[object]) -> str:
    """A line of a table in Markdown."""
    return f"| {' | '.join(map(str, cells))} |"


def of_plan(name: str, row: Row) -> str:
    """The line of a plan."""
    off = (f"{row[key]:+.2%}" for key in ("off", "without profile"))
    extra = f"{row['extra']:.1%}", f"{row['measured']:.1%} ({100 * row['halves']:.1f})" if "halves" in row else ""
    budget, equal = (f"{row['budget']:.1%}" if row["budget"] else "lowest"), ("yes" if row["equal"] else "NO")
    return line([name, budget, row["status"], f"{row['peak'] / MIB:.1f}", *off, *extra, equal])


def of_network(name: str, row: Row) -> str:
    """The line of a network."""
    seconds = ", ".join(f"{taken:.1f}" for taken in row["seconds"])
    errors = f"{row['off']:+.2%}", f"{row['without profile']:+.2%}"
    ranks = f"{row['peak rank']:.2f}"
    points = once = ""
    if "once" in row:
        points, once = f"{100 * row['points']:+.1f} points", f"{row['once']:+.0%}"
        ranks += f", {row['time rank']:.2f}"
    equal, within = (f"{row[key]} of {row['plans']}" if key in row else "" for key in ("equal", "within"))
    return line([name, row["tasks"], seconds, equal, *errors, points, ranks, within, once])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_only(parser, NETWORKS)
    parser.add_argument("--plans", type=int, default=10, help="plans of each network")
    parser.add_argument("--budgets", help="budgets of the plans, in place of a number of them")
    parser.add_argument("--seconds", type=float, default=3.0, help="search time of each plan")
    parser.add_argument(
        "--rounds", type=int, default=12, help="timed steps of each plan, 2 or more; 0: times are not measured"
    )
    parser.add_argument("--batches", type=int, default=1, help="batches of the instance in one step")
    parser.add_argument("--steps", type=int, default=STEPS, help="training steps compared with those without a plan")
    parser.add_argument("--full", action="store_true", help="networks at their full size")
    parser.add_argument("--shown", action="store_true", help="the table of the last runs")
    given = parser.parse_args()
    if given.steps < 1:
        parser.error("--steps: 1 or more")
    if given.rounds < 0 or given.rounds == 1:
        parser.error("--rounds: 2 or more, or 0 for no times")
    wholes: dict[str, Row] = json.loads(RESULTS.read_text())["networks"] if RESULTS.exists() else {}
    if not given.shown:
        print(f"{line(COLUMNS)}\n{line(['---'] * len(COLUMNS))}", flush=True)
        with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            for name in given.only:
                whole = pool.apply(network_row, (name, given))
                title = name + ", full size" * given.full + f", {given.batches} batches" * (given.batches > 1)
                wholes[title] = whole
                RESULTS.parent.mkdir(exist_ok=True)
                RESULTS.write_text(json.dumps({"machine": machine(), "networks": wholes}, indent=1) + "\n")
    print(f"\n{line(OF_NETWORKS)}\n{line(['---'] * len(OF_NETWORKS))}")
    print("\n".join(of_network(name, whole) for name, whole in wholes.items()))
    print(f"{machine()}, load {os.getloadavg()[1]:.1f}")
    return int(any(whole["equal"] < whole["plans"] for whole in wholes.values()))


if __name__ == "__main__":
    sys.exit(main())
