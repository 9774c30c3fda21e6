"""A step with wrapped modules, drawn: what runs again, what is dropped, and what is held."""

from __future__ import annotations

import json
from typing import Any

import pytest

from graph.formats.readers import load
from planner.errors import BadRequest
from planner.formulation.formulate import formulate
from planner.request.plan_request import parse_request
from planner.wraps.checkpointed import Sequence, Wraps, checkpointed
from planner.wraps.choose import Chooser
from planner.wraps.eager import EagerStep
from planner.wraps.wraps import wraps_for

KIB = 1024


def document(blocks: int = 4) -> dict[str, Any]:
    """A chain of blocks, each of two ops on 1 KiB: `heavy` reads what came before, and `light` reads `heavy`.

    Gradients read what both ops read:   x ── heavy0 ── light0 ── heavy1 ── light1 ── ...
    """
    values = [{"name": "x", "shape": [256], "dtype": "float32", "role": "input"}]
    forward: list[dict[str, Any]] = []
    backward: list[dict[str, Any]] = []
    before, gradient = "x", "seed"
    for i in range(blocks):
        for op, seconds in (("heavy", 4.0), ("light", 1.0)):
            name = f"{op}{i}"
            values += [{"name": each, "shape": [256], "dtype": "float32"} for each in (name, f"grad_{name}")]
            fields = {"annotations": {"module": f"block{i}.{op}"}, "cost": {"seconds": seconds}}
            forward.append(
                {"name": name, "op": f"aten::{op}.default", "inputs": [before], "outputs": [name], "phase": "forward"}
                | {"heavy": op == "heavy", **fields}
            )
            backward.append(
                {"name": f"d_{name}", "op": f"aten::{op}_backward.default", "inputs": [before]}
                | {"outputs": [f"grad_{name}"], "phase": "backward", **fields}
            )
            before = name
    for node in reversed(backward):
        node["inputs"].append(gradient)
        gradient = node["outputs"][0]
    tangents = {"name": "tangents", "op": "autograd::Tangents", "inputs": [before], "outputs": ["seed"]}
    values.append({"name": "seed", "shape": [256], "dtype": "float32"})
    named = [path for i in range(blocks) for path in (f"block{i}", f"block{i}.heavy", f"block{i}.light")]
    return {
        "format": "remat/1",
        "name": "chain",
        "values": values,
        "nodes": [*forward, tangents, *reversed(backward)],
        "outputs": [gradient],
        "annotations": {"modules": named, "device": "cuda"},
    }


def step(blocks: int = 4) -> EagerStep:
    request = parse_request({"runtime": "torch-eager", "execute": "no", "budget": 0})
    return EagerStep.of(formulate(load(json.dumps(document(blocks)).encode()), request).lowered)


def runs(found: Sequence, of: EagerStep) -> list[str]:
    """What runs after the forward pass; a run of a module that runs again in brackets."""
    names = [
        f"[{of.op[task][6:-8]} {of.module[task][5]}]" if region else f"{of.op[task][6:-8]} {of.module[task][5:6]}"
        for task, region in zip(found.task, found.region, strict=True)
    ]
    return names[2 * (len(of.modules) // 3) + 1 :]


NOTHING: frozenset[str] = frozenset()


def test_a_module_runs_again_before_its_first_gradient_up_to_what_its_gradients_read() -> None:
    chain = step(2)
    found = checkpointed(chain, {"block1": NOTHING})
    # d_light1 reads heavy1, which runs again; nothing of the module reads light1
    assert runs(found, chain) == [
        "[heavy 1]", "light_backward 1", "heavy_backward 1", "light_backward 0", "heavy_backward 0",
    ]  # fmt: skip


def test_an_op_whose_results_are_kept_does_not_run_again() -> None:
    chain = step(2)
    kept = checkpointed(chain, {"block1": frozenset({"aten::heavy.default"})})
    assert "[heavy 1]" not in runs(kept, chain)
    assert kept.problem.cost.sum() == chain.problem.cost.sum()


@pytest.mark.parametrize("wraps", [{}, {"block0": NOTHING}, {"block0": NOTHING, "block1": NOTHING, "block2": NOTHING}])
def test_each_wrapped_module_holds_its_input_only(wraps: Wraps) -> None:
    #   at the tangents: light0 to light3, which later blocks or the caller read, and heavy0 to heavy3 unless dropped
    chain = step()
    found = checkpointed(chain, wraps)
    tangents = next(n for n, task in enumerate(found.task) if chain.op[task] == "autograd::Tangents")
    inputs, seed = 1, 1
    assert found.bytes_of_steps()[tangents] == KIB * (inputs + seed + 8 - len(wraps))


@pytest.mark.parametrize("share", [1.0, 0.9, 0.8, 0.7, 0.6])
def test_the_choice_is_the_fastest_of_all_within_the_budget(share: float) -> None:
    chooser = Chooser(step(3))
    budget = int(share * chooser.unwrapped.peak_bytes)
    policies = [None, NOTHING, frozenset({"aten::heavy.default"})]
    every = [
        chooser.judged({f"block{i}": ops for i, ops in enumerate((a, b, c)) if ops is not None})
        for a in policies
        for b in policies
        for c in policies
    ]
    fastest = min((one.ticks for one in every if one.peak_bytes <= budget), default=None)
    found = chooser.within(budget)
    assert (None if found is None else found.ticks) == fastest
    assert chooser.lowest().peak_bytes == min(one.peak_bytes for one in every)


def test_a_document_without_modules_is_refused() -> None:
    plain = document()
    del plain["annotations"]["modules"]
    with pytest.raises(BadRequest, match="capture the model again"):
        wraps_for(load(json.dumps(plain).encode()), parse_request({"budget": 0}))
