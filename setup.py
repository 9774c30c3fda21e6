"""Build of the wheel: the packages `app`, `planner` and `graph` of the checkout are installed inside `remat`.

    checkout, editable install      wheel
    app/cli.py        app.cli       remat/app/cli.py        remat.app.cli
    planner/...       planner...    remat/planner/...       remat.planner...
    graph/...         graph...      remat/graph/...         remat.graph...
    remat/...         remat...      remat/...               remat...

So an installation owns one top-level name. Imports are rewritten at the positions the syntax tree gives; everything
else in a file, line numbers included, stays as it is. The build fails on what it cannot rewrite: an import of a module
that the wheel lacks, and a string that names a module (derive it from `__name__` or `__package__` instead).
See docs/design/packaging.md.
"""

from __future__ import annotations

import ast
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Set
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info

TARGET = "remat"
MOVED = ("app", "planner", "graph")
NOT_INSTALLED = ("bench", "docs", "tests")
#: Functions whose first argument is the name of a module or of a logger.
TAKE_MODULE_NAMES = ("import_module", "__import__", "find_spec", "getLogger", "run_module")


class CannotMap(Exception):
    """A module name that has no equivalent in the wheel; says file, line and remedy."""


def module_names(folder: Path) -> frozenset[str]:
    """Dotted names of all modules and packages under the packages of `folder`: `app`, `app.cli`, `graph.ir`, ..."""
    names: set[str] = set()
    for package in (*MOVED, TARGET):
        for file in (folder / package).rglob("*.py"):
            parts = file.relative_to(folder).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            names |= {".".join(parts[: n + 1]) for n in range(len(parts))}
    return frozenset(names)


def rewritten(source: bytes, file: str, modules: Set[str]) -> bytes:
    """The source with `app`, `planner` and `graph` imported from `remat`.

    `modules` are the dotted names that exist in the checkout; `file` is named in errors. Raises CannotMap.

    >>> rewritten(b"from graph.ir import Graph", "x.py", {"graph", "graph.ir"})
    b'from remat.graph.ir import Graph'
    """
    nodes = list(ast.walk(ast.parse(source, file)))
    line_starts = [0]
    for line in source.splitlines(keepends=True):
        line_starts.append(line_starts[-1] + len(line))

    def at(line: int, column: int) -> int:
        return line_starts[line - 1] + column  # columns of a syntax tree count UTF-8 bytes

    edits: list[tuple[int, int, bytes]] = []  # start, end, replacement
    for node in nodes:
        if isinstance(node, ast.Import):
            if any(_is_moved(alias.name, modules, f"{file}:{node.lineno}") for alias in node.names):
                assert node.end_lineno is not None and node.end_col_offset is not None
                span = at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)
                edits.append((*span, "; ".join(map(_import_statement, node.names)).encode()))
        elif isinstance(node, ast.ImportFrom) and _is_moved(_imported_from(node), modules, f"{file}:{node.lineno}"):
            start = at(node.lineno, node.col_offset) + len(b"from")
            while source[start : start + 1] in b" \t\f\\\r\n":
                start += 1
            edits.append((start, start, f"{TARGET}.".encode()))
    for line, name in _names_in_strings(nodes, modules):
        raise CannotMap(
            f"{file}:{line}: the string {name!r} names a module, which the wheel has as {TARGET}.{name}; "
            "derive it from __name__ or __package__, or from the imported module"
        )
    for start, end, text in sorted(edits, reverse=True):
        source = source[:start] + text + source[end:]
    return source


def _imported_from(node: ast.ImportFrom) -> str:
    return "" if node.level else node.module or ""  # a relative import is right in both places


def _is_moved(name: str, modules: Set[str], where: str) -> bool:
    root = name.partition(".")[0]
    if root in NOT_INSTALLED:
        raise CannotMap(f"{where}: {name} is not installed; move what is needed into a package that is")
    if root in (*MOVED, TARGET) and name not in modules:
        raise CannotMap(f"{where}: there is no module {name}; correct the import")
    return root in MOVED


def _import_statement(alias: ast.alias) -> str:
    """One name of an `import` statement, binding what it bound before."""
    renamed = f" as {alias.asname}" if alias.asname else ""
    root, _, rest = alias.name.partition(".")
    if root not in MOVED:
        return f"import {alias.name}{renamed}"
    if renamed:
        return f"import {TARGET}.{alias.name}{renamed}"
    binding = f"from {TARGET} import {root}"  # `import app.x` binds `app`
    return f"import {TARGET}.{alias.name}; {binding}" if rest else binding


def _names_in_strings(nodes: list[ast.AST], modules: Set[str]) -> Iterator[tuple[int, str]]:
    """(line, string) of each string that names a moved module or something in it.

    That is: "app.cli" or "app.cli.main" anywhere, f"app.zoo.{name}", and "app" alone only as an argument of
    `TAKE_MODULE_NAMES` or after "-m".
    """
    within = {name for name in modules if "." in name}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            parts = node.value.split(".")
            dotted = parts[0] in MOVED and all(part.isidentifier() for part in parts)
            if dotted and any(".".join(parts[: n + 1]) in within for n in range(1, len(parts))):
                yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr) and node.values and isinstance(node.values[0], ast.Constant):
            head = str(node.values[0].value)
            if head.endswith(".") and head[:-1] in modules and head.partition(".")[0] in MOVED:
                yield node.lineno, head
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in TAKE_MODULE_NAMES and node.args:
                yield from _roots(node.args[:1])
        elif isinstance(node, (ast.List, ast.Tuple)):
            for before, after in itertools.pairwise(node.elts):
                if isinstance(before, ast.Constant) and before.value == "-m":
                    yield from _roots([after])


def _roots(nodes: list[ast.expr]) -> Iterator[tuple[int, str]]:
    for node in nodes:
        if isinstance(node, ast.Constant) and node.value in MOVED:
            yield node.lineno, str(node.value)


def lay_out(folder: Path) -> None:
    """Rewrite the packages in `folder`, a copy of the checkout's, and move them under `remat`. Raises CannotMap."""
    modules = module_names(folder)
    for package in MOVED:
        if f"{TARGET}.{package}" in modules:
            raise CannotMap(f"{TARGET}/{package} would be overwritten by {package}; rename one of them")
    for package in (*MOVED, TARGET):
        for file in sorted((folder / package).rglob("*.py")):
            file.write_bytes(rewritten(file.read_bytes(), os.fspath(file.relative_to(folder)), modules))
    for package in MOVED:
        shutil.move(folder / package, folder / TARGET / package)


class BuildInsideRemat(build_py):
    """`build_py` whose result has one top-level package. An editable install is left as the checkout is.

    With REMAT_PREBUILD_KERNELS=1, which needs numba, the package has kernels in machine code for this Python.
    """

    def run(self) -> None:
        if self.editable_mode:
            super().run()
            return
        folder = Path(self.build_lib)
        for package in (*MOVED, TARGET):  # of an earlier build, modules that are gone included
            shutil.rmtree(folder / package, ignore_errors=True)
        super().run()
        lay_out(folder)
        if os.environ.get("REMAT_PREBUILD_KERNELS") == "1":
            command = [sys.executable, "-m", f"{TARGET}.planner.warm", "--prebuild"]
            environment = os.environ | {"PYTHONPATH": str(folder.resolve()), "PYTHONDONTWRITEBYTECODE": "1"}
            subprocess.run(command, cwd=folder, env=environment, check=True)


class OneTopLevelName(egg_info):
    """`egg_info` whose list of top-level names is that of the wheel."""

    def run(self) -> None:
        super().run()
        Path(self.egg_info, "top_level.txt").write_text(f"{TARGET}\n")


if __name__ == "__main__":
    setup(cmdclass={"build_py": BuildInsideRemat, "egg_info": OneTopLevelName})
