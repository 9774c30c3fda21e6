"""Measures the structure of the source: folders, modules, lines, functions, names, words and imports.

    python -m bench.structure                    # a table with a column for each package root
    python -m bench.structure --against DIR      # each cell as "DIR → here", DIR being another checkout
    python -m bench.structure --repo DIR --json  # another checkout alone, as JSON with every place

Definitions. A root is `app`, `planner`, `graph` or `remat`. Modules are `.py` files; counts per folder leave out
`__init__`. Line lengths are of lines that are not blank, in characters. A function's length runs from `def` to its last
line. Complexity is McCabe's number: C901 as ruff computes it, and the stricter one that counts `and`, `or`, conditional
expressions and comprehensions too. Dialect words are those of `bench/source_text.py`. An import cycle is a set of
packages that reach each other, a package being a folder, or a module at the top of a root; imports inside functions and
for type checking count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.source_text import SourceFile, read_source

ROOTS = ("app", "planner", "graph", "remat")
ALL = "all"
MAX_COMPLEXITY = 15
Value = int | float | str


@dataclass(frozen=True)
class Measures:
    """Figures by title, and the places behind some of them."""

    figures: dict[str, Value]
    places: dict[str, list[str]]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--repo", type=Path, default=Path(__file__).parents[1], help="checkout to measure; default: this one"
    )
    parser.add_argument("--against", type=Path, help="checkout to compare with, shown first in every cell")
    parser.add_argument("--json", action="store_true", help="print all figures and places as JSON")
    options = parser.parse_args(arguments)
    checkouts = [path for path in (options.against, options.repo) if path]
    measured = [measure(path) for path in checkouts]
    if options.json:
        rows = [{root: vars(measures) for root, measures in roots.items()} for roots in measured]
        print(json.dumps({"repo": rows[-1], **({"against": rows[0]} if options.against else {})}, indent=1))
    else:
        print(table(measured))
        print(details(measured[-1][ALL]))
    return 0


def measure(repo: Path) -> dict[str, Measures]:
    """Root -> its measures, and those of all roots together under ALL."""
    files = [read_source(path, repo) for root in ROOTS for path in sorted((repo / root).rglob("*.py"))]
    roots = {root: [file for file in files if file.path.startswith(f"{root}/")] for root in ROOTS}
    return {name: measures_of(of) for name, of in {**roots, ALL: files}.items() if of}


def measures_of(files: list[SourceFile]) -> Measures:
    """Every figure of some files."""
    functions = [function for file in files for function in file.functions]
    longest = max(functions, key=lambda function: function.lines, default=None)
    complex_functions = sorted(
        (function for function in functions if function.complexity > MAX_COMPLEXITY), key=lambda row: -row.complexity
    )
    names = shared_names(files)
    local = [row for file in files for row in file.local_imports]
    unexplained = [place for place, explained in local if not explained]
    cycles = import_cycles(files)
    places = {
        "longest function": [f"{longest.place}: {longest.lines} lines"] if longest else [],
        f"complexity above {MAX_COMPLEXITY}": [
            f"{row.place}: {row.complexity}, C901 {row.c901}" for row in complex_functions
        ],
        "public class names with several meanings": [f"{name}: {', '.join(at)}" for name, at in names.items()],
        "imports in functions without a reason": unexplained,
        "import cycles": [" ".join(cycle) for cycle in cycles],
        "dialect": [f"{label}: {count}" for label, count in dialect_of(files).most_common()],
    }
    figures: dict[str, Value] = {
        **folder_figures(files),
        **line_figures(files),
        "functions": len(functions),
        "function lines, median": statistics.median_low(function.lines for function in functions) if functions else 0,
        "function lines, longest": longest.lines if longest else 0,
        f"functions of complexity above {MAX_COMPLEXITY}": len(complex_functions),
        f"functions of C901 above {MAX_COMPLEXITY}": sum(function.c901 > MAX_COMPLEXITY for function in functions),
        "public class names with several meanings": len(names),
        "imports in functions with a reason": len(local) - len(unexplained),
        "imports in functions without a reason": len(unexplained),
        "import cycles between packages": len(cycles),
        "packages in import cycles": sum(map(len, cycles)),
    }
    return Measures(figures, places)


def folder_figures(files: list[SourceFile]) -> dict[str, Value]:
    """Entries at the top of the roots, and the fullest folder."""
    folders: Counter[str] = Counter()
    packages, top = set[str](), set[str]()
    for file in files:
        path = Path(file.path)
        folders[str(path.parent)] += path.stem != "__init__"
        if len(path.parts) > 2:
            packages.add("/".join(path.parts[:2]))
        elif path.stem != "__init__":
            top.add(file.path)
    return {
        "packages at the top": len(packages),
        "modules at the top": len(top),
        "most modules in a folder": max(folders.values()),
        "folders": len(folders),
        "modules": len(files),
    }


def line_figures(files: list[SourceFile]) -> dict[str, Value]:
    """Lines, their lengths, and what stands in them."""
    lengths = sorted(length for file in files for length in file.line_lengths if length)
    lines = sum(len(file.line_lengths) for file in files)
    return {
        "lines": lines,
        "code lines": sum(file.code_lines for file in files),
        "line length, mean": round(statistics.fmean(lengths), 1) if lengths else 0,
        "line length, 95th percentile": lengths[len(lengths) * 95 // 100] if lengths else 0,
        "`# fmt: skip`": sum(file.format_skips for file in files),
        "dialect words per 1,000 lines": round(1000 * dialect_of(files).total() / max(1, lines), 1),
    }


def dialect_of(files: list[SourceFile]) -> Counter[str]:
    return sum((file.dialect for file in files), Counter[str]())


def shared_names(files: list[SourceFile]) -> dict[str, list[str]]:
    """Public class name -> the modules that define it, for names that more than one module defines."""
    found = defaultdict[str, list[str]](list)
    for file in files:
        for name in dict.fromkeys(file.public_classes):
            found[name].append(file.path)
    return {name: at for name, at in sorted(found.items(), key=lambda row: (-len(row[1]), row[0])) if len(at) > 1}


def import_cycles(files: list[SourceFile]) -> list[list[str]]:
    """Groups of packages that import each other, directly or through others; the largest first."""
    package = {_dotted(file.path): _package(file.path) for file in files}
    arrows: dict[str, set[str]] = {name: set() for name in package.values()}
    for file in files:
        source = _package(file.path)
        for name in file.imports:
            known = name if name in package else name.rpartition(".")[0]
            if known in package and package[known] != source:
                arrows[source].add(package[known])
    return sorted((group for group in _components(arrows) if len(group) > 1), key=lambda group: (-len(group), group))


def _dotted(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _package(path: str) -> str:
    """The folder of a module; of a module at the top of a root, the module itself."""
    parts = path.split("/")
    return path if len(parts) == 2 else "/".join(parts[:-1])


def _components(arrows: dict[str, set[str]]) -> Iterator[list[str]]:
    """Strongly connected components: nodes that reach each other. O(nodes · arrows), enough for some hundred."""
    reached = {node: _reachable(arrows, node) for node in arrows}
    left = set(arrows)
    for node in sorted(arrows):
        if node in left:
            group = sorted({node} | {other for other in reached[node] if node in reached[other]})
            left.difference_update(group)
            yield group


def _reachable(arrows: dict[str, set[str]], start: str) -> set[str]:
    found, ahead = set[str](), [start]
    while ahead:
        fresh = arrows[ahead.pop()] - found
        found |= fresh
        ahead += fresh
    return found


def table(measured: list[dict[str, Measures]]) -> str:
    """A Markdown table: a row for each figure, a column for each root, the checkouts' values joined by arrows."""
    roots = [root for root in (*ROOTS, ALL) if any(root in measures for measures in measured)]
    lines = ["| | " + " | ".join(roots) + " |", "|---|" + "---:|" * len(roots)]
    for title in measured[-1][ALL].figures:
        cells = (
            " → ".join(f"{measures[root].figures[title]:,}" if root in measures else "-" for measures in measured)
            for root in roots
        )
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def details(measures: Measures, limit: int = 15) -> str:
    """The places behind the figures, at most `limit` of each kind."""
    lines = []
    for title, places in measures.places.items():
        lines += ["", f"{title} ({len(places)})", *(f"  {place}" for place in places[:limit])]
        if len(places) > limit:
            lines.append(f"  ... and {len(places) - limit} more, listed by --json")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
