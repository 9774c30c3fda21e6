"""The docs name everything there is, and their examples run."""

from __future__ import annotations

import dataclasses
import doctest
import re
import tomllib
from pathlib import Path

import pytest

from app.api.main import create_app
from app.api.schemas.plans import Differentiate, GradientRule
from app.settings import Settings
from app.store.tables import metadata
from graph.autodiff.resolve_names import GradientOptions
from planner.algorithms import PLANNERS
from planner.problem import Problem
from planner.problem.plan import Lifetimes, Plan
from planner.request.target_runtime import RUNTIMES

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.glob("*.md")), ROOT / "README.md"]


def page(name: str) -> str:
    return (DOCS / name).read_text()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_examples_run(path: Path) -> None:
    result = doctest.testfile(str(path), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_and_files_named_exist(path: Path) -> None:
    text = path.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    named = re.findall(r"`((?:graph|planner|app|remat|tests|bench|docs)/[\w/]+\.(?:py|md|json))`", text)
    missing = [link for link in links if not (path.parent / link).exists()]
    missing += [name for name in named if not (ROOT / name).exists()]
    assert not missing


def test_every_column_of_the_store_is_in_the_data_model() -> None:
    text = page("data-model.md")
    columns = {f"`{table.name}.{name}`" for table in metadata.sorted_tables for name in table.c.keys()}  # noqa: SIM118
    assert not [name for name in columns if name not in text]


@pytest.mark.parametrize("record", [Problem, Lifetimes, Plan], ids=lambda record: record.__name__)
def test_every_column_is_in_the_data_model(record: type) -> None:
    text = page("data-model.md")
    assert not [field.name for field in dataclasses.fields(record) if f"`{field.name}`" not in text]


def test_every_planner_and_runtime_is_described() -> None:
    text = page("planners.md")
    assert not [name for name in (*PLANNERS, *RUNTIMES) if f"`{name}`" not in text]


def test_every_field_of_a_differentiation_is_described() -> None:
    text = page("gradients.md") + page("training.md")
    fields = [*Differentiate.model_fields, *GradientRule.model_fields]
    assert {field.name for field in dataclasses.fields(GradientOptions)} <= set(fields)
    assert not [name for name in fields if f"`{name}`" not in text]


def test_every_setting_and_path_is_on_the_service_page(tmp_path: Path) -> None:
    text = page("service.md")
    assert not [name for name in Settings.model_fields if f"`REMAT_{name.upper()}`" not in text]
    paths = create_app(Settings(data=tmp_path)).openapi()["paths"]
    named = [f"`{method.upper()} {path}`" for path, methods in paths.items() for method in methods]
    assert not [name for name in named if name not in text]


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [name for group in project["optional-dependencies"].values() for name in group]
    names = {re.split(r"[<>=]", entry)[0] for entry in (*project["dependencies"], *extras)}
    reasons = set(re.findall(r"^\| ([\w-]+) \|", page("dependencies.md"), re.MULTILINE)) - {"package", "---"}
    assert names == reasons


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [name for group in project["optional-dependencies"].values() for name in group]
    lines = (ROOT / "constraints.txt").read_text().lower().splitlines()
    pins = {line.split("==")[0].replace("_", "-") for line in lines}
    names = {re.split(r"[<>=]", entry)[0] for entry in (*project["dependencies"], *extras)}
    assert not names - pins
