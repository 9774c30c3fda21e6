"""The command line, as the wire contract says: what is printed where, and which exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer

import remat
from app.cli import typer_app
from app.cli.commands import plan as plan_command
from app.cli.commands import zoo as zoo_command
from tests.app.conftest import chain, one_layer

Run = Any

MODELS = Path(__file__).parents[2] / "models"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs one command line in this process: (exit code, standard output, standard error)."""

    def command(*arguments: object) -> tuple[int, str, str]:
        code = typer_app.run([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return command


def saved(run: Run, model: Path, *more: object) -> Path:
    plan = model.with_suffix(".plan.json")
    assert run("plan", model, "-o", plan, *more)[0] in (0, 1)
    return plan


def test_json_is_the_report_and_nothing_else_on_standard_output(run: Run, model: Path) -> None:
    code, out, err = run("plan", model, "--budget", "90%", "--json")
    report = json.loads(out)
    assert code == {"over_budget": 1}.get(report["plan"]["status"], 0)
    assert report["format"] == "remat-report/1"
    assert report["executed"]["status"] != "different"
    assert "searching" in err and "{" not in err


def test_people_read_first_whether_it_fits(run: Run, model: Path) -> None:
    code, out, _ = run("plan", model, "--budget", "100%")
    assert code == 0
    assert out.startswith("fits ")
    assert "executed:" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plan", "MODEL", "-o", "nowhere/plan.json"], "create the folder first"),
        (["plan", "MODEL", "-o", "FOLDER"], "not of a folder"),
        (["plan", "MODEL", "-o", "MODEL"], "same file as the model"),
        (["plan", "MODEL", "-o", "a.json", "--graph", "./a.json"], "same file as another output"),
        (["plan", "MODEL", "-o", "-"], "--json"),
        (["plan", "MODEL", "--plot", "nowhere/plot.svg"], "create the folder first"),
        (["curve", "MODEL", "--budgets", "90%", "--plot", "nowhere/plot.svg"], "create the folder first"),
        (["fit", "MODEL", "--budget", "1GiB", "-o", "nowhere/plan.json"], "create the folder first"),
        (["batch", "MODEL", "--budgets", "90%", "--html", "nowhere/page.html"], "create the folder first"),
        (["batch", "MODEL", "--budgets", "90%", "--html", "MODEL"], "same file as a model"),
        (["batch", "MODEL", "--budgets", "90%", "-o", ".", "--html", "summary.csv"], "same file as another output"),
        (["plan", "x.json", "--request", "MODEL", "-o", "MODEL"], "same file as the request"),
        (["fit", "x.json", "--request", "MODEL", "-o", "MODEL"], "same file as the request"),
        (["curve", "x.json", "--request", "MODEL", "--plot", "MODEL"], "same file as the request"),
        (["curve", "MODEL", "--request", "x.json", "--plot", "MODEL"], "same file as the model"),
        (["fit", "MODEL", "--request", "x.json", "-o", "MODEL"], "same file as the model"),
        (
            ["batch", "MODEL", "--budgets", "9%", "--request", "REQUEST", "--html", "REQUEST"],
            "same file as the request",
        ),
        (["convert", "MODEL", "MODEL"], "same file as the model"),
        (["layout", "MODEL", "-o", "MODEL"], "same file as the table"),
        (["layout", "MODEL", "-o", "nowhere/out.csv"], "create the folder first"),
        (["verify", "--certificate", "MODEL", "-o", "MODEL"], "same file as the plan"),
        (["check", "MODEL", "x.json", "--markdown", "MODEL"], "same file as the plan"),
        (["check", "x.json", "y.json", "--fits", "1GiB", "--before", "MODEL", "--markdown", "MODEL"], "of the plan"),
        (["measure", "x.py:step", "--plan", "MODEL", "-o", "MODEL"], "same file as the plan"),
        (["measure", "MODEL:step", "--budget", "50%", "-o", "MODEL"], "same file as the module"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else None,
)
def test_what_cannot_be_written_is_told_before_the_search(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    def searched(*_: object, **__: object) -> None:
        raise AssertionError("a search began")

    for place in ("plan.solve", "curve.curve", "fit.fit", "batch._solve", "layout.pack"):
        monkeypatch.setattr(f"app.cli.commands.{place}", searched)
    monkeypatch.chdir(tmp_path)
    before, request = model.read_bytes(), tmp_path / "request.json"
    request.write_text("{}")
    places = {"MODEL": model, "MODEL:step": f"{model}:step", "FOLDER": tmp_path, "REQUEST": request}
    code, out, err = run(*(places.get(word, word) for word in arguments))
    assert (code, out, model.read_bytes()) == (2, "", before)
    assert said in err and "Traceback" not in err


def test_a_plan_of_modules_of_a_model_without_them_is_refused_before_the_search(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.cli.commands.plan.solve", lambda *_, **__: pytest.fail("a search began"))
    gpt = Path(__file__).parents[2] / "models" / "gpt.onnx"
    code, _, err = run("plan", gpt, "--dim", "batch=2", "--dim", "sequence=4", "--as", "wraps", "--budget", "50%")
    assert code == 2 and "does not name the modules of its nodes" in err


def test_a_budget_out_of_reach_exits_1_and_still_writes_the_best_plan(run: Run, model: Path, tmp_path: Path) -> None:
    code, out, _ = run("plan", model, "--budget", "1", "-o", tmp_path / "p.json")
    assert code == 1
    assert out.startswith("does not fit 1 B")
    assert json.loads((tmp_path / "p.json").read_text())["plan"]["status"] == "over_budget"


def test_a_summary_is_printed_and_written(run: Run, model: Path, tmp_path: Path) -> None:
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"return": ["summary"], "budget": "80%", "iterations": 20}))
    code, out, _ = run("plan", model, "--request", request, "-o", tmp_path / "summary.json")
    assert code == 0
    assert "planner " in out and "nodes recomputed" not in out
    assert "recomputed" not in json.loads((tmp_path / "summary.json").read_text())["plan"]


def test_the_largest_budget_is_met(run: Run, model: Path) -> None:
    fields = ("--budget", 2**63 - 1, "--iterations", 5, "--no-draw")
    for more in ((), ("--counts", "activations")):
        assert run("plan", model, *fields, *more)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "name"),
    [(["--request", "REQUEST"], "search_seconds"), (["--device", '{"a":' * 20_000], "--device")],
    ids=["request", "device"],
)
def test_values_beyond_all_limits_are_invalid(
    run: Run, model: Path, tmp_path: Path, arguments: list[str], name: str
) -> None:
    request = tmp_path / "request.json"
    request.write_text(f'{{"search_seconds": 1{"0" * 400}}}')
    code, _, err = run(
        "plan", model, "--budget", "60%", *(request if each == "REQUEST" else each for each in arguments)
    )
    assert code == 2
    assert f"{name}: found" in err


def test_a_saved_plan_is_verified_and_explained_from_one_file(run: Run, model: Path) -> None:
    plan = saved(run, model, "--budget", "60%")
    model.unlink()
    assert run("verify", plan)[0] == 0
    assert json.loads(run("verify", plan, "--json")[1])["valid"] is True
    code, out, _ = run("explain", plan, "--top", 1)
    assert code == 0
    recomputed = json.loads(plan.read_text())["plan"]["recomputed"]
    assert re.search(
        rf"^\w+ own::\w+ float32\[64,64\].*\nall {len(recomputed)} .*\n{len(recomputed) - 1} more;", out, re.M
    )
    assert "holders" in json.loads(run("explain", plan, "--json")[1])


def test_the_proof_of_a_bound_is_written_to_one_file_and_accepted_again(run: Run, model: Path, tmp_path: Path) -> None:
    plan = saved(run, model, "--budget", "60%")
    assert json.loads(plan.read_text())["plan"]["bound"]["proof"] == "certified"
    assert run("verify", plan, "--certificate", "-o", tmp_path / "bound.json")[0] == 0
    code, out, _ = run("verify", "--certificate", tmp_path / "bound.json")
    assert (code, out.count("proven: ")) == (0, 2)


def test_a_bound_that_says_more_than_its_certificate_is_not_proven(run: Run, model: Path) -> None:
    plan = saved(run, model, "--budget", "60%")
    report = json.loads(plan.read_text())
    report["plan"]["bound"]["peak_bytes"] += 1
    plan.write_text(json.dumps(report))
    code, out, _ = run("verify", "--certificate", plan)
    assert code == 1
    assert out.startswith("not proven: plan.bound.peak_bytes")
    report["plan"]["bound"]["peak_bytes"] -= 1
    report["plan"]["bound"]["certificate"]["claims"][0]["value"] += 1
    plan.write_text(json.dumps(report))
    assert "is claimed" in run("verify", "--certificate", plan)[1]


@pytest.mark.parametrize("lie", ["peak_bytes", "seconds", "overhead"])
def test_a_plan_that_lies_is_not_valid(run: Run, model: Path, lie: str) -> None:
    plan = saved(run, model)
    report = json.loads(plan.read_text())
    report["plan"][lie] += 1
    plan.write_text(json.dumps(report))
    code, out, _ = run("verify", plan)
    assert code == 1
    assert out.startswith("not valid: ") and lie in out


def test_graph_and_source_are_written_in_the_format_of_their_extension(run: Run, model: Path, tmp_path: Path) -> None:
    model.write_text(json.dumps(one_layer()))
    graph, source = tmp_path / "rewritten.onnx", tmp_path / "source.txt"
    assert run("plan", model, "--loss", "loss", "--graph", graph, "--source", source)[0] == 0
    assert run("info", graph, "--no-differentiate")[0] == 0
    assert source.read_text().startswith("graph ")


def test_the_same_seed_and_iterations_give_the_same_plan(run: Run, model: Path) -> None:
    reports = [
        json.loads(run("plan", model, "--budget", "60%", "--iterations", 200, "--seed", 5, "--json")[1])
        for _ in range(2)
    ]
    for report in reports:
        del report["elapsed"]
    assert reports[0] == reports[1]


def test_flags_beat_the_request_file(run: Run, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    file.write_text(json.dumps({"max_overhead": "5%", "seed": 3, "counts": "activations", "inputs": {"a": [1]}}))
    code, out, _ = run("plan", model, "--request", file, "--budget", "90%", "--seed", 4, "--json")
    asked = json.loads(out).get("request", {})
    assert code == 2 or (asked["seed"], asked["counts"], asked["budget"]) == (4, "activations", "90%")
    from app.cli.options.options import request_fields

    flags = {"budget": "90%", "seed": 4, "inputs": ["b=2x3"], "counts": None}
    assert request_fields(file, flags) == {
        "budget": "90%",
        "seed": 4,
        "counts": "activations",
        "inputs": {"a": [1], "b": [2, 3]},
    }


def test_a_device_of_the_command_line_may_be_an_object(run: Run, model: Path) -> None:
    device = {"like": "a100-80gb", "link_bandwidth": 3e11}
    code, out, _ = run("plan", model, "--device", json.dumps(device), "--json")
    report = json.loads(out)
    assert (code, report["request"]["device"]) == (0, device)
    assert any("link_bandwidth: not used" in warning for warning in report["warnings"])


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--budget", "3 parsecs"], "bad_budget"),
        (["--planner", "wishful"], "unknown_planner"),
        (["--input", "x=3xthree"], "bad_flag"),
        (["--dim", "N"], "bad_flag"),
        (["--dim", f"N={'9' * 5000}"], "bad_flag"),
        (["--reserve", str(2**63 - 1)], "bad_field"),
        (["--budget", "1", "--fits", "2"], "conflicting_goals"),
        (["--host-memory", "1GiB"], "bad_field"),
        (["--device", '{"like": '], "bad_device"),
        (["--device", '{"like": "a100-80gb", "link_bandwidth": 0}'], "bad_device"),
        (["--offload", "--device", '{"like": "a100-80gb", "host_bandwidth": 0}'], "bad_device"),
        (["--offload", "--device", "mi250x"], "no_host_link"),
        (["--offload", "--host-memory", "1", "--budget", "90%"], "bad_field"),
        (["--no-differentiate", "--loss", "h0"], "conflicting_flags"),
        (["--graph", "out.pdf"], "unknown_extension"),
        (["--seconds", "soon"], "usage"),
        (["--bugdet", "1"], "usage"),
        (["--request", "/nowhere/request.json"], "file_not_found"),
        (["--loss", "nothing"], ""),
    ],
)
def test_bad_usage_exits_2_with_a_problem(run: Run, model: Path, arguments: list[str], code: str) -> None:
    exit_code, out, err = run("plan", model, *arguments, "--json")
    problem = json.loads(out)
    assert exit_code == 2
    assert problem["code"] == code or not code
    assert "Traceback" not in err
    exit_code, out, err = run("plan", model, *arguments)
    assert (exit_code, out) == (2, "")
    assert err.startswith("remat: ") or "\nremat: " in err
    assert "Traceback" not in err


def test_a_plan_without_a_goal_leaves_a_model_that_fits_the_device_as_it_is(run: Run, model: Path) -> None:
    code, out, _ = run("plan", model, "--json")
    report = json.loads(out)
    assert (code, report["plan"]["status"], report["plan"]["recomputed"]) == (0, "proven", [])
    assert report["plan"]["peak_bytes"] == report["baseline"]["peak_bytes"]
    assert report["request"]["fits"] == "a100-80gb"
    small = json.dumps({"like": "a100-80gb", "memory_bytes": 100_000})
    (model.parent / "request.json").write_text(f'{{"device": {small}}}')
    code, out, _ = run("plan", model, "--request", model.parent / "request.json", "--json")
    assert json.loads(out)["plan"]["budget_bytes"] == 100_000
    assert "nothing was changed" not in run("plan", model, "--max-overhead", "10%")[1]


def test_every_finding_is_printed_with_its_remedy(run: Run, model: Path) -> None:
    document = chain()
    document["nodes"][0]["inputs"] = ["nowhere"]
    document["outputs"] = ["neither"]
    model.write_text(json.dumps(document))
    _, _, err = run("plan", model)
    assert "nodes[0].inputs[0]" in err and "outputs[0]" in err and "expected" in err


@pytest.mark.parametrize("content", [b"", b"{", b"\x00\x01", b"[]", b"remat/1", b'{"format": "remat/2"}'])
def test_what_is_no_model_exits_2(run: Run, model: Path, content: bytes) -> None:
    model.write_bytes(content)
    for command in ("plan", "info", "verify", "explain"):
        assert run(command, model)[0] == 2


def test_a_model_is_read_from_standard_input(model: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "remat", "plan", "-", "--json"],
        input=model.read_bytes(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0
    assert json.loads(done.stdout)["model"]["name"] == "chain"


def test_conversions_lose_nothing(run: Run, model: Path, tmp_path: Path) -> None:
    for name in ("a.columns.json", "a.msgpack", "b.json"):
        assert run("convert", model, tmp_path / name)[0] == 0
        assert run("diff", model, tmp_path / name)[:2] == (0, "no difference\n")
    assert run("convert", model, tmp_path / "a.doc")[0] == 2


def test_a_difference_exits_1_and_names_the_nodes_to_blame(run: Run, model: Path, tmp_path: Path) -> None:
    other = chain()
    other["nodes"][1]["op"] = "own::Other"
    other["values"][1]["shape"] = [128, 64]
    changed = tmp_path / "other.json"
    changed.write_text(json.dumps(other))
    code, out, _ = run("diff", model, changed)
    assert code == 1
    assert "nodes to blame: f0, f1" in out
    found = json.loads(run("diff", model, changed, "--json")[1])
    assert found["same"] is False
    assert found["differences"][0]["bytes"] == 64 * 64 * 4


def test_open_lengths_of_compared_models_are_given(run: Run, tmp_path: Path) -> None:
    symbolic, fixed, lengths = (
        MODELS / "decoder.onnx",
        tmp_path / "fixed.onnx",
        ("--batch", "2", "--dim", "sequence=16"),
    )
    assert run("convert", symbolic, fixed, *lengths)[0] == 0
    assert run("diff", symbolic, fixed, *lengths)[:2] == (0, "no difference\n")
    code, _, shown = run("diff", symbolic, fixed)
    assert code == 2 and "pass --dim batch=8" in shown


def test_plans_are_compared_by_figures_and_runs(run: Run, model: Path, tmp_path: Path) -> None:
    plan = saved(run, model, "--planner", "as_given")
    report = json.loads(plan.read_text())
    assert run("diff", plan, plan)[0] == 0
    again = tmp_path / "again.json"
    report["plan"]["order"].append(["f2", 1])
    report["plan"]["peak_bytes"] += 64
    again.write_text(json.dumps(report))
    code, out, _ = run("diff", plan, again)
    assert code == 1
    assert re.search(r"^peak_bytes .*KiB .*KiB +\+64 B \+0\.\d%$", out, re.M)
    assert "nodes to blame: f2" in out
    report["model"]["hash"] = "0" * 64
    again.write_text(json.dumps(report))
    assert run("diff", plan, again)[1].startswith("A and B are plans of different models or shapes\n")


def test_tables_and_schemas_are_printed(run: Run) -> None:
    assert "greedy" in run("planners")[1]
    assert "a100-80gb" in run("devices")[1]
    assert json.loads(run("schema", "report")[1])["title"] == "Report"
    assert run("schema", "nothing")[0] == 2


def test_a_disk_that_is_full_is_told_and_leaves_nothing(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    target = tmp_path / "out"
    target.mkdir()
    code, _, err = run("plan", model, "-o", target / "plan.json")
    assert code == 2
    assert "No space left on device" in err and "Traceback" not in err
    assert list(target.iterdir()) == []


def test_our_own_fault_exits_4(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(plan_command, "solve", broken)
    code, out, err = run("plan", model, "--json")
    assert code == 4
    assert json.loads(out)["code"] == "internal"
    assert "a defect" in err


def test_a_signal_stops_the_search_and_the_best_so_far_is_written(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = plan_command.solve

    def signalled(*arguments: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.05)  # the handler runs here
        assert options["cancel"].is_set()
        return real(*arguments, **options)

    monkeypatch.setattr(plan_command, "solve", signalled)
    code, out, _ = run("plan", model, "--max-overhead", "10%", "-o", tmp_path / "p.json", "--json")
    assert code == 3
    assert json.loads(out)["plan"]["stopped"] is True
    assert json.loads((tmp_path / "p.json").read_text())["plan"]["reproducible"] is False
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_help_imports_nothing_heavy() -> None:
    code = """import sys
from app.cli.typer_app import run

run(["--help"])
print(sorted({m.partition(".")[0] for m in sys.modules}))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"numpy", "onnx", "numba", "fastapi", "pydantic", "msgspec", "uvicorn", "ortools", "torch"}
    assert not heavy & set(eval(done.stdout.splitlines()[-1]))


def test_without_a_command_the_first_steps_are_shown(run: Run) -> None:
    code, out, err = run()
    assert (code, err) == (0, "")
    shown = [line.split("  ")[1] for line in out.splitlines() if line.startswith("  remat ")]
    assert [line.split()[1] for line in shown] == ["try", "plan", "info", "serve"]


def test_version_and_help_are_found_under_every_usual_name(run: Run) -> None:
    assert run("--version") == (0, f"remat {remat.__version__}\n", "")
    for short, long in ((["-h"], ["--help"]), (["help"], ["--help"]), (["help", "plan"], ["plan", "--help"])):
        shown = run(*short)
        assert shown[0] == 0
        assert shown == run(*long)
    assert run("plan", "-h") == run("plan", "--help")


def test_help_has_every_command_under_a_heading_in_one_short_line() -> None:
    group = typer.main.get_command(typer_app.app)
    for name, command in group.commands.items():
        assert command.rich_help_panel, name
        assert len((command.help or "").split("\n\n")[0]) < 75, name


def test_help_shows_no_type_beside_flags_without_a_value(run: Run) -> None:
    group = typer.main.get_command(typer_app.app)
    for words in ([], ["keys"], ["keys", "create"], *([name] for name in group.commands)):
        code, out, _ = run(*words, "--help")
        assert code == 0 and "--help" in out and not {"<bool>", "<str>"} & set(out.split()), words


def test_help_of_plan_has_every_option_under_a_heading_and_examples_that_are_read() -> None:
    command = typer.main.get_command(typer_app.app).commands["plan"]
    headings = dict.fromkeys(one.rich_help_panel for one in command.params if one.param_type_name == "option")
    assert list(headings) == ["Budget", "Model", "Search", "Device", "Report", "Output"]
    lines = [line for line in command.epilog.split("\n\n") if line.startswith("remat plan ")]
    assert len(lines) == 3
    for line in lines:
        command.make_context("plan", re.split(r"\s{2,}", line)[0].split()[2:])


def test_files_that_are_not_there_are_named_with_what_is_near(run: Run, model: Path, tmp_path: Path) -> None:
    for name, words in (
        (model.with_name(model.name + "x"), f"did you mean {model.name}?"),
        (tmp_path, "a folder; name one file of it"),
        (tmp_path / "nowhere" / "net.onnx", "is not there either"),
        ("https://example.com/net.onnx", "download the file first"),
    ):
        code, _, err = run("info", name)
        assert code == 2
        assert words in err
        assert "Errno" not in err


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_who_has_seen_enough_is_no_fault(unbuffered: str) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "remat", "schema", "report"],
        stdout=write,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_the_exit_code_is_that_of_the_answer_without_a_reader(run: Run, model: Path, unbuffered: str) -> None:
    plan = saved(run, model, "--budget", "80%", "--iterations", 5)
    report = json.loads(plan.read_text())
    report["plan"]["peak_bytes"] += 1
    plan.write_text(json.dumps(report))
    read, write = os.pipe()
    os.close(read)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    for command, code in ((["verify", plan], 1), (["plan", model, "--budget", "1", "--iterations", "5"], 1)):
        words = [sys.executable, "-m", "remat", *command]
        assert subprocess.run(words, stdout=write, env=environment, check=False).returncode == code
        assert subprocess.run(words, stdout=write, stderr=write, env=environment, check=False).returncode == code
    os.close(write)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("devices --json > /dev/full", 2),
        ("devices > /dev/full", 2),
        ("devices >&-", 0),
        ("info - <&-", 2),
        ("plan MODEL --budget 100% --iterations 5 2>&-", 0),
    ],
)
def test_standard_streams_that_are_full_or_closed_are_no_internal_error(model: Path, command: str, code: int) -> None:
    line = f"{sys.executable} -m remat {command.replace('MODEL', str(model))}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    assert ("cannot write standard output: No space left" in done.stderr) == ("/dev/full" in command)


def test_the_exit_code_is_that_of_the_answer_with_a_full_standard_error(model: Path) -> None:
    for command, code in ((f"plan {model} --budget 1 --iterations 5", 1), ("info no_such.json", 2), ("devices", 0)):
        done = subprocess.run(["bash", "-c", f"{sys.executable} -m remat {command} 2> /dev/full"], check=False)
        assert done.returncode == code, command


def test_files_are_written_although_the_reader_of_the_answer_is_gone(model: Path, tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command = ["plan", model, "--budget", "80%", "--iterations", "5"]
    done = subprocess.run(
        [sys.executable, "-m", "remat", *command, "-o", tmp_path / "plan.json"],
        stdout=write,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(write)
    assert (tmp_path / "plan.json").stat().st_size and b"Traceback" not in done.stderr


def test_a_first_try_leaves_a_plan_that_verifies_and_says_what_is_next(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zoo_command, "TRY_SECONDS", 2.0)
    code, out, _ = run("try", "light_squeezenet", "--budget", "60%", "-o", tmp_path / "first")
    assert code == 0 and out.startswith("fits ")
    files = {path.name for path in (tmp_path / "first").iterdir()}
    assert files == {"light_squeezenet.onnx", "manifest.json", "plan.json", "rewritten.onnx", "memory.svg"}
    assert f"remat plan {tmp_path}/first/light_squeezenet.onnx --batch 16 --budget 60%" in out
    assert run("verify", tmp_path / "first" / "plan.json")[0] == 0


def test_a_first_try_of_a_network_nobody_knows_lists_those_of_the_zoo(run: Run, tmp_path: Path) -> None:
    code, _, err = run("try", "lenet", "-o", tmp_path / "first")
    assert code == 2 and "known networks: light_bvlc_alexnet" in err and not (tmp_path / "first").exists()
