"""The docs name everything there is, their links resolve, and their examples run."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import re
import tomllib
from pathlib import Path

import pytest

from app.api.main import create_app
from app.api.schemas.request import Differentiate, GradientRule
from app.settings import Settings
from app.store.tables import metadata
from docs import generate
from graph.autodiff.resolve_names import GradientOptions
from planner.algorithms import PLANNERS
from planner.layout import LAYOUTS
from planner.problem.columns import Problem
from planner.problem.plan import Lifetimes, Plan
from planner.request.target_runtime import RUNTIMES

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
MODULES = [path for room in ("graph", "planner", "app") for path in sorted((ROOT / room).rglob("*.py"))]
WITH_EXAMPLES = [path for path in MODULES if re.search(r"^ *>>> ", path.read_text(), re.MULTILINE)]
OLD_WORDS = re.compile(r"\b(nobody|whoever|somebody|way out|way back|unless told)\b", re.IGNORECASE)


def page(name: str) -> str:
    return (DOCS / name).read_text()


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(path: Path) -> set[str]:
    return {generate.anchor(title) for title in re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)}


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_examples_run(path: Path) -> None:
    result = doctest.testfile(str(path), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=named)
def test_examples_in_docstrings_run(path: Path) -> None:
    """Those of `remat`, which need models, are run in `tests/remat/test_public_api.py`."""
    module = importlib.import_module(named(path.with_suffix("")).replace("/", "."))
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert result.attempted and not result.failed


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_links_and_files_named_exist(path: Path) -> None:
    text = path.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text) if "://" not in link]
    files = re.findall(r"`((?:graph|planner|app|remat|tests|bench|docs)/[\w/-]+\.(?:py|md|json|svg))`", text)
    missing = [link for link in links if not (path.parent / link).exists()]
    missing += [name for name in files if not (ROOT / name).exists()]
    assert not missing


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_links_into_a_page_name_one_of_its_headings(path: Path) -> None:
    links = re.findall(r"\]\(([\w./-]*)#([^)]+)\)", path.read_text())
    assert not [
        f"{link}#{place}" for link, place in links if place not in anchors(path.parent / link if link else path)
    ]


@pytest.mark.parametrize("path", sorted(set(DOCS.rglob("*.md")) - {DOCS / "README.md"}), ids=named)
def test_every_page_is_reached_from_the_index(path: Path) -> None:
    links = re.findall(r"\]\(([^)#]+\.md)", page("README.md") + page("start-here.md"))
    linked = {(DOCS / link).resolve() for link in links}
    assert path in linked | {DOCS / "pictures" / "README.md"}


@pytest.mark.parametrize(
    "path", [path for path in PAGES if path.name not in generate.PAGES and path.parent != ROOT], ids=named
)
def test_a_page_uses_the_words_of_the_field(path: Path) -> None:
    assert not OLD_WORDS.findall(path.read_text())


def test_a_walk_from_the_outermost_call_to_an_algorithm_enters_at_most_20_files_once() -> None:
    """Each file but the first of a process is imported by one entered before it, or by the one that builds them."""
    rooms = [
        "app/api/main.py",
        "app/api/service/service.py",
        "app/api/routes/__init__.py",
        "planner/algorithms/__init__.py",
    ]
    _, *walks = re.split(r"^## ", page("design/walks.md"), flags=re.MULTILINE)
    assert len(walks) == 2
    for walk in walks:
        files = re.findall(r"^\d+\. `([\w/]+\.py)`", walk, re.MULTILINE)
        assert 1 < len(files) <= 20 and len(files) == len(set(files)) and "algorithms/" in files[-1]
        for place, file in enumerate(files[1:], 1):
            package, _, module = file.removesuffix(".py").replace("/", ".").rpartition(".")
            parent = package.rpartition(".")[2]
            named = re.compile(
                rf"from {re.escape(package)} import [^)]*?\b{module}\b|from {re.escape(package)}\.{module} import"
                rf'|"{parent}\.{module}"'
            )
            assert any(named.search((ROOT / before).read_text()) for before in (*rooms, *files[:place])), file


def test_every_picture_is_shown_and_made_by_a_command() -> None:
    text = "".join(path.read_text() for path in PAGES)
    for picture in generate.PICTURES.glob("*.svg"):
        assert f"pictures/{picture.name})" in text
        assert f"`{picture.name}`" in page("pictures/README.md")


def test_every_column_of_the_store_is_in_the_data_model() -> None:
    text = page("reference/data-model.md")
    columns = {f"`{table.name}.{name}`" for table in metadata.sorted_tables for name in table.c.keys()}  # noqa: SIM118
    assert not [name for name in columns if name not in text]


@pytest.mark.parametrize("record", [Problem, Lifetimes, Plan], ids=lambda record: record.__name__)
def test_every_column_is_in_the_data_model(record: type) -> None:
    text = page("reference/data-model.md")
    assert not [field.name for field in dataclasses.fields(record) if f"`{field.name}`" not in text]


def test_every_planner_layout_and_runtime_is_described() -> None:
    text = page("reference/planners.md")
    assert not [name for name in (*PLANNERS, *LAYOUTS, *RUNTIMES) if f"`{name}`" not in text]


def test_every_field_of_a_differentiation_is_described() -> None:
    text = page("concepts/gradients.md")
    fields = [*Differentiate.model_fields, *GradientRule.model_fields]
    assert {field.name for field in dataclasses.fields(GradientOptions)} <= set(fields)
    assert not [name for name in fields if f"`{name}`" not in text]


def test_every_setting_and_path_is_in_the_reference(tmp_path: Path) -> None:
    settings, http = page("reference/settings.md"), page("reference/http.md")
    assert not [name for name in Settings.model_fields if f"`REMAT_{name.upper()}`" not in settings]
    paths = create_app(Settings(data=tmp_path)).openapi()["paths"]
    operations = [f"`{method.upper()} {path}`" for path, methods in paths.items() for method in methods]
    assert not [operation for operation in operations if operation not in http]


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [name for group in project["optional-dependencies"].values() for name in group]
    names = {re.split(r"[<>=[]", entry)[0] for entry in (*project["dependencies"], *extras)}
    reasons = set(re.findall(r"^\| ([\w-]+) \|", page("reference/dependencies.md"), re.MULTILINE)) - {"package", "---"}
    assert names == reasons


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [name for group in project["optional-dependencies"].values() for name in group]
    lines = (ROOT / "constraints.txt").read_text().lower().splitlines()
    pins = {line.split("==")[0].replace("_", "-") for line in lines}
    names = {re.split(r"[<>=[]", entry)[0] for entry in (*project["dependencies"], *extras)}
    assert not names - pins
