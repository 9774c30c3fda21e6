"""Times the version analysis of a program of 100,000 ops that writes its names again and again.

    python bench/analysis.py               # exit 1 when it takes longer than 2 s
    python bench/analysis.py --ops 10000

From the parsed document: version table, producers, consumers, undefined names, final versions, dead ops and
versions nobody reads. The program draws two thousand names with a fixed seed; more than
half of its ops are dead. The conversion to single definition and the way back are shown besides. Seconds are
those of the processor, so that others on the machine do not count; nothing here waits or has a second thread.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.run import machine

OPS = 100_000
MOST_SECONDS = 2.0
RESULT = Path(__file__).parent / "results" / "analysis.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ops", type=int, default=OPS)
    asked = parser.parse_args()
    found = measured(json.dumps(program(asked.ops)).encode())
    for name, seconds in found["seconds"].items():
        print(f"{name:20}{seconds:8.3f} s")
    print(f"{found['ops']:,} ops, {found['versions']:,} versions, {found['dead']:,} dead ops")
    missed = asked.ops >= OPS and found["seconds"]["analysis"] > MOST_SECONDS
    if missed:
        print(f"missed: the analysis took more than {MOST_SECONDS} s")
    if asked.ops == OPS:
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps({"machine": machine(), **found, "missed": missed}, indent=1) + "\n")
    return 1 if missed else 0


def program(ops: int, seed: int = 0) -> dict[str, Any]:
    """A mutable document of opaque ops over two thousand names, a quarter of them given from outside."""
    chance = random.Random(seed)
    names = [f"blob_{i}" for i in range(2_000)]
    given = names[:500]
    there, seen, nodes = list(given), set(given), []
    for n in range(ops):
        inputs = [chance.choice(there) for _ in range(chance.choice((1, 2, 2, 3)))]
        output = chance.choice(names[500:] if chance.random() < 0.9 else inputs)
        nodes.append({"name": f"op_{n}", "op": "own::Op", "inputs": inputs, "outputs": [output]})
        if output not in seen:
            seen.add(output)
            there.append(output)
    values = [
        {"name": name, "shape": [64], "dtype": "float32", "role": "parameter" if name in given else "activation"}
        for name in there
    ]
    return {"format": "remat/1", "naming": "mutable", "values": values, "nodes": nodes, "outputs": there[-20:]}


def measured(data: bytes) -> dict[str, Any]:
    """CPU seconds per part, libraries loaded before; the collector is paused as when a model is read."""
    from graph.formats.document.decode import decode
    from graph.formats.document.schema import Document
    from graph.formats.native.mutable_names import mutable_document
    from graph.formats.readers import load
    from graph.gc_pause import gc_paused
    from graph.ssa.analysis import analysis_of_document

    seconds: dict[str, float] = {}

    def timed(name: str, step: Callable[[], Any]) -> Any:
        began = time.process_time()
        result = step()
        seconds[name] = time.process_time() - began
        return result

    with gc_paused():
        document = timed("parse", lambda: decode(data))
        assert isinstance(document, Document)
        analysis = timed("analysis", lambda: analysis_of_document(document))
        graph = timed("to a graph", lambda: load(data))
        timed("back to a document", lambda: mutable_document(graph))
    return {
        "ops": len(document.nodes),
        "versions": len(analysis.table.names),
        "dead": len(analysis.dead),
        "seconds": seconds,
    }


if __name__ == "__main__":
    sys.exit(main())
