"""Names that users type: keyword parameters, attributes of a report, the version."""

from __future__ import annotations

import doctest
import importlib.metadata
import inspect
import json
import os
import shutil
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import remat
from graph.formats.native.writer import document
from planner.request.plan_request import Request, fields_of
from remat import facade, request_fields
from tests.end_to_end.test_agreement import training_chain

MODEL = Path(__file__).parents[1] / "models" / "decoder.onnx"
#: Parameters of the functions that are no request fields.
OWN = {
    "plan": {"model", "budget", "cancel"},
    "curve": {"model", "budgets", "cancel"},
    "fit": {"model", "budget", "grow", "cancel"},
    "batch": {"models", "budgets", "planners", "seeds", "batch_sizes", "executor", "workers", "cancel"},
}


@pytest.mark.parametrize("name", OWN)
def test_the_keyword_parameters_are_the_fields_of_the_request(name: str) -> None:
    parameters = inspect.signature(getattr(remat, name)).parameters
    rows = {row.attribute: row for row in fields_of(name) if row.attribute not in OWN[name]}
    assert [*parameters] == [*(p for p in parameters if p in OWN[name]), *rows]
    assert {*parameters} >= OWN[name]
    assert all(parameters[p].kind is parameters[p].KEYWORD_ONLY for p in rows)
    assert {*typing.get_type_hints(getattr(request_fields, f"{name.title()}Fields"))} == {*rows}


@pytest.mark.parametrize("name", OWN)
def test_each_keyword_is_described_where_help_shows_it(name: str) -> None:
    function = getattr(remat, name)
    shown = inspect.getdoc(function) or ""
    assert not [p for p in inspect.signature(function).parameters if f"    {p}: " not in shown]


def test_defaults_are_those_of_a_request() -> None:
    parameters = inspect.signature(remat.plan).parameters
    assert parameters["search_seconds"].default == Request().search_seconds
    assert parameters["execute"].default == "auto"  # here as on the command line
    assert inspect.signature(remat.fit).parameters["max_overhead"].default == 0.1


def test_an_unknown_keyword_is_named_with_the_nearest_field() -> None:
    for function, arguments in ((remat.plan, ()), (remat.curve, (["50%"],)), (remat.fit, ("1GB",))):
        with pytest.raises(remat.BadInput, match=r"retruns.*did you mean 'returns'") as caught:
            function(training_chain(), *arguments, retruns=["plan"])
        assert caught.value.findings[0].code == "unknown_field"
    with pytest.raises(remat.BadInput, match=r"search_second:.*did you mean 'search_seconds'"):
        remat.batch(MODEL, ["50%"], search_second=1)


def test_returns_is_the_field_return() -> None:
    report = remat.plan(training_chain(), "80%", iterations=5, returns=["layout"])
    assert "layout" in report and "timeline" not in report
    assert report["request"]["return"] == ["layout"]


def test_a_fit_takes_a_device_instead_of_a_budget() -> None:
    found = remat.fit(MODEL, fits="400KB", dims={"sequence": 8}, planner="mirror")
    assert found["size"]
    with pytest.raises(remat.BadInput, match="the memory to fit"):
        remat.fit(MODEL)


def test_attributes_of_a_report_are_the_figures_of_its_document() -> None:
    report = remat.plan(training_chain(), budget="80%", iterations=20)
    plan, baseline = report["plan"], report["baseline"]
    for name in (
        "status",
        "peak_bytes",
        "arena_bytes",
        "saved_bytes",
        "budget_bytes",
        "seconds",
        "overhead",
        "gap",
        "bound",
        "recomputed",
        "kept",
    ):
        assert getattr(report, name) == plan[name], name
    assert (report.baseline_peak_bytes, report.baseline_seconds) == (baseline["peak_bytes"], baseline["seconds"])
    assert [list(run) for run in report.order] == plan["order"]
    assert (report.fits, report.warnings, report.executed) == (report["fits"], report["warnings"], report["executed"])
    assert report.saved_bytes == report.baseline_peak_bytes - report.peak_bytes
    assert report.executed_equal is True
    assert remat.plan(training_chain(), budget="80%", iterations=20, execute="no").executed_equal is None


def test_every_attribute_of_a_report_says_what_it_is() -> None:
    attributes = [name for name, member in vars(remat.Report).items() if isinstance(member, property)]
    assert not [name for name in attributes if name[0] != "_" and not inspect.getdoc(getattr(remat.Report, name))]


def test_a_report_is_a_mapping_and_json() -> None:
    report = remat.plan(training_chain(), budget="80%", iterations=20)
    copied = report.to_dict()
    assert copied == dict(report) and type(copied) is dict
    copied["plan"]["peak_bytes"] = 0
    assert report.peak_bytes > 0
    assert json.loads(report.to_json()) == json.loads(json.dumps(report.to_dict()))
    assert report.to_json(indent=1).startswith("{\n")


def test_the_version_is_that_of_the_installed_package() -> None:
    assert remat.__version__ == importlib.metadata.version("remat")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        remat.nothing  # noqa: B018


def test_every_public_name_exists() -> None:
    assert {*remat.__all__, "__version__"} == {*dir(remat)}
    assert all(getattr(remat, name) is not None for name in dir(remat))


def test_importing_remat_loads_no_numpy() -> None:
    heavy = "[m for m in ('numpy', 'numba', 'onnx', 'httpx2', 'planner') if m in sys.modules]"
    code = f"import sys, remat, remat.__main__; print({heavy})"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_python_m_remat_is_the_command_line() -> None:
    command = [sys.executable, "-m", "remat", "planners", "--json"]
    shown = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert json.loads(shown.stdout)


def test_examples_in_docstrings_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(MODEL, "decoder.onnx")
    Path("model.json").write_text(json.dumps(document(training_chain())))
    names = {"remat": remat, "json": json, "report": remat.plan("model.json", "80%", iterations=5)}
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner()
    examples = [*finder.find(facade, globs=names), *finder.find(remat.Report, globs=names)]
    assert sum(bool(runner.run(example).attempted) for example in examples) == 6
    assert runner.summarize().failed == 0
