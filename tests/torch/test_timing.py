"""Times of ops measured in a real step, and why they are not."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import remat.torch
from bench import torch_training
from bench.torch_training import extra_times, recorded
from remat.torch.step import timing
from remat.torch.step.document import TANGENTS
from remat.torch.step.split import order_as_recorded
from tests.torch.modules import VOCABULARY, Convolutions, Decoder

SCRIPT = """
import resource, torch, remat.torch

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(3):
        large = torch.ones(10 * 2**20)  # 40 MiB; glibc returns what is larger than 32 at once
        del large
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
returned = faults()
assert remat.torch.keep_memory()
faults()
print(returned, faults())
"""


def times_of(captured: remat.torch.Capture) -> tuple[str, list[str]]:
    annotations = captured.document["annotations"]
    return annotations["times"], annotations.get("import_warnings", [])


def test_every_op_has_its_time_in_a_real_step() -> None:
    module, images = Convolutions(), torch.randn(2, 3, 16, 16)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    generator = torch.get_rng_state()
    captured = remat.torch.capture(module, images, loss=torch.sum, measure=True)
    assert times_of(captured) == ("measured in a real step", [])
    ops = [node for node in captured.document["nodes"] if "alias_of" not in node]
    assert all("seconds" in node["cost"] for node in ops)
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
    assert torch.equal(generator, torch.get_rng_state())


def test_the_time_of_the_clock_itself_is_not_that_of_an_op(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at this clock takes two seconds, and the op between its last two three."""
    looks = itertools.count(0, 2)
    monkeypatch.setattr(timing, "clocks_of", lambda _: (lambda: next(looks),))
    notes = timing._Notes(torch.device("cpu"))
    notes.add("nothing")
    notes.add("op")
    looks = itertools.count(next(looks) + 3, 2)
    notes.add("")
    assert notes.read() == [("nothing", 0.0), ("op", 3.0)]


@pytest.mark.parametrize(
    "seconds", [{"perf_counter": 3.0, "thread_time": 2.0}, {"perf_counter": 2.0, "thread_time": 3.0}]
)
def test_an_op_has_the_smaller_time_of_two_clocks(seconds: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    read = timing._Notes.read

    def shown(notes: timing._Notes) -> list[tuple[str, float]]:
        return [(name, seconds[notes.clock.__name__]) for name, _ in read(notes)]

    monkeypatch.setattr(timing._Notes, "read", shown)
    monkeypatch.setattr(timing.torch, "get_num_threads", lambda: 1)
    captured = remat.torch.capture(nn.Linear(4, 4), torch.ones(2, 4), loss=torch.sum, measure=True)
    costs = [node["cost"]["seconds"] for node in captured.document["nodes"] if "alias_of" not in node]
    assert set(costs) == {0.0, 2.0}  # the caller's part of the step takes none


def test_a_plan_is_timed_run_by_run_in_its_order() -> None:
    """A plan that computes results twice: each run has its seconds, and the generator stays as it is."""
    step, inputs = recorded(Decoder(), {"tokens": torch.randint(0, VOCABULARY, (2, 8))})
    order = remat.torch.Capture(step.document, step.device).plan(0, iterations=2_000).order
    assert len(order) > len(order_as_recorded(step.joint))
    timed, generator = timing.TimedStep(step.joint, inputs, order), torch.get_rng_state()
    with timing.undisturbed(step.joint):
        rounds = [timed.run(timing.clocks_of(step.device)[0]) for _ in range(2)]
    tasks = {task.name for task in step.joint.tasks} | {TANGENTS}
    assert [[name for name, _ in each] for each in rounds] == [[name for name, _ in order if name in tasks]] * 2
    assert all(seconds >= 0 for each in rounds for _, seconds in each)
    assert torch.equal(generator, torch.get_rng_state())


def test_the_bench_compares_a_plan_with_every_task_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by one at each look: a step takes as long as it has runs of tasks."""
    looks = itertools.count()

    def clock() -> float:
        return float(next(looks))

    for module in (timing, torch_training):
        monkeypatch.setattr(module, "clocks_of", lambda _: (clock,))
    step, inputs = recorded(Decoder(), {"tokens": torch.randint(0, VOCABULARY, (2, 8))})
    monkeypatch.setitem(timing.OWN_SECONDS, clock, 0.0)
    once = order_as_recorded(step.joint)
    twice = [*once[:-1], (once[-1][0], 0), (once[-1][0], 1)]
    found = extra_times(step.joint, inputs, [once, twice], rounds=3)
    assert found == [(0.0, 0.0), (pytest.approx(1 / len(once)), 0.0)]


def test_long_steps_are_timed_five_times_at_most_and_short_ones_twenty_times() -> None:
    due = timing._is_another_run_due
    assert due(1, 4.9) and not due(1, 5.1)
    assert due(4, 4.9) and not due(5, 2.1)
    assert due(19, 1.9) and not due(20, 1.9)


def test_ops_of_other_libraries_are_timed_in_the_step_and_dispatched_as_in_training() -> None:
    through_python = []

    @torch.library.custom_op("remat_timing::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        through_python.append(torch._C._dispatch_tls_is_dispatch_key_included("PythonDispatcher"))
        return x * 2

    doubled.register_fake(torch.empty_like)
    doubled.register_autograd(lambda ctx, gradient: gradient * 2)

    class Doubles(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return doubled(self.linear(x)).sum()

    captured = remat.torch.capture(Doubles(), torch.ones(2, 4), measure=True)
    costs = {node["op"]: node.get("cost", {}) for node in captured.document["nodes"]}
    assert costs["remat_timing::doubled.default"]["seconds"] > 0
    assert through_python and not any(through_python)


def test_a_step_under_autocast_is_timed_as_it_runs() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        captured = remat.torch.capture(nn.Linear(8, 8), torch.ones(4, 8), loss=torch.sum, measure=True)
    assert times_of(captured)[0] == "measured in a real step"


def test_a_step_of_fake_tensors_is_measured_op_by_op_and_its_plan_says_so() -> None:
    with FakeTensorMode():
        module, x = nn.Linear(8, 8), torch.ones(4, 8)
    captured = remat.torch.capture(module, x, loss=torch.sum, measure=True)
    times, (warning,) = times_of(captured)
    assert times == "measured op by op" and "no real tensor" in warning
    assert warning in captured.plan("100%", iterations=1)["warnings"]


def test_a_step_without_the_memory_for_it_is_measured_op_by_op(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_free_bytes", lambda _: 1000)
    captured = remat.torch.capture(nn.Linear(64, 64), torch.ones(64, 64), loss=torch.sum, measure=True)
    times, (warning,) = times_of(captured)
    assert times == "measured op by op" and "1000 are free" in warning


def test_a_step_that_fails_is_measured_op_by_op(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("not enough memory: you tried to allocate 1 byte.\nmore")

    monkeypatch.setattr(timing, "run_as_it_is", lambda *_: fails)
    captured = remat.torch.capture(nn.Linear(4, 4), torch.ones(4, 4), loss=torch.sum, measure=True)
    times, (warning,) = times_of(captured)
    assert times == "measured op by op" and "you tried to allocate 1 byte.:" in warning


def test_memory_that_is_kept_is_not_faulted_in_twice() -> None:
    ran = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True)
    returned, kept = map(int, ran.stdout.split())
    assert kept < 100 < returned


def test_the_bytes_of_a_step_are_those_that_its_plan_predicts() -> None:
    module, x = Decoder(0.0, layers=2, width=32), torch.randint(0, VOCABULARY, (4, 16))
    found: list[int] = []
    original = timing.step_bytes

    def noted(joint: timing.Joint) -> int:
        found.append(original(joint))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "step_bytes", noted)
        captured = remat.torch.capture(module, x, measure=True)
    held = sum(p.nbytes for p in (*module.parameters(), *module.buffers(), x))
    baseline = captured.plan("100%", planner="as_given", iterations=1).baseline_peak_bytes
    assert found[0] == pytest.approx(baseline - held, rel=0.05)
