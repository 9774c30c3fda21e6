"""Shows where time goes on the data path: stages, and in each the functions that take most of it.

    python bench/hotspots.py                       # transformers of 1,000 and 100,000 nodes
    python bench/hotspots.py --sizes 10000 --top 12

Seconds of a stage are the processor's, of a run without the profiler. Shares of functions are of their
own time, callees left out, in a second run with it; that run slows Python down and compiled kernels not,
so shares say where to look, not what is to be gained.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.generators import transformer
from bench.scale import walked, warm_up

SIZES = (1_000, 100_000)
TOP = 5
ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", type=lambda text: [int(n) for n in text.split(",")], default=list(SIZES))
    parser.add_argument("--top", type=int, default=TOP, help="functions shown of each stage")
    asked = parser.parse_args()
    warm_up()
    for nodes in asked.sizes:
        print("\n".join(described(json.dumps(transformer(nodes)).encode(), asked.top)))
    return 0


def described(document: bytes, top: int) -> list[str]:
    """Lines that say where the time goes on one document."""
    clock, profiler = Clock(), Profiler()
    figures = walked(document, clock)
    walked(document, profiler)
    whole = sum(clock.seconds.values())
    lines = [f"{figures['nodes']:,} nodes: {whole:.3f} s"]
    for stage, seconds in clock.seconds.items():
        lines.append(f"  {stage:10} {seconds:9.3f} s {seconds / whole:6.1%}")
        lines += [f"    {share:6.1%}  {calls:>9,} calls  {name}" for share, calls, name in profiler.top(stage, top)]
    return lines


class Clock:
    """The processor's seconds per stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        began = time.process_time()
        yield
        self.seconds[stage] = time.process_time() - began


class Profiler:
    """Calls and own seconds of each function, per stage."""

    def __init__(self) -> None:
        self.profiles: dict[str, cProfile.Profile] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        profile = self.profiles[stage] = cProfile.Profile()
        profile.enable()
        yield
        profile.disable()

    def top(self, stage: str, count: int) -> list[tuple[float, int, str]]:
        """(share of the stage, calls, name) of the functions with most time of their own."""
        entries = self.profiles[stage].getstats()
        whole = sum(entry.inlinetime for entry in entries) or 1.0
        most = sorted(entries, key=lambda entry: entry.inlinetime, reverse=True)[:count]
        return [(entry.inlinetime / whole, entry.callcount, name_of(entry.code)) for entry in most]


def name_of(code: CodeType | str) -> str:
    """Where a function stands, from the repository on; what is written in C says its name itself."""
    if isinstance(code, str):
        return code
    path = Path(code.co_filename)
    place = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
    return f"{place}:{code.co_firstlineno} {code.co_qualname}"


if __name__ == "__main__":
    sys.exit(main())
