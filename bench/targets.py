"""What `bench/table.py` measures: each goal of the planner as cases with a floor and an aim.

A case's values are lower-is-better; most are extra time in percent at a budget, of the plan that a request with so many
`search_seconds` gets, from the document to the report. A budget that is missed counts as infinite, and so does a report
later than ALLOWED_OVERRUN after the time requested.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np

from app.solver import child_tasks
from bench.catalogue import Instance, read_published
from bench.generators import deep_transformer, layered, published_like, transformer
from bench.paddle_program import transformer as decoder
from bench.run import resident_bytes
from graph.formats.readers import load
from graph.gc_pause import gc_paused
from planner.formulation.formulate import formulate
from planner.formulation.formulation import Formulation
from planner.formulation.proven_bound import with_lower_bound
from planner.formulation.training_graph import load_model, training_graph
from planner.pipeline.progress import Progress
from planner.pipeline.solve import solve
from planner.problem import liveness
from planner.problem.alternatives import resolve_choices
from planner.problem.plan import Candidate
from planner.request.plan_request import parse_request
from planner.search import portfolio

Measure = Callable[[int], float]  # seed -> value
MISSED = float("inf")
#: Of a floor: any plan within the budget will do.
FEASIBLE = 1e9
#: Seconds that reading, the report and the end of a search may take beyond `search_seconds`.
ALLOWED_OVERRUN = 0.3
#: At and below this there is no difference between two figures that are rounded to hundredths of a percent.
ROUNDED = 0.005


@dataclass(frozen=True)
class Target:
    """One case of a goal."""

    goal: str
    case: str
    floor: float | None
    aim: float | None
    at_floor: Measure
    at_aim: Measure


@dataclass(frozen=True)
class Reached:
    """What a search came to."""

    extra: float  # percent over the baseline's time; MISSED where it does not fit
    seconds: float  # from the document to the report
    first: float  # seconds until the first plan within the budget


@dataclass(frozen=True)
class Case:
    """A document at a budget; hashable, so that no search runs twice."""

    document: Callable[[], bytes]
    budget: float
    order: str  # "given" or "free"
    differentiate: bool = False
    of_reducible: bool = False  # the budget is a part of what lies between the lowest peak greedy finds and the whole

    def fields(self) -> dict[str, object]:
        budget = _reducible_budget(self) if self.of_reducible else self.budget
        loss = {"loss": "loss"} if self.differentiate else {}
        return {"budget": budget, "order": self.order, "layout": "none", "execute": "no", **loss}

    def question(self, seconds: float, seed: int, **fields: object) -> Formulation:
        request = parse_request({**self.fields(), "search_seconds": seconds, "seed": seed, **fields})
        model = self.document()
        graph = training_graph(model, load_model(model, request), request)[0] if self.differentiate else load(model)
        return formulate(graph, request)


def extra(case: Case, seconds: float, seed: int) -> float:
    """Percent of extra time of the plan of `auto` at the case's budget within so many seconds."""
    found = reached(case, seconds, seed)
    return found.extra if found.seconds <= seconds + ALLOWED_OVERRUN else MISSED


#: Seconds that each report of `reached` took beyond the time requested.
overruns: list[float] = []


@cache
def reached(case: Case, seconds: float, seed: int) -> Reached:
    """The plan of a request, from the document to the report."""
    model, first = case.document(), list[float]()
    every = ["plan", *child_tasks.SECTIONS]  # as a service makes them
    request = parse_request({**case.fields(), "search_seconds": seconds, "seed": seed, "return": every})
    began = time.perf_counter()

    def on_progress(progress: Progress) -> None:
        if progress.incumbent_overhead is not None and not first:
            first.append(time.perf_counter() - began)

    outcome = solve(model, request, on_progress=on_progress)
    elapsed = time.perf_counter() - began  # without the deallocation of graphs and sections
    plan = outcome.report["plan"]
    overruns.append(elapsed - seconds)
    percent = 100 * plan["overhead"] if plan["within_budget"] else MISSED
    return Reached(percent, elapsed, first[0] if first else MISSED)


@cache
def proven(case: Case) -> float:
    """The proven bound of a case in percent; the catalogue's where that is higher."""
    question = with_lower_bound(case.question(10.0, 0))
    return 100 * (question.bound.cost / question.baseline_cost - 1)


@cache
def _reducible_budget(case: Case) -> int:
    """The budget of a case that counts from the lowest peak greedy finds, in bytes."""
    whole = replace(case, of_reducible=False)
    lowest = whole.question(20.0, 0, budget=0)
    found = portfolio.search(lowest.lowered.problem, lowest.goal, "greedy", lowest.monitor())
    low = liveness.peak(resolve_choices(lowest.lowered.problem, found.choices), found.order)
    high = lowest.baseline.score.peak_bytes
    return low + int(case.budget * (high - low))


def above(case: Case, best: float, seconds: float, seed: int) -> float:
    """Percent of total time more than the best known plan takes."""
    value = extra(case, seconds, seed)
    return 100 * ((100 + value) / (100 + best) - 1)


def gap(case: Case, least: float, seconds: float, seed: int) -> float:
    """Points between what is reached and the better of two bounds."""
    return extra(case, seconds, seed) - max(least, proven(case))


def first_plan(case: Case, seconds: float, seed: int) -> float:
    return reached(case, seconds, seed).first


def instance(name: str, budget: str, order: str) -> Case:
    return Case(partial(_document, name), float(budget), order)


def _document(name: str) -> bytes:
    return Instance(name).bytes


@cache
def generated(make: Callable[..., object], *sizes: int) -> bytes:
    """A generated document."""
    made = make(*sizes)
    return made if isinstance(made, bytes) else json.dumps(made).encode()


def targets(published: dict[str, Path] | None = None) -> list[Target]:
    """All of them, small ones first; `published` names the files of published graphs, others have no rows."""
    return [
        *_small(),
        *_given(),
        *_free(),
        *_published(published or {}),
        *_drawn(),
        *_training(),
        *_lstm(),
        *_decoder(),
        *_largest(),
        *_stops(),
        *_evaluator(),
        *_curve(),
    ]


def _simple(
    goal: str, name: str, case: Case, floor: tuple[float, float] | None, aim: tuple[float, float] | None
) -> Target:
    """Percent at (seconds, most)."""
    at_floor, at_aim = (partial(extra, case, level[0]) if level else _nothing for level in (floor, aim))
    return Target(goal, name, floor and floor[1], aim and aim[1], at_floor, at_aim)


def _nothing(_: int) -> float:
    return MISSED


def _known(name: str, budget: str) -> float:
    """The best known plan in the given order, in percent."""
    best = Instance(name).best_known(budget)
    return MISSED if best is None else 100 * best + ROUNDED


def _small() -> list[Target]:
    goal = "n ≤ 100"
    result = []
    for name in ("layered_n100_s1", "chain40", "vgg16_b32"):
        for budget in Instance(name).budgets:
            case, best = instance(name, budget, "given"), _known(name, budget)
            result.append(_simple(goal, f"{name} {budget}", case, (1, best), (2, best)))
            first = partial(first_plan, case, 1.0)
            result.append(Target(goal, f"{name} {budget}: seconds to a first plan", 0.2, None, first, _nothing))
    return result


#: Points above the best known that the floor allows, by budget; seconds of floor and aim.
GIVEN = {
    "layered_n250_s2": ({"0.90": 0.05, "0.80": 0.3}, 4, 5),
    "layered_n500_s3": ({"0.90": 0.1, "0.80": 0.3}, 6, 20),
    "layered_n1000_s4": ({"0.90": 0.1, "0.80": 0.3}, 6, 20),
}
#: Best known with a free order, in percent by budget; seconds of floor and aim.
FREE = {
    "layered_n250_s2": ({"0.80": 0.14, "0.70": 2.17, "0.60": 5.99}, 15, 8),
    "layered_n500_s3": ({"0.90": 0.14, "0.80": 0.67, "0.70": 1.54}, 20, 15),
    "layered_n1000_s4": ({"0.90": 0.39, "0.80": 2.13, "0.70": 4.63}, 40, 30),
}
#: Budget -> nodes -> floor and aim of the published random layered graphs as (seconds, percent).
LAYERED = {
    0.9: {250: ((8, 0.0), (4, 0.0)), 500: ((15, 0.0), (8, 0.0)), 1000: ((50, 0.174), (36, 0.174))},
    0.8: {250: ((15, 0.0), (8, 0.0)), 500: ((25, 1.5), (30, 0.9)), 1000: ((36, 2.2), (60, 1.6))},
    0.7: {250: ((10, 0.75), (10, 0.57)), 500: ((21, 4.8), (21, 4.5)), 1000: ((36, 7.4), (36, 7.0))},
}
#: Published training graph -> budget -> percent that others reach at best, in 3 and 9 seconds.
NETWORKS = {
    "fcn8_b32": (3, {0.9: 0.029, 0.8: 0.136, 0.7: 0.892}),
    "resnet50_b256": (9, {0.9: 0.108, 0.8: 0.30, 0.7: 0.63, 0.5: 1.64}),
}
TRAINING = {"resnet101_b32": 0.3, "densenet_small": 0.3, "transformer16_t2048": 2.0, "transformer32_fused": 2.0}


def _given() -> list[Target]:
    result = []
    for name, (slack, floor, aim) in GIVEN.items():
        goal = "n = 250, given order" if "n250" in name else "n = 500 and 1000, given order"
        for budget, points in slack.items():
            best = _known(name, budget)
            levels = (floor, best + points), (aim, best)
            result.append(_simple(goal, f"{name} {budget}", instance(name, budget, "given"), *levels))
    return result


def _free() -> list[Target]:
    return [
        _simple(
            "random layered instances, free order",
            f"{name} {budget}",
            instance(name, budget, "free"),
            (floor, best + 0.2),
            (aim, best + ROUNDED),
        )
        for name, (known, floor, aim) in FREE.items()
        for budget, best in known.items()
    ]


def _published(files: dict[str, Path]) -> list[Target]:
    """The graphs of the papers themselves, those of `files` only."""
    result = []
    for budget, rows in LAYERED.items():
        for nodes, levels in rows.items():
            if path := files.get(f"layered_n{nodes}"):
                case = Case(partial(read_published, path), budget, "free")
                floor, aim = ((seconds, most + ROUNDED) for seconds, most in levels)
                name = f"{nodes} nodes, {budget}"
                result.append(_simple("published layered graphs, free order", name, case, floor, aim))
    for name, (seconds, percent) in NETWORKS.items():
        for budget, most in percent.items():
            if path := files.get(name):
                case, level = Case(partial(read_published, path), budget, "free"), (seconds, most + ROUNDED)
                result.append(_simple("published training graphs, free order", f"{name} {budget}", case, level, level))
    return result


def _drawn() -> list[Target]:
    """Graphs drawn like the published random ones, one for each seed.

    One such graph needs up to six times the recomputation of another, so the floor is any plan within the budget.
    """

    def drawn(nodes: int, budget: float, level: tuple[float, float], seed: int) -> float:
        return extra(Case(partial(generated, published_like, nodes, seed), budget, "free"), level[0], seed)

    result = []
    for budget, rows in LAYERED.items():
        for nodes, (floor, _) in rows.items():
            measure = partial(drawn, nodes, budget, floor)
            result.append(
                Target(
                    "graphs drawn like the published, free order",
                    f"{nodes} nodes, {budget}",
                    FEASIBLE,
                    floor[1] + ROUNDED,
                    measure,
                    measure,
                )
            )
    return result


def _training() -> list[Target]:
    goal, result = "training graphs of 400 to 2,500 tasks", []
    for name, most in TRAINING.items():
        for budget in Instance(name).budgets:
            if float(budget) < 0.4:
                continue
            case, best = instance(name, budget, "given"), _known(name, budget)
            fast, full = partial(above, case, best, 0.2), partial(above, case, best, 5.0)
            result.append(Target(goal, f"{name} {budget}: % above the best, 0.2 s", 2.0, None, fast, _nothing))
            result.append(Target(goal, f"{name} {budget}: % above the best, 5 s", 0.5, 0.2, full, full))
            if float(budget) >= 0.5:
                between = partial(gap, case, 100 * (Instance(name).bound(budget) or 0), 5.0)
                result.append(Target(goal, f"{name} {budget}: points to the bound", None, most, _nothing, between))
    return result


def _lstm() -> list[Target]:
    """Free order alone: in the given one no plan takes less than 6.43, in any less than 5.79, as certificates show."""
    case = instance("lstm_T30x2", "0.60", "free")
    return [_simple("LSTM T30 × 2 at 0.6", "free order", case, (5, 6.0), (5, 4.6))]


def _decoder() -> list[Target]:
    goal = "decoder of 9,000 tasks, part of the reducible bytes"
    model = partial(_decoder_model, 160)
    result = []
    for budget, most in ((0.5, 7.0), (0.25, 18.0)):
        case = Case(model, budget, "free", differentiate=True, of_reducible=True)
        between = partial(gap, case, 0.0, 30.0)
        result.append(_simple(goal, f"{budget}", case, (30, most), None))
        result.append(Target(goal, f"{budget}: points to the bound", None, 2.0, _nothing, between))
    return result


@cache
def _decoder_model(blocks: int) -> bytes:
    return decoder(blocks=blocks, batch=8, tokens=1024, width=1024, heads=16, words=32_000, dropout=0.1, spread=False)


def _largest() -> list[Target]:
    goal = "transformer of 100,000 tasks at 0.5"
    case = Case(partial(generated, deep_transformer, 2_000), 0.5, "given")
    freely = replace(case, order="free")
    least = Target(goal, "lower bound, negative", -11.5, -11.5, lambda seed: -proven(case), lambda seed: -proven(case))
    random_graph = Case(partial(generated, layered, 20_000), 0.9, "free")
    rows = partial(_memory_bytes, case)
    return [
        _simple(goal, "given order", case, (5, 14.0), (5, 13.2)),
        _simple(goal, "free order", freely, (5, 14.0), (5, 13.2)),
        least,
        Target(goal, "gigabytes beside the document", None, 1.0, _nothing, rows),
        _simple("random layered 20,000 at 0.9", "free order", random_graph, (30, FEASIBLE), (30, 1.2)),
    ]


def _memory_bytes(case: Case, seed: int) -> float:
    """Gigabytes that planning takes beside what the document takes, in this process."""
    case.document()
    before = resident_bytes(reset=True)
    reached.__wrapped__(case, 5.0, seed)
    return (resident_bytes() - before) / 1e9


def _stops() -> list[Target]:
    goal = "stop request to answer, seconds"
    cases = {
        "layered_n1000_s4": (instance("layered_n1000_s4", "0.70", "free"), 0.1),
        "transformer16_t2048": (instance("transformer16_t2048", "0.50", "given"), 0.1),
        "resnet101_b32": (instance("resnet101_b32", "0.30", "free"), 0.1),
        "transformer of 100,000": (Case(partial(generated, deep_transformer, 2_000), 0.5, "given"), 0.1),
    }
    return [
        Target(goal, name, 0.5, most, partial(slowest_stop, case), partial(slowest_stop, case))
        for name, (case, most) in cases.items()
    ]


#: After so many seconds of searching a stop is asked for.
STOPPED_AFTER = (0.05, 0.3, 0.8, 1.7, 3.1)


@cache
@gc_paused()
def slowest_stop(case: Case, seed: int) -> float:
    """The longest that a search still took after it was asked to stop."""
    question = case.question(10.0, seed)
    took = []
    for after in STOPPED_AFTER:
        cancel = threading.Event()
        timer = threading.Timer(after, cancel.set)
        timer.start()
        began = time.perf_counter()
        portfolio.search(question.lowered.problem, question.goal, "auto", question.monitor(cancel=cancel))
        took.append(time.perf_counter() - began - after)
    return max(0.0, *took)


def _evaluator() -> list[Target]:
    value = partial(_evaluated, Case(partial(generated, deep_transformer, 2_000), 0.5, "given"))
    return [Target("evaluator at 100,000 tasks, milliseconds", "peak of the given order", 5.0, 1.5, value, value)]


def _evaluated(case: Case, seed: int) -> float:
    """Milliseconds the evaluator needs for the peak and cost of an order, the best of five."""
    problem = case.question(1.0, seed).lowered.problem
    order, took = np.arange(problem.tasks), []
    for _ in range(5):
        began = time.perf_counter()
        liveness.score(problem, order, 0)
        took.append(time.perf_counter() - began)
    return 1000 * min(took)


CURVE = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def _curve() -> list[Target]:
    case = Case(partial(generated, transformer, 1_200), 0.5, "given")
    value = partial(_curve_excess, case, 3.0), partial(_curve_excess, case, 1.0)
    return [Target("curve of 8 budgets, 1,200 tasks", "points it rises, 3 s and 1 s", 0.0, 0.0, *value)]


@cache
def _curve_excess(case: Case, seconds: float, seed: int) -> float:
    """Points by which a plan of more memory takes longer; MISSED when the curve takes longer than `seconds`."""
    began, values = time.perf_counter(), []
    question = case.question(seconds, seed)
    seeds: list[Candidate] = []
    for place, part in enumerate(CURVE):
        left = seconds - 0.1 - (time.perf_counter() - began)
        budget = int(part * question.baseline.score.peak_bytes)
        goal = replace(question.goal, budget_bytes=budget, seconds=max(0.01, left / (len(CURVE) - place)))
        at = replace(question, goal=goal)
        seeds.append(portfolio.search(at.lowered.problem, goal, "auto", at.monitor(), seeds))
        score = at.evaluated(seeds[-1].order, seeds[-1].planner, seeds[-1].choices).score
        values.append(MISSED if score.bytes_over_budget else 100 * (score.cost / question.baseline_cost - 1))
    if time.perf_counter() - began > seconds:
        return MISSED
    return max(0.0, *(later - earlier for earlier, later in itertools.pairwise(values)))
