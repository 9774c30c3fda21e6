"""How long after a stop the best plan so far is there: each planner is cancelled in the middle of its search.

    python bench/stops.py                                   # all planners that search, on three sizes
    python bench/stops.py --planners blocks,milp --documents transformer(100000) --after 2
    python bench/stops.py --service                         # operations of a service, at every stage

Beside the time on the clock stands the processor's, all threads together: it says more on a machine that others use.
The limits are 0.1 s, and 0.5 s above 50,000 tasks; exit 1 where the shorter of the two is above.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.catalogue import Instance
from bench.generators import transformer
from bench.scale import warm_up
from planner.formulation.formulate import formulate
from planner.formulation.formulation import Formulation
from planner.formulation.training_graph import load_model, training_graph
from planner.request.plan_request import parse_request
from planner.search import lexicographic

PLANNERS = (
    "auto",
    "greedy",
    "blocks",
    "moment",
    "anneal",
    "search_order",
    "revolve",
    "chain",
    "min_cut",
    "dtr",
    "evict",
    "search_evictions",
    "exact",
    "milp",
    "cp_sat",
)
DOCUMENTS = ("vgg16_b32", "layered_n250_s2", "layered_n1000_s4", "transformer(10000)")
BUDGET = "60%"
#: Seconds from the stop to the answer, and from so many tasks on.
LIMIT, MANY, LIMIT_OF_MANY = 0.1, 50_000, 0.5


@dataclass(frozen=True, slots=True)
class Stop:
    """What came of one: seconds from the stop to the answer."""

    clock: float
    processor: float
    ended: bool  # before the stop


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--planners", default=",".join(PLANNERS))
    parser.add_argument("--documents", default=",".join(DOCUMENTS))
    parser.add_argument("--after", default="0.3,1.5", help="seconds from the start of a search to the stop")
    parser.add_argument("--service", action="store_true", help="cancel operations, see bench/service_stops.py")
    parser.add_argument("--stages", default="", help="with --service: those alone")
    asked, late = parser.parse_args(), 0
    if asked.service:
        from bench import service_stops

        return service_stops.main([stage for stage in asked.stages.split(",") if stage])
    warm_up()
    for name in asked.documents.split(","):
        for planner in asked.planners.split(","):
            question = posed(name, planner)
            limit = LIMIT if question.lowered.problem.tasks < MANY else LIMIT_OF_MANY
            for after in map(float, asked.after.split(",")):
                stop = stopped(question, planner, after)
                late += (is_late := not stop.ended and min(stop.clock, stop.processor) > limit)
                said = "ended before" if stop.ended else f"{stop.clock:.3f} s, processor {stop.processor:.3f} s"
                print(f"{name:20} {planner:13} after {after:3.1f} s: {said}{' LATE' if is_late else ''}", flush=True)
    return 1 if late else 0


def posed(name: str, planner: str) -> Formulation:
    """The question that a document, or a generated one such as transformer(1000), is."""
    generated = re.fullmatch(r"transformer\((\d+)\)", name)
    document = json.dumps(transformer(int(generated[1]))).encode() if generated else Instance(name).bytes
    request = parse_request({"budget": BUDGET, "planner": planner, "search_seconds": 60.0})
    return formulate(training_graph(document, load_model(document, request), request)[0], request)


def stopped(question: Formulation, planner: str, after: float) -> Stop:
    """A search that is told to stop so many seconds after its start."""
    monitor = question.monitor()
    search = threading.Thread(
        target=lexicographic.search, args=(question.lowered.problem, question.goal, planner, monitor), daemon=True
    )
    search.start()
    search.join(after)
    ended = not search.is_alive()
    clock, processor = time.monotonic(), time.process_time()
    monitor.cancel()
    search.join()
    return Stop(time.monotonic() - clock, time.process_time() - processor, ended)


if __name__ == "__main__":
    sys.exit(main())
