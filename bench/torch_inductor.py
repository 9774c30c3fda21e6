"""Training compiled by Inductor, with and without plans: gradients bit for bit, peaks measured beside the prediction.

    python bench/torch_inductor.py                                   # small instances, all kinds of numbers
    python bench/torch_inductor.py --only resnet18 --budgets 80%

Gradients are compared with those of Inductor alone. Where a plan changes which ops share a kernel, a vector instruction
may take the place of a function of the C library: Inductor's `exp` and `log` differ in the last bit by that. Kind
`scalar` has float32 without vector instructions (`cpp.simdlen`), so that nothing but the plan differs. In bfloat16
Inductor rounds as eager PyTorch does (`emulate_precision_casts`, kind `as eager`), or not at all between fused ops. All
kinds are compared with the module in float64, too.

Columns: budget as a share of the peak of Inductor alone; peaks in MiB beyond what is held before the step, by the
events of PyTorch's allocator, and how far the predictions are off; whether losses, gradients, buffers and the state of
the generator are equal bit for bit; relative distance of the gradients from those in float64, of Inductor alone and
with the plan. Modules with dropout have no such distance: other dtypes draw other masks.

Needs the extra `torch` and a C++ compiler. Exits 1 if the kinds `scalar` or `as eager` are not equal, if gradients are
further from float64 than those of Inductor alone, if a peak is more than 5% off, or if a plan that recomputes has no
lower peak.
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch._inductor.config
from torch import nn

import remat.torch
from bench.run import add_only, machine
from bench.torch_instances import instance
from bench.torch_training import MIB, line, peak_of, trained
from remat.torch.step.recording import backend_of
from tests.torch.steps import equal

MODELS = ("unet", "resnet18", "gpt2_small", "gpt2_small_dropout")
#: Kind of numbers -> dtype, whether casts are as in eager PyTorch, and elements of a vector (None: of the processor).
KINDS: dict[str, tuple[torch.dtype, bool, int | None]] = {
    "float32": (torch.float32, False, None),
    "scalar": (torch.float32, False, 1),
    "bfloat16": (torch.bfloat16, False, None),
    "as eager": (torch.bfloat16, True, None),
}
EXACT = ("scalar", "as eager")  # kinds whose numbers have to be equal bit for bit
COLUMNS = ("network", "numbers", "budget", "alone MiB", "off", "plan MiB", "off", "recomputed", "equal", "from float64")
TOLERANCE = 0.05
Row = dict[str, Any]
Inputs = dict[str, torch.Tensor]


def distance(found: nn.Module, exact: nn.Module) -> float:
    """Distance of the gradients of a step as a share of their norm."""
    pairs = [
        (a.grad.double(), b.grad)
        for a, b in zip(found.parameters(), exact.parameters(), strict=True)
        if b.grad is not None
    ]
    off = sum(float((a - b).square().sum()) for a, b in pairs)
    return float((off / sum(float(b.square().sum()) for _, b in pairs)) ** 0.5)


def cast(name: str, dtype: torch.dtype) -> tuple[nn.Module, Inputs]:
    """The small instance of a network in a dtype, and its inputs."""
    module, inputs = instance(name, full=False)
    as_dtype = {key: tensor.to(dtype) if tensor.is_floating_point() else tensor for key, tensor in inputs.items()}
    return module.to(dtype), as_dtype


def gradients(module: nn.Module, run: Any, inputs: Inputs) -> nn.Module:
    """The module with the gradients of a step."""
    module.zero_grad(set_to_none=True)
    torch.manual_seed(3)
    run(**inputs).backward()
    return module


def rows(name: str, kind: str, budgets: list[str], seconds: float) -> Iterator[Row]:
    """A row for each budget."""
    torch.set_num_threads(1)
    dtype, torch._inductor.config.emulate_precision_casts, torch._inductor.config.cpp.simdlen = KINDS[kind]
    module, inputs = cast(name, dtype)
    exact, exact_inputs = cast(name, torch.float64)
    has_dropout = any(isinstance(part, nn.Dropout) for part in module.modules())
    if not has_dropout:
        exact.load_state_dict({key: tensor.double() for key, tensor in module.state_dict().items()})
        exact_inputs = {key: t.double() if t.is_floating_point() else t for key, t in inputs.items()}
        gradients(exact, exact, exact_inputs)
    tensors = {id(tensor): tensor.nbytes for tensor in (*module.parameters(), *module.buffers(), *inputs.values())}
    held = sum(tensors.values())

    def known(own: nn.Module, run: Any) -> tuple[float | None, list[torch.Tensor], int]:
        """(distance from float64, numbers of some steps, peak) of a copy of the module."""
        far = None
        if not has_dropout:
            far = distance(gradients(own, run, inputs), exact)
            own.load_state_dict(module.state_dict())  # the step has updated the statistics of batch norms
        return far, trained(lambda: run(**inputs), own), peak_of(lambda: run(**inputs), own)

    alone = copy.deepcopy(module)
    alone_far, expected, alone_peak = known(alone, torch.compile(alone, fullgraph=True, dynamic=False))
    for budget in budgets:
        torch._dynamo.reset()
        own = copy.deepcopy(module)
        planned = remat.torch.optimize(
            own, inputs, budget, compiler="inductor", over_budget="train", search_seconds=seconds
        )
        found = backend_of(planned).compiled[-1]
        far, numbers, peak = known(own, planned)
        yield {
            "network": name,
            "kind": kind,
            "budget": budget,
            "alone": alone_peak,
            "alone off": alone_peak / (found.plain_peak_bytes - held) - 1,
            "peak": peak,
            "off": peak / (found.peak_bytes - held) - 1,
            "recomputed": len(found.recomputed),
            "lower": found.peak_bytes < found.plain_peak_bytes,
            "equal": equal(expected, numbers),
            "distances": "" if far is None else f"{alone_far:.3e}, {far:.3e}",
            "further": far is not None and alone_far is not None and far > 1.05 * alone_far,
        }


def is_wrong(row: Row) -> bool:
    """Whether numbers or a peak are not what they have to be."""
    numbers = row["further"] or (row["kind"] in EXACT and not row["equal"])
    off = max(abs(row["off"]), abs(row["alone off"])) > TOLERANCE
    return bool(numbers or off or (row["lower"] and row["peak"] >= row["alone"]))


def collected(name: str, kind: str, budgets: list[str], seconds: float) -> list[Row]:
    return list(rows(name, kind, budgets, seconds))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_only(parser, MODELS)
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument("--budgets", default="85%,70%", help="shares of the peak of Inductor alone")
    parser.add_argument("--seconds", type=float, default=5.0, help="search time of all candidates")
    given = parser.parse_args()
    wrong = False
    print(f"{line(COLUMNS)}\n{line(['---'] * len(COLUMNS))}", flush=True)
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for name in given.only:
            for kind in given.kinds.split(","):
                for row in pool.apply(collected, (name, kind, given.budgets.split(","), given.seconds)):
                    peaks = (
                        f"{row[key] / MIB:.1f} | {row[off]:+.2%}"
                        for key, off in (("alone", "alone off"), ("peak", "off"))
                    )
                    numbers = "yes" if row["equal"] else "NO", row["distances"]
                    print(line([name, kind, row["budget"], *peaks, row["recomputed"], *numbers]), flush=True)
                    wrong |= is_wrong(row)
    print(f"{machine()}, load {os.getloadavg()[1]:.1f}")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
