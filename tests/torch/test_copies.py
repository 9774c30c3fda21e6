"""Copies to host memory in PyTorch: same numbers, predicted bytes, and no read before its copy has ended.

There is no GPU here. `LateStreams` stands for `torch.cuda`: a copy on one of its streams happens as late as the calls
allow, when the compute stream waits for an event after it. So a missing wait shows as wrong numbers.
"""

from __future__ import annotations

import contextlib
import copy
import json
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import remat.torch
from planner.lowering.copies import copy_names
from planner.report.copies import COMPUTE_ENGINE
from remat.torch.copies.engines import StreamEngine, ThreadEngine, _copy, alike, storage_bytes
from remat.torch.copies.waits import COMPUTE, FETCH, OFFLOAD, waits_of
from remat.torch.step import split
from tests.torch.steps import equal, peak_bytes, results
from tests.torch.test_training_under_plans import MODELS, made

CPU = torch.device("cpu")
QUICK = {"iterations": 40, "measure": False, "counts": "activations"}
FAST_LINK = {"like": "cpu-reference", "host_bandwidth": 1e11}
COPIES = {**QUICK, "offload": True, "device": FAST_LINK}

pytestmark = pytest.mark.usefixtures("quick_bounds")


class LateStreams:
    """The part of `torch.cuda` that copies use. Side streams keep what they are given; `log` has all calls."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.compute = LateStream(self, "compute")
        self.made: list[LateStream] = []

    def Stream(self, device: torch.device) -> LateStream:
        self.made.append(LateStream(self, ("to_host", "from_host")[len(self.made)]))
        return self.made[-1]

    def Event(self) -> LateEvent:
        return LateEvent()

    def current_stream(self, device: torch.device) -> LateStream:
        return self.compute

    @contextlib.contextmanager
    def stream(self, stream: LateStream) -> Iterator[None]:
        with stream:
            yield


class LateEvent:
    def record(self, stream: LateStream) -> None:
        self.stream, self.count = stream, len(stream.work)
        stream.streams.log.append(f"{stream.name} records")


class LateStream(TorchDispatchMode):
    def __init__(self, streams: LateStreams, name: str):
        super().__init__()
        self.streams, self.name = streams, name
        self.work: list[Callable[[], Any] | None] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.ops.aten.copy_.default:
            return func(*args, **(kwargs or {}))
        self.streams.log.append(f"{self.name} copies")
        self.work.append(lambda: func(*args))
        return args[0]

    def wait_stream(self, other: LateStream) -> None:
        self.streams.log.append(f"{self.name} waits for {other.name}")
        assert other is self.streams.compute  # whose work is done at once

    def wait_event(self, event: LateEvent) -> None:
        self.streams.log.append(f"{self.name} waits for an event of {event.stream.name}")
        for place, work in enumerate(event.stream.work[: event.count]):
            if work is not None:
                event.stream.work[place] = None
                work()


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> LateStreams:
    streams = LateStreams()
    engine = StreamEngine(CPU, streams, pin=False)
    monkeypatch.setattr(split, "engine_for", lambda device: engine)
    return streams


def test_a_copy_waits_for_compute_and_compute_for_the_copy_before_its_block_is_free() -> None:
    streams = LateStreams()
    engine = StreamEngine(CPU, streams, pin=False)
    tensor = torch.arange(6.0).reshape(2, 3)
    out = engine.begin_out(tensor)
    assert streams.log == ["to_host waits for compute", "to_host copies", "to_host records"]
    block = weakref.ref(tensor)
    del tensor
    assert block() is not None  # kept until compute waits
    host = engine.wait(out)
    assert streams.log[3:] == ["compute waits for an event of to_host"] and out.source is None
    back = engine.begin_in(host)
    assert streams.log[4:] == ["from_host waits for compute", "from_host copies", "from_host records"]
    assert torch.equal(engine.wait(back), torch.arange(6.0).reshape(2, 3))
    assert streams.log[7:] == ["compute waits for an event of from_host"]


@pytest.mark.parametrize("make", [ThreadEngine, lambda device: StreamEngine(device, LateStreams(), pin=False)])
def test_a_copy_keeps_storage_strides_and_offset(make: Callable[[torch.device], Any]) -> None:
    engine = make(CPU)
    tensor = torch.arange(24.0).reshape(4, 6).t()[1:, 1:]
    host = engine.wait(engine.begin_out(tensor))
    back = engine.wait(engine.begin_in(host))
    assert torch.equal(back, tensor) and torch.equal(storage_bytes(back), storage_bytes(tensor))
    assert (back.stride(), back.storage_offset()) == (tensor.stride(), tensor.storage_offset())
    assert back.data_ptr() != host.data_ptr() != tensor.data_ptr()


def test_an_error_of_a_thread_is_raised_where_the_copy_is_waited_for() -> None:
    engine = ThreadEngine(CPU)
    begun = engine._begun(engine.to_host, torch.zeros(3), torch.zeros(2))
    with pytest.raises(RuntimeError, match="size"):
        engine.wait(begun)


@pytest.mark.heavy
@pytest.mark.parametrize("name", MODELS)
def test_a_module_whose_plan_copies_computes_what_it_computed_before(name: str, late: LateStreams) -> None:
    module, args, loss = made(name)
    planned = remat.torch.optimize(copy.deepcopy(module), args, "70%", over_budget="train", **COPIES)
    report = remat.torch.report_of(planned)
    assert report is not None and report["plan"]["offloaded"]
    assert equal(results(module, args, loss), results(planned, args, loss))
    assert {"to_host copies", "from_host copies"} <= set(late.log)
    assert all(work is None for stream in late.made for work in stream.work)  # each copy was waited for


def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(64, 64), nn.GELU())))


def mean_square(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


@pytest.mark.heavy
def test_the_bytes_of_both_memories_are_those_predicted() -> None:
    """On a CPU both are one memory."""
    module, x = layers(), torch.ones(4096, 64)
    planned = remat.torch.optimize(copy.deepcopy(module), x, "60%", over_budget="train", **COPIES)
    report = remat.torch.report_of(planned)
    assert report is not None and report["plan"]["offloaded"]

    def step() -> None:
        planned.zero_grad(set_to_none=True)
        mean_square(planned(x)).backward()

    step()
    planned.zero_grad(set_to_none=True)
    line = report["timeline"]
    predicted = max(map(sum, zip(line["step_bytes"], line["host_step_bytes"], strict=True)))
    assert peak_bytes(step) == pytest.approx(predicted, rel=0.02)


@pytest.mark.heavy
def test_a_saved_plan_with_copies_trains_and_needs_its_times(tmp_path: Path) -> None:
    module, x = layers(), torch.ones(512, 64)
    file = tmp_path / "plan.json"
    placed = {"layout": "fast", "returns": ("plan", "timeline", "layout")}
    report = remat.torch.report_of(remat.torch.optimize(module, x, "60%", over_budget="train", **COPIES, **placed))
    assert report is not None and report["plan"]["offloaded"]
    report.save(file)
    planned = remat.torch.optimize(copy.deepcopy(module), x, plan=file)
    assert equal(results(module, (x,), mean_square), results(planned, (x,), mean_square))
    saved = json.loads(file.read_text())
    del saved["timeline"]
    with pytest.raises(remat.torch.OtherStep, match="timeline"):
        remat.torch.optimize(copy.deepcopy(module), x, plan=saved)
    with pytest.raises(remat.torch.OtherStep, match="plan without offload"):
        remat.torch.optimize(copy.deepcopy(module), x, plan=file, memory="arena")


@pytest.mark.parametrize("choice", [{"compiler": "inductor"}, {"memory": "arena"}])
def test_what_runs_no_copies_refuses_them(choice: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="plan without offload"):
        remat.torch.optimize(layers(), torch.ones(8, 64), "60%", offload=True, **choice)


def test_an_entry_waits_for_the_copies_that_have_ended_by_its_start() -> None:
    rows = {
        "engine": ["compute", "to_host", "compute", "compute", "from_host", "compute"],
        "start": [0.0, 1.0, 1.0, 2.0, 3.0, 5.0],
        "end": [1.0, 3.0, 2.0, 4.0, 5.0, 6.0],
    }
    report = {"plan": {"offloaded": ["u"]}, "timeline": {"engines": rows}}
    assert waits_of(report) == [[], [], [], [], [1], [4]]
    assert waits_of({"plan": {"offloaded": []}}) == ()


def test_a_thread_holds_no_block_once_its_copy_has_been_waited_for() -> None:
    engine = ThreadEngine(CPU)
    pair = [torch.zeros(3), torch.ones(3)]
    engine.to_host.submit(_copy, pair).result()
    assert not pair


def test_copies_and_engines_have_the_names_that_the_planner_gives_them() -> None:
    assert (*reversed(copy_names("")), COMPUTE_ENGINE) == (FETCH, OFFLOAD, COMPUTE)


def test_a_storage_alike_has_the_size_of_the_whole_storage() -> None:
    assert alike(torch.zeros(8)[2:4], CPU).untyped_storage().nbytes() == 32
