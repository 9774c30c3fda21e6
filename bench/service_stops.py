"""How long after a cancel the service has answered, for every stage an operation can be at.

    python bench/stops.py --service                 # every stage; exit 1 where one is late or leaves something
    python bench/stops.py --service --stages read,plan

Each case is a real question about a real graph, large enough that its stage lasts; it is cancelled once the
operation says that it is there. Beside the time stand the processor's, of the child, which gives way to others on a
busy machine, and what was kept: the best so far, or nothing. A stage that is over before it is seen, or before the
cancel is heard, is asked for again, TRIES times in all.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing.forkserver
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from app.api.service.service import NO_SHAPES, Service
from app.jobs.interface import Operation, SolveRequest
from app.settings import Settings
from app.store import records
from bench.catalogue import Instance
from bench.generators import layered, transformer

LIMIT_S = 1.0
POLL_S = 0.01
PATIENCE_S = 120.0  # for a stage to come, and for an end
TRIES = 3


@dataclass(frozen=True, slots=True)
class Case:
    """A question, and the stage at which it is cancelled."""

    name: str
    stage: str  # of the operation, or "queued", "between"
    document: Callable[[], Any]
    fields: dict[str, Any] = field(default_factory=dict)
    kind: str = "plan"
    best: bool | None = True  # whether something is kept; None: depends on how far it is
    improved: bool = False  # wait for an incumbent as well


def forward(layers: int, width: int, rows: int) -> dict[str, Any]:
    """A forward model of standard ops: linear layers with Relu, and a loss."""
    values: list[dict[str, Any]] = [{"name": "h0", "shape": [rows, width], "dtype": "float32", "role": "input"}]
    nodes: list[dict[str, Any]] = []
    for k in range(layers):
        values.append({"name": f"w{k}", "shape": [width, width], "dtype": "float32", "role": "parameter"})
        nodes.append({"name": f"mul{k}", "op": "MatMul", "inputs": [f"h{k}", f"w{k}"], "outputs": [f"z{k}"]})
        nodes.append({"name": f"relu{k}", "op": "Relu", "inputs": [f"z{k}"], "outputs": [f"h{k + 1}"]})
    last = {"name": "mean", "op": "ReduceMean", "inputs": [f"h{layers}"], "outputs": ["loss"]}
    nodes.append({**last, "attributes": {"keepdims": 0}})
    return {"format": "remat/1", "opset": {"": 21}, "values": values, "nodes": nodes, "outputs": ["loss"]}


def buffers(count: int) -> dict[str, Any]:
    """Buffers that overlap so that the smallest arena is not found at once."""
    rows = [
        {"lower": n * 7 % 97, "upper": n * 7 % 97 + 1 + n * 13 % 31, "size": 64 + n * 31 % 509} for n in range(count)
    ]
    return {"buffers": rows, "search_seconds": 60}


LONG = {"budget": "60%", "search_seconds": 60.0}


def searched(planner: str, document: Callable[[], Any], **fields: Any) -> Case:
    return Case(f"plan, {planner}", "plan", document, {**LONG, "planner": planner, **fields}, improved=True)


def instance(name: str) -> Callable[[], Any]:
    return lambda: json.loads(Instance(name).bytes)


CASES = (
    Case("queued", "queued", lambda: layered(250), LONG, best=False),
    Case("between attempts", "between", lambda: layered(250), LONG, best=None),
    Case("read", "read", lambda: transformer(100_000), LONG, best=False),
    Case("differentiate", "differentiate", lambda: forward(4_000, 8, 8), {**LONG, "loss": "loss"}, best=False),
    Case("bound", "plan", lambda: transformer(5_000), {**LONG, "planner": "auto"}, best=None),
    searched("auto", lambda: layered(1000)),
    searched("anneal", lambda: layered(1000)),
    searched("search_order", lambda: layered(1000)),
    searched("blocks", lambda: transformer(2_000)),
    searched("milp", lambda: layered(100)),
    searched("cp_sat", lambda: layered(250)),
    Case("layout", "layout", lambda: layered(1000), {"budget": "80%", "iterations": 1, "layout": "best"}),
    Case("rewrite", "rewrite", lambda: transformer(5_000), {"budget": "80%", "planner": "greedy", "iterations": 5}),
    Case(
        "execute",
        "execute",
        lambda: forward(60, 512, 2048),
        {"budget": "80%", "planner": "greedy", "iterations": 5, "loss": "loss", "execute": "yes"},
    ),
    Case(
        "curve",
        "plan",
        lambda: layered(1000),
        {"budgets": ["90%", "80%"], "search_seconds": 60.0},
        "curve",
        improved=True,
    ),
    Case(
        "fit",
        "plan",
        lambda: forward(60, 512, 64),
        {"budget": "200MiB", "loss": "loss", "search_seconds": 60.0, "planner": "anneal"},
        "fit",
        best=None,
    ),
    Case("layout of buffers", "layout", lambda: buffers(3_000), {"search_seconds": 60.0}, "layout"),
)


@dataclass(frozen=True, slots=True)
class Ended:
    """What came of a cancel."""

    seconds: float
    processor: float  # seconds of it that the child had a processor
    operation: Operation
    children: list[int]  # that are left, a moment later


class Serving:
    """A service with one worker, asked through its port."""

    def __init__(self, folder: Path, **settings: Any):
        given = {"workers": 1, "drain_seconds": 0, "spare_bytes": 0, "gc_hours": 0, "attempts": 3} | settings
        self.service = Service(Settings(data=folder, **given))
        self.service.jobs.start()

    def close(self) -> None:
        self.service.close()

    def ask(self, case: Case, seed: int = 0) -> str:
        """Id of the operation; `seed` makes the question another."""
        service, data = self.service, msgspec.json.encode(case.document())
        if case.kind == "layout":
            question = SolveRequest(f"{case.name} {seed}", None, case.fields, kind="layout", data=data)
        else:
            payload = {"data": data, "limits": asdict(service.settings.limits()), "shapes": NO_SHAPES}
            graph_id = records.save_graph(service.store, service.runner.run("read", payload, PATIENCE_S).result)["id"]
            question = SolveRequest(f"{case.name} {seed}", graph_id, case.fields, kind=case.kind)
        return service.jobs.submit(question).id

    def until(self, id: str, is_there: Callable[[Operation], bool]) -> Operation:
        """The operation once that holds of it, or once it has ended. Raises TimeoutError."""
        deadline = time.monotonic() + PATIENCE_S
        while not (is_there(operation := self.service.jobs.status(id)) or operation.finished):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{id} is {operation.state} at {operation.stage}")
            time.sleep(POLL_S)
        return operation

    def cancelled(self, case: Case, seed: int = 0) -> Ended:
        """Ask, wait for the stage, cancel, and wait for the end; `seed` makes the question another."""
        others = set(children())  # of other services in this process
        with contextlib.ExitStack() as stack:
            if case.stage == "queued":
                stack.enter_context(self.occupied())
            id = self.ask(case, seed)
            if case.stage == "between":
                self._kill_until_it_waits(id)
            else:
                self.until(id, lambda operation: is_at(operation, case))
            began, worked = time.monotonic(), [children_worked()]
            self.service.jobs.cancel(id)

            def has_ended(operation: Operation) -> bool:
                worked.append(children_worked())
                return operation.finished

            operation = self.until(id, has_ended)
            seconds = time.monotonic() - began
        return Ended(seconds, max(worked) - worked[0], operation, self.children_left(others))

    @contextlib.contextmanager
    def occupied(self) -> Iterator[None]:
        """While the one worker has something else to do."""
        other = self.ask(Case("other", "plan", lambda: layered(250), {**LONG, "planner": "anneal"}))
        self.until(other, lambda operation: operation.state == "running")
        yield
        self.service.jobs.cancel(other)
        self.until(other, lambda operation: operation.finished)

    def _kill_until_it_waits(self, id: str) -> None:
        """Kill the operation's child, so that it is begun again."""
        self.until(id, lambda operation: operation.stage == "plan")
        for pid in children():
            os.kill(pid, signal.SIGKILL)
        self.until(id, lambda operation: operation.state == "queued" or operation.attempts > 1)

    def children_left(self, others: set[int], seconds: float = 60.0) -> list[int]:
        """Processes that work for the service although nothing runs; those about to end are given time to."""
        deadline = time.monotonic() + seconds
        while (left := [pid for pid in children() if pid not in others]) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return left


def is_at(operation: Operation, case: Case) -> bool:
    if case.stage == "queued":
        return operation.state == "queued"
    there = operation.state == "running" and operation.stage == case.stage
    return there and (not case.improved or bool((operation.progress or {}).get("incumbent")))


def children() -> list[int]:
    """Every child process of the server that this process forks solves from."""
    return [pid for pid, _ in _stats()]


def children_worked() -> float:
    """Seconds of processors that they have used."""
    ticks = sum(int(stat[11]) + int(stat[12]) for _, stat in _stats())
    return ticks / float(os.sysconf("SC_CLK_TCK"))


def _stats() -> Iterator[tuple[int, list[str]]]:
    """Id, and the fields of /proc/ID/stat behind the name, of those that have not ended."""
    server: Any = multiprocessing.forkserver._forkserver
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(stat[1]) == server._forkserver_pid and stat[0] != "Z":
                    yield int(entry.name), stat


def _is_bad(case: Case, ended: Ended) -> bool:
    """It was late, left a child, failed or kept nothing it should have."""
    state, kept = ended.operation.state, ended.operation.answer is not None
    if state == "succeeded":
        return bool(ended.children)
    is_late = min(ended.seconds, ended.processor) > LIMIT_S
    return is_late or bool(ended.children) or case.best not in (None, kept) or state != "cancelled"


def _said(ended: Ended) -> str:
    if ended.operation.state == "succeeded":
        return f"over before the cancel was heard, {TRIES} times"
    kept = "best so far" if ended.operation.answer is not None else "nothing kept"
    return f"{ended.seconds:6.2f} s, processor {ended.processor:5.2f} s  {ended.operation.state}, {kept}"


def main(stages: list[str]) -> int:
    """Print a line a case; 1 when one is bad."""
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        serving = Serving(Path(folder), kill_seconds=PATIENCE_S)  # time is told, not cut off
        for case in CASES:
            if stages and case.stage not in stages:
                continue
            for seed in range(TRIES):
                ended = serving.cancelled(case, seed)
                if ended.operation.state == "cancelled":
                    break
            bad += (is_bad := _is_bad(case, ended))
            print(f"{case.name:20} {_said(ended)}{' BAD' if is_bad else ''}", flush=True)
        serving.close()
    return 1 if bad else 0
