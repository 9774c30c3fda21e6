"""Import rules of the packages, every import counted: those inside functions and under TYPE_CHECKING too.

A unit is a package of a room (`planner.bounds`), with all below it, or a module at a room's top (`planner.errors`).
`SPLIT` packages are taken apart into one unit a folder, because parts of the room stand between their folders.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from bench.source_text import MODULE_REASON

ROOT = Path(__file__).parent.parent
ROOMS = ("graph", "planner", "app", "remat")
SPLIT = {"graph.ops", "graph.formats", "app.api", "app.jobs"}
MAX_PACKAGES, MAX_MODULES, MAX_IN_A_FOLDER = 14, 4, 15

#: Unit -> units it may import. A line that is not needed is an error as well.
MAY_IMPORT: dict[str, str] = {
    "app.api": (
        "app.api.auth app.api.middleware app.api.routes app.api.service app.api.wire app.atomic_files "
        "app.catalogue app.errors app.pages app.settings app.store app.telemetry graph.cancellation graph.errors "
        "planner.errors"
    ),
    "app.api.auth": (
        "app.api.service app.api.wire app.atomic_files app.errors app.jobs app.jobs.batches app.store planner.request"
    ),
    "app.api.middleware": "app.api.service app.api.wire app.errors app.settings app.telemetry",
    "app.api.routes": (
        "app.api.auth app.api.schemas app.api.service app.api.wire app.catalogue app.errors app.jobs "
        "app.jobs.batches app.models app.render app.settings app.store app.telemetry graph.cancellation "
        "graph.errors planner.errors planner.layout planner.request"
    ),
    "app.api.schemas": (
        "app.atomic_files app.catalogue app.errors graph.formats.document planner.errors planner.layout "
        "planner.report planner.request"
    ),
    "app.api.service": (
        "app.atomic_files app.errors app.jobs app.jobs.answers app.jobs.batches app.settings app.solver app.store "
        "app.telemetry graph.execution"
    ),
    "app.api.wire": (
        "app.api.schemas app.api.service app.errors app.models app.settings app.telemetry graph.errors "
        "planner.report planner.request"
    ),
    "app.catalogue": "app.errors graph.analysis planner.algorithms",
    "app.cli": (
        "app.api app.api.auth app.api.middleware app.atomic_files app.catalogue app.client app.errors app.jobs "
        "app.jobs.batches app.models app.render app.settings app.solver app.store app.sweep app.telemetry app.zoo "
        "graph.analysis graph.errors graph.formats graph.formats.document graph.formats.stablehlo graph.ir "
        "graph.limits graph.transforms planner.algorithms planner.errors planner.formulation planner.layout "
        "planner.pipeline planner.report planner.request planner.verify planner.wraps"
    ),
    "app.client": (
        "app.errors app.render graph.autodiff graph.errors graph.formats graph.formats.document graph.formats.native "
        "graph.ir graph.limits graph.ops.registry graph.ssa graph.training planner.request"
    ),
    "app.errors": "app.atomic_files graph.cancellation graph.errors planner.errors",
    "app.jobs": (
        "app.atomic_files app.errors app.jobs.answers app.settings app.solver app.store app.telemetry "
        "graph.cancellation planner.request"
    ),
    "app.jobs.answers": "app.errors app.store graph.formats.document graph.formats.native graph.ir",
    "app.jobs.batches": "app.api.schemas app.errors app.jobs app.render app.settings app.store app.telemetry",
    "app.models": (
        "app.api.schemas app.errors graph.autodiff graph.buffer_sharing graph.errors graph.formats "
        "graph.formats.caffe2.compat graph.formats.native graph.formats.paddle graph.ir graph.recurrent "
        "graph.ssa graph.training graph.transforms planner.errors planner.formulation planner.report planner.request"
    ),
    "app.pages": (
        "app.api.auth app.api.routes app.api.schemas app.api.service app.api.wire app.atomic_files app.catalogue "
        "app.errors app.jobs app.jobs.batches app.models app.render app.store app.zoo graph.errors planner.errors "
        "planner.request"
    ),
    "app.render": (
        "app.atomic_files app.errors graph.analysis graph.formats graph.ir planner.algorithms planner.errors "
        "planner.lowering planner.problem planner.report planner.request"
    ),
    "app.settings": "app.errors graph.limits",
    "app.solver": (
        "app.catalogue app.errors app.jobs.answers app.models app.render app.telemetry graph.cancellation graph.errors "
        "graph.formats graph.formats.native graph.formats.onnx graph.ir graph.limits planner.formulation "
        "planner.layout planner.pipeline planner.report planner.request planner.warm"
    ),
    "app.store": (
        "app.atomic_files app.catalogue app.errors app.settings app.telemetry planner.errors planner.request"
    ),
    "app.sweep": (
        "app.api.schemas app.atomic_files app.catalogue app.client app.errors app.models app.render app.settings "
        "app.solver app.zoo graph.errors graph.formats graph.limits planner.errors planner.request"
    ),
    "app.telemetry": "app.atomic_files app.catalogue app.errors",
    "app.zoo": "app.atomic_files app.errors",
    "graph.analysis": "graph.ir graph.ops.control_flow graph.ops.registry",
    "graph.autodiff": (
        "graph.analysis graph.builder graph.cancellation graph.errors graph.ir graph.ops.control_flow "
        "graph.ops.registry graph.transforms"
    ),
    "graph.buffer_sharing": (
        "graph.analysis graph.errors graph.execution graph.formats.document graph.formats.native graph.ir "
        "graph.ops.registry graph.transforms"
    ),
    "graph.builder": (
        "graph.cancellation graph.errors graph.ir graph.ops.control_flow graph.ops.registry graph.validate"
    ),
    "graph.execution": (
        "graph.analysis graph.cancellation graph.errors graph.ir graph.ops.control_flow graph.ops.registry"
    ),
    "graph.formats": "graph.errors graph.gc_pause graph.ir graph.limits",
    "graph.formats.caffe2": (
        "graph.errors graph.formats.caffe2.compat graph.formats.caffe2.ops graph.formats.document graph.formats.shared "
        "graph.ir graph.limits graph.ops.registry graph.recurrent graph.transforms"
    ),
    "graph.formats.caffe2.compat": (
        "graph.analysis graph.autodiff graph.builder graph.errors graph.formats.document graph.formats.shared "
        "graph.ir graph.loop_remat graph.ops.control_flow graph.recurrent graph.ssa graph.transforms"
    ),
    "graph.formats.caffe2.ops": "graph.builder graph.formats.shared graph.ir",
    "graph.formats.document": "graph.errors graph.ir graph.limits graph.ops.registry",
    "graph.formats.mxnet": (
        "graph.autodiff graph.builder graph.errors graph.formats.document graph.formats.mxnet.ops "
        "graph.formats.shared graph.ir graph.limits graph.ops.registry"
    ),
    "graph.formats.mxnet.ops": "graph.builder graph.formats.shared graph.ir",
    "graph.formats.native": (
        "graph.builder graph.cancellation graph.errors graph.formats.document graph.ir graph.limits "
        "graph.ops.control_flow graph.ssa"
    ),
    "graph.formats.onnx": (
        "graph.analysis graph.builder graph.errors graph.execution graph.formats.onnx.guards graph.formats.onnx.read "
        "graph.ir graph.limits graph.loop_remat graph.ops.registry graph.transforms"
    ),
    "graph.formats.onnx.guards": "graph.ir",
    "graph.formats.onnx.read": (
        "graph.builder graph.errors graph.formats.document graph.formats.onnx.guards graph.formats.onnx.roles graph.ir "
        "graph.limits graph.ops.control_flow graph.ops.registry"
    ),
    "graph.formats.onnx.roles": "graph.errors graph.ir graph.limits",
    "graph.formats.paddle": (
        "graph.autodiff graph.errors graph.formats.document graph.formats.paddle.ops graph.formats.shared graph.ir "
        "graph.limits graph.ops.registry graph.training"
    ),
    "graph.formats.paddle.ops": "graph.builder graph.formats.shared graph.ir graph.ops.training",
    "graph.formats.shared": (
        "graph.builder graph.errors graph.formats.document graph.formats.native graph.ir graph.limits "
        "graph.ops.registry graph.ssa"
    ),
    "graph.formats.stablehlo": ("graph.errors graph.formats.document graph.formats.native graph.ir graph.limits"),
    "graph.limits": "graph.ir",
    "graph.loop_remat": "graph.errors graph.ir graph.ops.control_flow graph.ops.registry graph.validate",
    "graph.ops.composite": ("graph.builder graph.errors graph.ir graph.ops.nn graph.ops.numeric graph.ops.registry"),
    "graph.ops.control_flow": "graph.errors graph.ir graph.ops.registry",
    "graph.ops.nn": "graph.builder graph.errors graph.ir graph.ops.numeric graph.ops.registry",
    "graph.ops.numeric": "graph.builder graph.errors graph.ir graph.ops.registry",
    "graph.ops.registry": "graph.errors graph.ir",
    "graph.ops.rnn": "graph.builder graph.ir graph.ops.numeric graph.ops.registry",
    "graph.ops.tensor": "graph.builder graph.ir graph.ops.numeric graph.ops.registry",
    "graph.ops.training": "graph.builder graph.ir graph.ops.numeric graph.ops.registry",
    "graph.recurrent": (
        "graph.analysis graph.builder graph.errors graph.formats.shared graph.ir graph.loop_remat "
        "graph.ops.control_flow graph.ops.registry graph.ops.rnn graph.validate"
    ),
    "graph.ssa": "graph.analysis graph.errors graph.formats.document graph.ir graph.ops.registry",
    "graph.training": (
        "graph.analysis graph.autodiff graph.builder graph.errors graph.execution graph.ir graph.ops.numeric "
        "graph.ops.registry graph.ops.training graph.transforms graph.validate"
    ),
    "graph.transforms": (
        "graph.analysis graph.builder graph.errors graph.execution graph.formats.document graph.ir "
        "graph.ops.control_flow graph.ssa graph.validate"
    ),
    "graph.validate": "graph.analysis graph.errors graph.ir graph.limits graph.ops.control_flow",
    "planner.advice": (
        "graph.analysis graph.errors graph.execution graph.ir graph.limits planner.bounds "
        "planner.errors planner.formulation planner.problem planner.request planner.search"
    ),
    "planner.algorithms": "graph.cancellation planner.bounds planner.errors planner.problem",
    "planner.body_plans": (
        "graph.analysis graph.cancellation graph.errors graph.ir graph.loop_remat graph.ops.control_flow "
        "planner.algorithms planner.bounds planner.lowering planner.problem planner.request"
    ),
    "planner.bounds": "graph.cancellation planner.problem planner.verify",
    "planner.errors": "graph.errors",
    "planner.formulation": (
        "graph.analysis graph.autodiff graph.cancellation graph.errors graph.execution graph.formats "
        "graph.formats.onnx graph.ir graph.limits graph.recurrent graph.training graph.transforms "
        "planner.body_plans planner.bounds planner.errors planner.layout planner.lowering planner.problem "
        "planner.request planner.search planner.verify"
    ),
    "planner.layout": "planner.errors planner.problem planner.request planner.verify",
    "planner.lowering": (
        "graph.analysis graph.cancellation graph.formats.onnx graph.gc_pause graph.ir graph.loop_remat "
        "graph.ops.registry graph.transforms planner.problem planner.request"
    ),
    "planner.pipeline": (
        "graph.autodiff graph.buffer_sharing graph.cancellation graph.errors graph.execution graph.formats.native "
        "graph.gc_pause graph.ir graph.limits planner.advice planner.algorithms planner.errors planner.formulation "
        "planner.lowering planner.problem planner.report planner.request planner.search planner.warm"
    ),
    "planner.problem": "graph.cancellation planner.errors planner.prebuilt_kernels",
    "planner.report": (
        "graph.analysis graph.buffer_sharing graph.errors graph.formats graph.formats.native graph.ir graph.limits "
        "graph.training planner.advice planner.bounds planner.errors planner.formulation planner.lowering "
        "planner.problem planner.request planner.verify"
    ),
    "planner.request": "graph.analysis planner.algorithms planner.errors",
    "planner.search": "planner.algorithms planner.bounds planner.problem",
    "planner.verify": "planner.errors planner.problem",
    "planner.warm": "planner.algorithms planner.layout planner.prebuilt_kernels planner.problem planner.verify",
    "planner.wraps": "graph.ir planner.errors planner.formulation planner.lowering planner.problem planner.request",
    "remat": "app.client graph.errors graph.ir planner.errors remat.errors remat.facade remat.report",
    "remat.__main__": "app.cli",
    "remat.errors": "graph.errors remat.report",
    "remat.facade": (
        "app.cli app.errors app.models app.render app.sweep graph.cancellation graph.errors graph.ir planner.errors "
        "planner.pipeline planner.problem planner.report planner.request remat.errors remat.keywords remat.report "
        "remat.request_fields"
    ),
    "remat.jax": (
        "graph.analysis graph.formats graph.formats.stablehlo graph.ir graph.ops.control_flow planner.bounds "
        "planner.formulation planner.problem planner.report planner.request remat.facade remat.report remat.steps"
    ),
    "remat.keywords": "planner.request",
    "remat.memory_check": (
        "app.atomic_files app.cli app.errors app.render graph.errors planner.errors planner.request remat.errors "
        "remat.facade remat.report remat.torch"
    ),
    "remat.ort": (
        "graph.formats.onnx graph.formats.onnx.guards graph.formats.onnx.read graph.ir remat.report remat.steps"
    ),
    "remat.pytest_plugin": "remat.memory_check",
    "remat.report": (
        "app.atomic_files app.render graph.formats.native graph.ir planner.pipeline planner.request planner.wraps"
    ),
    "remat.request_fields": "planner.request",
    "remat.steps": ("app.cli app.render graph.formats graph.formats.native planner.errors planner.report remat.report"),
    "remat.torch": (
        "app.atomic_files app.cli app.render graph.errors graph.execution planner.errors planner.pipeline "
        "planner.request remat.errors remat.facade remat.report remat.steps"
    ),
}


TEST_TOOLS = {"pytest", "unittest"}

FILES = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {dotted(path) for path in FILES}


@cache
def imports(path: Path) -> tuple[tuple[str, int, bool], ...]:
    """(module, line, inside a function) of everything a file imports; modules of ours in full, others by name."""
    found: list[tuple[str, int, bool]] = []
    left: list[tuple[ast.AST, bool]] = [(ast.parse(path.read_text()), False)]
    while left:
        node, is_inside = left.pop()
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path} imports relatively"
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else node.module for name in whole]
        found += [(name, node.lineno, is_inside) for name in names]
        is_inside |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if not isinstance(node, ast.expr):  # no import is in an expression
            left += [(child, is_inside) for child in ast.iter_child_nodes(node)]
    return tuple(found)


def folder_of(module: str) -> str:
    """The package a module lies in; a module at a room's top is a unit of its own."""
    is_package = (ROOT / module.replace(".", "/")).is_dir()
    return module if is_package or module.count(".") == 1 else module.rpartition(".")[0]


def unit_of(module: str) -> str:
    folder = folder_of(module)
    top = ".".join(folder.split(".")[:2])
    return folder if top in SPLIT else top


def edges(name: Callable[[str], str]) -> dict[str, set[str]]:
    """What each unit, or each folder, imports of the others."""
    found: dict[str, set[str]] = {}
    for path in FILES:
        own = name(dotted(path))
        others = {name(module) for module, _, _ in imports(path) if module in MODULES}
        found.setdefault(own, set()).update(others - {own})
    return found


def test_units_import_what_the_table_allows_and_the_table_allows_no_more() -> None:
    actual = {unit: targets for unit, targets in edges(unit_of).items() if targets}
    assert actual == {unit: set(targets.split()) for unit, targets in MAY_IMPORT.items()}


@pytest.mark.parametrize("name", [unit_of, folder_of])
def test_imports_have_no_cycle(name: Callable[[str], str]) -> None:
    left = edges(name)
    while leaves := [unit for unit, targets in left.items() if not targets & left.keys()]:
        for unit in leaves:
            del left[unit]
    assert not left


def test_rooms_import_downwards() -> None:
    order = [*ROOMS, "tests", "bench", "docs"]
    for path in FILES:
        room = path.relative_to(ROOT).parts[0]
        used = {module.partition(".")[0] for module, _, _ in imports(path)} & set(order)
        assert all(order.index(other) <= order.index(room) for other in used), path


def test_the_product_uses_no_test_tools() -> None:
    users = {dotted(path) for path in FILES for module, _, _ in imports(path) if TEST_TOOLS & {*module.split(".")}}
    assert users <= {"remat.pytest_plugin"}


def test_an_import_inside_a_function_has_a_reason() -> None:
    """Beside it, or once for the module."""
    for path in FILES:
        text = path.read_text()
        lines = text.splitlines()
        bare = [line for _, line, is_inside in imports(path) if is_inside and "#" not in lines[line - 1]]
        assert not bare or MODULE_REASON in text, f"{path}:{bare}"


@pytest.mark.parametrize("room", ["graph", "planner", "app"])
def test_a_room_and_its_folders_stay_small(room: str) -> None:
    folders = [path.parent for path in FILES if path.name == "__init__.py" and path.relative_to(ROOT).parts[0] == room]
    modules = Counter(path.parent for path in FILES if path.name != "__init__.py")
    assert len([folder for folder in folders if folder.parent == ROOT / room]) <= MAX_PACKAGES
    assert modules[ROOT / room] <= MAX_MODULES
    assert not [folder for folder in folders if modules[folder] > MAX_IN_A_FOLDER]


def used_by(package: str) -> set[str]:
    """Modules that a package, with all below it, imports."""
    files = [path for path in FILES if f"{dotted(path)}.".startswith(f"{package}.")]
    return {module for path in files for module, _, _ in imports(path)}


def test_the_certificate_verifier_needs_the_standard_library_only() -> None:
    roots = {module.partition(".")[0] for module, _, _ in imports(ROOT / "planner/verify/certificate.py")}
    assert roots <= sys.stdlib_module_names


def test_the_checker_sees_problems_only() -> None:
    ours = {module for module in used_by("planner.verify") if module in MODULES}
    assert all(module.startswith(("planner.problem", "planner.verify", "planner.errors")) for module in ours)


#: Beside errors and cancellation, which know nothing of graphs; `request` knows the names of devices.
KNOW_GRAPHS = {"advice", "body_plans", "formulation", "lowering", "pipeline", "report", "request", "wraps"}


def test_algorithms_see_columns_only() -> None:
    free = {"graph.errors", "graph.cancellation", "graph.gc_pause"}
    for unit, targets in edges(unit_of).items():
        room, _, package = unit.partition(".")
        if room == "planner" and package not in KNOW_GRAPHS:
            assert not {target for target in targets if target.startswith("graph.")} - free, unit


def test_child_processes_import_no_pages_and_no_command_line() -> None:
    assert not [module for module in used_by("app.solver") if module.startswith(("app.pages", "app.cli", "app.api"))]
