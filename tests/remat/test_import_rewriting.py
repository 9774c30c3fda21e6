"""The wheel has `app`, `planner` and `graph` inside `remat`: how the build rewrites imports, and what it refuses."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.remat.build import ROOT, build_module

BUILD = build_module()
MODULES = frozenset(
    {"app", "app.cli", "app.zoo", "app.zoo.nets", "graph", "graph.ir", "planner", "planner.solve", "remat"}
)


def rewritten(source: str) -> str:
    return str(BUILD.rewritten(source.encode(), "m.py", MODULES).decode())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from graph.ir import Graph\n", "from remat.graph.ir import Graph\n"),
        ("from app import cli\n", "from remat.app import cli\n"),
        ("from  \\\n    graph.ir import (\n    Graph,\n)\n", "from  \\\n    remat.graph.ir import (\n    Graph,\n)\n"),
        ("import app\n", "from remat import app\n"),
        ("import app.cli as cli\n", "import remat.app.cli as cli\n"),
        ("import app.cli\n", "import remat.app.cli; from remat import app\n"),
        ("import os, graph.ir as ir, sys as s\n", "import os; import remat.graph.ir as ir; import sys as s\n"),
        ("x = 'é'; from app import cli  # from app\n", "x = 'é'; from remat.app import cli  # from app\n"),
        ("def f():\n    from planner.solve import g\n", "def f():\n    from remat.planner.solve import g\n"),
        ("if TYPE_CHECKING: import graph.ir as ir\n", "if TYPE_CHECKING: import remat.graph.ir as ir\n"),
        ("from remat import plan\n", "from remat import plan\n"),
        ("from . import cli\nfrom .app import x\nfrom ..graph.ir import y\n",) * 2,
        ("import apple, graphviz\nfrom planners import x\n",) * 2,
        ('"""Example: from app import cli; see app.cli."""\n',) * 2,
        ("app = 1\napp.cli = 'app'\nd = {'graph': 'planner'}\nraise E from app\n",) * 2,
        ("f'graph.node[{i}]'\ng('app.unknown')\nlog('graph.input')\n",) * 2,
        ("# from app import cli\r\nfrom app import cli\r\n", "# from app import cli\r\nfrom remat.app import cli\r\n"),
    ],
)
def test_imports_are_rewritten_and_nothing_else(before: str, after: str) -> None:
    assert rewritten(before) == after


def test_a_rewritten_import_binds_the_same_names() -> None:
    source = "import app.cli, os.path, graph, planner.solve as solve\nfrom app.zoo import nets as n\n"

    def bound(text: str) -> set[str]:
        found = [alias for node in ast.walk(ast.parse(text)) if hasattr(node, "names") for alias in node.names]
        return {alias.asname or alias.name.partition(".")[0] for alias in found}

    assert bound(rewritten(source)) - {"remat"} == bound(source)


@pytest.mark.parametrize(
    "source",
    [
        "from tests.oracles import peak",
        "import bench.run",
        "from app.gone import x",
        "import planner.gone",
        "TABLE = {'fast': 'planner.solve'}",
        "start('app.cli.main')",
        "import_module(f'app.zoo.{name}')",
        "importlib.import_module('app')",
        "logging.getLogger('planner')",
        "[sys.executable, '-m', 'app', 'serve']",
    ],
)
def test_a_name_that_the_wheel_lacks_fails_the_build(source: str) -> None:
    with pytest.raises(BUILD.CannotMap, match=r"m\.py:1: "):
        rewritten(source)


def test_every_file_of_the_checkout_can_be_rewritten() -> None:
    modules = BUILD.module_names(ROOT)
    for package in (*BUILD.MOVED, BUILD.TARGET):
        for file in (ROOT / package).rglob("*.py"):
            text = BUILD.rewritten(file.read_bytes(), str(file), modules).decode()
            compile(text, str(file), "exec")
            left = re.findall(r"^ *(?:from|import) (?:app|planner|graph)\b.*", text, re.MULTILINE)
            assert not left


def test_packages_are_moved_below_remat(tmp_path: Path) -> None:
    for name in ("app", "planner", "graph", "remat"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "app" / "data.json").write_text("from app")
    (tmp_path / "remat" / "api.py").write_text("from app import x")
    BUILD.lay_out(tmp_path)
    assert [folder.name for folder in tmp_path.iterdir()] == ["remat"]
    assert (tmp_path / "remat" / "api.py").read_text() == "from remat.app import x"
    assert (tmp_path / "remat" / "app" / "data.json").read_text() == "from app"


def test_a_module_of_remat_with_the_name_of_a_package_fails_the_build(tmp_path: Path) -> None:
    for file in ("remat/__init__.py", "remat/app.py", "app/__init__.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("")
    with pytest.raises(BUILD.CannotMap, match="rename"):
        BUILD.lay_out(tmp_path)
