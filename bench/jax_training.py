"""Training in JAX under plans: numbers bit for bit, XLA's memory and flops beside the prediction, and `jax.checkpoint`.

    python bench/jax_training.py                                   # small networks, 3 budgets
    python bench/jax_training.py --full --only gpt2                # the sizes of GPT-2 small; needs memory

Columns: the budget, in MiB for what `jax.checkpoint` around every block takes; status of the plan; peak predicted and
by XLA's `memory_analysis`, in MiB with arguments and results, and how far it is off; flops more than unplanned,
predicted and by XLA's cost analysis, with every iteration of loops (`cost_analysis` counts one); whether loss and
gradients are bit for bit those of the unplanned step, and of `jax.value_and_grad` where XLA neither fuses nor rewrites
arithmetic. Rows `checkpoint` have XLA's figures of `jax.checkpoint` around every block. Needs the extras `jax` and
`loops` (for Flax). Exits 1 if numbers differ.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import numpy as np
from jaxlib import _jax, xla_client

import remat.jax
from bench.jax_networks import NETWORKS, plain
from bench.run import add_only
from tests.jax.models import NO_REWRITES

MIB = 2**20
Row = dict[str, Any]
LOOP = re.compile(r' while\(.*body=%([\w.-]+).*"known_trip_count":\{"n":"(\d+)"\}')
CALL = re.compile(r" call\(.*to_apply=%([\w.-]+)")
COMPUTATION = re.compile(r"^(ENTRY )?%([\w.-]+)( \(.*?^\})", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"%([\w.-]+)")
METADATA = re.compile(r', metadata=\{(?:[^{}"]|"[^"]*")*\}')  # refers to a table that the parts do not have


class Compiled:
    """A function compiled by XLA for some arguments: its bytes, flops and results."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]):
        self._program = jax.jit(function).lower(*arguments).compile(compiler_options=options)
        self._arguments = arguments
        sizes = self._program.memory_analysis()
        self.bytes = sizes.temp_size_in_bytes + sizes.argument_size_in_bytes + sizes.output_size_in_bytes
        self.flops = _Flops(self._program.as_text()).of_module()

    def results(self) -> list[bytes]:
        """Every result as bytes."""
        return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(self._program(*self._arguments))]


class _Flops:
    """Flops of the computations of an HLO module by XLA's count, with every iteration of loops.

    XLA counts one module at a time, so each loop body is a module of its own with the computations that it calls.
    """

    def __init__(self, text: str):
        text = METADATA.sub("", text)
        self.blocks = {match[2]: match[3] for match in COMPUTATION.finditer(text)}
        self.entry = next(match[2] for match in COMPUTATION.finditer(text) if match[1])

    def of_module(self) -> float:
        return self._once(self.entry) + self._repeats(self.entry)

    def _once(self, computation: str) -> float:
        """With one iteration of each loop."""
        called = [name for name in self._called(computation) if name != computation]
        parts = [*(f"%{name}{self.blocks[name]}" for name in called), f"ENTRY %{computation}{self.blocks[computation]}"]
        module = xla_client.hlo.hlo_module_from_text("HloModule one\n\n" + "\n\n".join(parts) + "\n")
        return float(_jax.hlo_module_cost_analysis(jax.devices()[0].client, module)["flops"])

    def _repeats(self, computation: str) -> float:
        """Of the iterations of loops after their first."""
        own = self.blocks[computation]
        found = sum(self._repeats(called) for called in CALL.findall(own))
        for body, iterations in LOOP.findall(own):
            found += (int(iterations) - 1) * self._once(body) + int(iterations) * self._repeats(body)
        return found

    def _called(self, computation: str) -> dict[str, None]:
        """The computation and all that it calls, those first that others call."""
        found: dict[str, None] = {}
        for name in NAME.findall(self.blocks[computation]):
            if name in self.blocks and name not in found:
                found |= self._called(name)
        return found | {computation: None}


def rows(name: str, budgets: list[str], full: bool, seconds: float) -> tuple[list[Row], str]:
    """A row for each budget and for checkpoints, and the line below them."""
    network, wrapped = NETWORKS[name](plain, full), NETWORKS[name](jax.checkpoint, full)
    options, arguments = remat.jax.compiler_options(), network.arguments
    given = jax.value_and_grad(network.loss)
    clock = [time.perf_counter()]
    captured = remat.jax.capture(network.loss, *arguments, measure=True)
    clock.append(time.perf_counter())
    without = captured.plan("100%", iterations=1)
    unplanned = remat.jax.optimize(network.loss, *arguments, plan=without)
    base = Compiled(unplanned, arguments, options)
    expected, exact = base.results(), Compiled(given, arguments, NO_REWRITES).results()
    blocks = Compiled(jax.value_and_grad(wrapped.loss), wrapped.arguments, options)
    xla = Compiled(given, arguments, {})
    no_plan = unplanned.flops
    found = [_xla_row(name, "XLA as it is", xla, base), _xla_row(name, "checkpoint", blocks, base)]
    clock.append(time.perf_counter())
    for budget in [*budgets, f"{blocks.bytes}"]:
        report = captured.plan(budget, search_seconds=seconds)
        planned = remat.jax.optimize(network.loss, *arguments, plan=report)
        here = Compiled(planned, arguments, options)
        same = here.results() == expected
        same_plain = Compiled(planned, arguments, NO_REWRITES).results() == exact
        found.append(
            {
                "network": name,
                "budget": budget if "%" in budget else f"{int(budget) / MIB:.1f}",
                "status": report.status,
                "predicted": f"{report.peak_bytes / MIB:.1f}",
                "XLA": f"{here.bytes / MIB:.1f}",
                "off": f"{here.bytes / report.peak_bytes - 1:+.1%}",
                "flops": f"{planned.flops / no_plan - 1:+.1%}",
                "XLA flops": f"{here.flops / base.flops - 1:+.1%}",
                "equal": "yes" if same and same_plain else "NO",
            }
        )
    clock.append(time.perf_counter())
    traced, _, planned_in = np.diff(clock)
    below = f"{name}: {len(captured.document['nodes'])} tasks, traced and compiled one by one in {traced:.1f} s; "
    return found, below + f"a plan with its comparisons took {planned_in / (len(budgets) + 1):.1f} s"


def _xla_row(name: str, what: str, made: Compiled, base: Compiled) -> Row:
    row = dict.fromkeys(("network", "budget", "status", "predicted", "XLA", "off", "flops", "XLA flops", "equal"), "")
    share = f"{made.flops / base.flops - 1:+.1%}"
    return row | {"network": name, "budget": what, "XLA": f"{made.bytes / MIB:.1f}", "XLA flops": share}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_only(parser, NETWORKS)
    parser.add_argument("--budgets", default="80%,65%,50%")
    parser.add_argument("--seconds", type=float, default=10.0, help="search time of each plan")
    parser.add_argument("--full", action="store_true", help="networks at their full size")
    given = parser.parse_args()
    failed = False
    for place, name in enumerate(given.only):
        found, below = rows(name, given.budgets.split(","), given.full, given.seconds)
        if not place:
            print("| " + " | ".join(found[0]) + " |\n|" + " --- |" * len(found[0]))
        for row in found:
            print("| " + " | ".join(row.values()) + " |", flush=True)
        print(f"\n{below}\n", file=sys.stderr)
        failed |= any(row["equal"] == "NO" for row in found)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
