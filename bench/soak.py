"""Throws random documents at the whole path until one comes out wrong.

    python bench/soak.py --count 10000                  # prints its seed
    python bench/soak.py --seed 17 --only 4203          # one document again
    python bench/soak.py --optima --count 2000          # small problems, against their exact optima
    python bench/soak.py --torch graphs --count 1000    # random graphs beside PyTorch; needs it
    python bench/soak.py --torch loops --count 300      # random nested loops and branches beside PyTorch
    python bench/soak.py --torch modules --count 500    # random PyTorch modules under random orders

Half of them are sound: every plan must be legal, checked and executed equal, its peak what the
execution counted, and its gradients those of finite differences. Half are sound ones with damage:
the answer is a plan, or findings that say path, found, expected and remedy. Exit 1 at the end when
any was not so; the documents are kept in --failures.
With --optima, problems of up to 12 tasks with everything a problem can have: `auto` must be as good as the exact
optimum at every budget in both orders, and no bound above it.
With --torch graphs and loops, loss and gradients of the rewritten graph must be PyTorch's, in float64
(bench/torch_twins.py). With --torch modules, losses, gradients, buffers and the state of the generator of a random
module under a random order of its step must be those without, bit for bit (tests/torch/random_modules.py); every other
one runs in an arena, and two of eight go through Dynamo.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.damage import damaged
from graph.errors import BadGraph
from graph.formats.native import writer
from planner.algorithms import PLANNERS
from planner.errors import BadRequest
from planner.pipeline.solve import solve
from planner.request.plan_request import parse_request
from planner.request.target_runtime import RUNTIMES
from tests.planner.optimum import front
from tests.planner.small_problems import modes, small_problem, wrong
from tests.strategies import random_graph

LOG_EVERY = 500
#: (seed, number) -> (outcome, why it is wrong or nothing)
Ask = Callable[[int, int], tuple[str, str]]


def main() -> int:
    asked = arguments()
    print(f"seed {asked.seed}", flush=True)
    began, outcomes, failed = time.monotonic(), Counter[str](), 0
    what, ask = kind(asked)
    with closing(Worker()) as worker:
        for i in [asked.only] if asked.only is not None else range(asked.count):
            outcome, why = worker.answer(asked.seed, i, ask)
            outcomes[outcome] += 1
            if why:
                failed += 1
                print(f"{what} {i}{kept(asked, i) if ask is answered else ''}\n{why}", flush=True)
            if (i + 1) % LOG_EVERY == 0:
                print(f"{i + 1} {what}s, {failed} wrong, {time.monotonic() - began:.0f} s", flush=True)
    said = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    print(f"seed {asked.seed}: {sum(outcomes.values())} {what}s: {said}")
    return 1 if failed else 0


def kind(asked: argparse.Namespace) -> tuple[str, Ask]:
    """(what a case is called, how it is judged)."""
    if asked.torch == "graphs":
        return "graph", graph_beside_torch
    if asked.torch == "modules":
        return "module", module_under_an_order
    if asked.torch == "loops":
        return "loop", loops_beside_torch
    return ("problem", compared) if asked.optima else ("document", answered)


def kept(asked: argparse.Namespace, number: int) -> str:
    """Where a document now lies, and what was asked of it."""
    case = Case(asked.seed, number)
    asked.failures.mkdir(parents=True, exist_ok=True)
    path = asked.failures / f"{asked.seed}-{number}.json"
    path.write_bytes(case.document)
    return f", kept as {path}, asked {case.fields}"


class Worker:
    """A process that answers documents one after the other; one that dies is replaced."""

    def __init__(self) -> None:
        self.pool: ProcessPoolExecutor | None = None

    def answer(self, seed: int, number: int, ask: Ask | None = None) -> tuple[str, str]:
        """(outcome, why it is wrong or nothing)."""
        if self.pool is None:
            self.pool = ProcessPoolExecutor(1, get_context("spawn"))
        try:
            return self.pool.submit(ask or answered, seed, number).result()
        except BrokenProcessPool:
            self.close()
            return "wrong", "the process died"

    def close(self) -> None:
        """End the process.

        A pool that Python ends at exit may close the pipe of its thread while `_python_exit` writes to it without the
        lock: "Bad file descriptor".
        """
        if self.pool is not None:
            self.pool.shutdown()
            self.pool = None


def answered(seed: int, number: int) -> tuple[str, str]:
    """Outcome of one document, and the traceback when it is wrong."""
    try:
        return Case(seed, number).run(), ""
    except Exception:
        return "wrong", traceback.format_exc()


def compared(seed: int, number: int) -> tuple[str, str]:
    """Outcome of one small problem, and what is not as its optimum says."""
    chance = random.Random(f"{seed}/{number}")
    problem = small_problem(chance)
    try:
        why = "\n".join(line for mode in modes(chance) for line in wrong(problem, mode, front(problem, mode)))
    except Exception:
        why = traceback.format_exc()
    return "wrong" if why else "optimal", why


def graph_beside_torch(seed: int, number: int) -> tuple[str, str]:
    """Outcome of a random graph beside PyTorch, and what differs."""
    return _beside_torch(seed, number, loops=False)


def loops_beside_torch(seed: int, number: int) -> tuple[str, str]:
    """Outcome of a random graph with nested loops and branches beside PyTorch, and what differs."""
    return _beside_torch(seed, number, loops=True)


def _beside_torch(seed: int, number: int, loops: bool) -> tuple[str, str]:
    from bench.torch_twins import Twin  # PyTorch is an extra

    try:
        twin = Twin(random.Random(f"{seed}/{number}"), loops)
        if not twin.depends_on_parameters():
            return "without a gradient", ""
        why = "\n".join(twin.differences())
    except Exception:
        why = traceback.format_exc()
    return "wrong" if why else "as PyTorch", why


def module_under_an_order(seed: int, number: int) -> tuple[str, str]:
    """Outcome of a random PyTorch module under a random order, and the seed under which it differs."""
    from tests.torch.random_modules import is_equal_under_an_order  # PyTorch is an extra

    drawn, in_arena = random.Random(f"{seed}/{number}").randrange(1 << 32), number % 2 == 1
    through_dynamo = number % 8 < 2
    module = f"RandomModule({drawn})" + " in an arena" * in_arena + " through Dynamo" * through_dynamo
    try:
        same = is_equal_under_an_order(drawn, in_arena, through_dynamo)
        return ("equal", "") if same else ("wrong", f"{module} differs")
    except Exception:
        return "wrong", f"{module}\n{traceback.format_exc()}"


class Case:
    """One random document and what is asked of it; the same for the same seed and number."""

    def __init__(self, seed: int, number: int):
        chance = random.Random(f"{seed}/{number}")
        self.fields = random_request(chance)
        graph = random_graph(chance)
        form, packing = chance.choice(["rows", "columns"]), chance.choice(["json", "msgpack"])
        self.is_damaged = chance.random() < 0.5
        if self.is_damaged:
            self.document = damaged(json.loads(writer.dump(graph, form)), chance)
            self.fields |= {"execute": "no", "layout": "fast"}
        else:
            self.document = writer.dump(graph, form, packing)
            outputs = [graph.values[v].name for v in graph.outputs]
            if chance.random() < 0.5:
                self.fields["differentiate"] = {"of": outputs[:1]}  # refused where it depends on no parameter

    def run(self) -> str:
        """What became of the document. Raises whatever should not be."""
        try:
            report = solve(self.document, parse_request(self.fields)).report
        except (BadGraph, BadRequest) as error:
            if not self.is_damaged and not all(f.path.startswith("differentiate") for f in error.findings):
                raise
            assert 1 <= len(error.findings) <= 10
            for finding in error.findings:
                assert finding.path and finding.found and finding.expected and finding.remedy, finding
            return "refused"
        assert report["checked"] is True
        if self.is_damaged:
            return "damaged and planned"
        executed = report["executed"]
        assert executed["status"] == "equal", executed
        assert executed["gradients"]["status"] != "different", executed
        return f"planned and equal, gradients {executed['gradients']['status']}"


def random_request(chance: random.Random) -> dict[str, Any]:
    """Fields of a request, every planner, runtime and kind of goal among them; quick to answer."""
    goal: dict[str, Any] = chance.choice(
        [{"budget": 0}, {"budget": "50%"}, {"budget": "80%"}, {"budget": "100%"}, {"max_overhead": 0.2}, {}]
    )
    return {
        **goal,
        "planner": chance.choice([*PLANNERS, "auto"]),
        "order": chance.choice(["free", "given"]),
        "runtime": chance.choice(sorted(RUNTIMES)),
        "counts": chance.choice(["everything", "activations"]),
        "layout": chance.choice(["fast", "best"]),
        "execute": "yes",
        "iterations": 20,
        "seed": chance.randrange(100),
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**9))
    parser.add_argument("--only", type=int, help="number of the one document to run")
    parser.add_argument("--optima", action="store_true", help="small problems against their exact optima")
    parser.add_argument("--torch", choices=["graphs", "loops", "modules"], help="what is random, beside PyTorch")
    parser.add_argument("--failures", type=Path, default=Path(tempfile.gettempdir()) / "remat-soak")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
