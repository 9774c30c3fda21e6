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


class Compiled:
    """A function compiled by XLA for some arguments: its bytes, flops and results."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]):
        self._program = jax.jit(function).lower(*arguments).compile(compiler_options=options)
        self._arguments = arguments
        sizes = self._program.memory_analysis()
        self.bytes = sizes.temp_size_in_bytes + sizes.argument_size_in_bytes + sizes.output_size_in_bytes
        text = self._program.as_text()
        entry = re.search(r"^ENTRY %([\w.-]+)", text, re.MULTILINE)
        assert entry is not None
        self.flops = _flops_once(text, entry[1]) + _flops_of_repeats(text, entry[1])

    def results(self) -> list[bytes]:
        """Every result as bytes."""
        return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(self._program(*self._arguments))]


def _flops_once(text: str, computation: str) -> float:
    """Flops of a computation of an HLO module by XLA's count, with one iteration of each loop."""
    text = _with_entry(text, computation)
    module = xla_client.hlo.hlo_module_from_text("HloModule one\n" + text.partition("\n")[2])
    return float(_jax.hlo_module_cost_analysis(jax.devices()[0].client, module)["flops"])


def _flops_of_repeats(text: str, computation: str) -> float:
    """Flops of the iterations of loops after their first."""
    own = _with_entry(text, computation).partition("\nENTRY ")[2].partition("\n}")[0]
    found = sum(_flops_of_repeats(text, called) for called in CALL.findall(own))
    for body, iterations in LOOP.findall(own):
        found += (int(iterations) - 1) * _flops_once(text, body) + int(iterations) * _flops_of_repeats(text, body)
    return found


def _with_entry(text: str, computation: str) -> str:
    others = re.sub(r"^ENTRY %", "%", text, flags=re.MULTILINE)
    return re.sub(rf"^%{re.escape(computation)} ", f"ENTRY %{computation} ", others, flags=re.MULTILINE)


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
