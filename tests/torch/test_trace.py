"""Times of ops from traces of PyTorch's profiler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import remat.torch
from remat.torch.step.trace import seconds_by_call
from tests.torch.modules import Convolutions

IMAGES = torch.ones(4, 3, 16, 16)


def test_ops_of_a_step_have_the_times_of_its_profile(tmp_path: Path) -> None:
    module = Convolutions(layers=2)
    captured = remat.torch.capture(module, IMAGES, loss=lambda logits: logits.square().sum())
    with torch.profiler.profile(record_shapes=True) as profile:
        module(IMAGES).square().sum().backward()
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    timed = captured.with_times(tmp_path / "trace.json").document
    seconds = {node["op"]: node["cost"].get("seconds") for node in timed["nodes"] if "cost" in node}
    missing = {op for op, taken in seconds.items() if taken is None}
    assert not {op for op in missing if "convolution" in op or "norm" in op or "dropout.default" in op}
    assert len(missing) < 0.3 * len(seconds)
    by_call = seconds_by_call(tmp_path / "trace.json")
    assert seconds["aten::convolution.default"] == by_call["aten::convolution", ((4, 8, 16, 16), (8, 8, 3, 3), (8,))]
    assert captured.document["nodes"] != timed["nodes"]


def test_on_a_gpu_an_op_has_the_time_of_its_kernels(tmp_path: Path) -> None:
    #   aten::linear  ├──────────────┤        kernels: 30 µs of mm, 5 µs of add_
    #     aten::mm      ├───┤
    #     aten::add_           ├──┤
    def op(number: int, name: str, first: int, last: int) -> dict[str, Any]:
        args = {"External id": number, "Input Dims": [[2, 3], [], [3, 4]]}
        return {"cat": "cpu_op", "name": name, "ts": first, "dur": last - first, "tid": 1, "args": args}

    kernels = [{"cat": "kernel", "dur": time, "args": {"External id": number}} for number, time in ((2, 30), (3, 5))]
    events = [op(1, "aten::linear", 0, 10), op(2, "aten::mm", 1, 4), op(3, "aten::add_", 6, 8), *kernels]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    times = {name: seconds for (name, _), seconds in seconds_by_call(tmp_path / "trace.json").items()}
    assert times == pytest.approx({"aten::linear": 35e-6, "aten::mm": 30e-6, "aten::add_": 5e-6})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "not a trace of PyTorch's profiler"),
        ("{", "not a trace of PyTorch's profiler"),
        ('{"traceEvents": []}', "record_shapes=True"),
        (
            '{"traceEvents": [{"cat": "cpu_op", "name": "aten::mm", "dur": 1, "args": {"Input Dims": [[1, 1]]}}]}',
            "no op of the trace is one of the step",
        ),
    ],
)
def test_a_file_without_times_of_the_step_is_refused(text: str, message: str, tmp_path: Path) -> None:
    captured = remat.torch.Capture({"values": [], "nodes": []}, torch.device("cpu"))
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"trace.json: .*{message}"):
        captured.with_times(path)
