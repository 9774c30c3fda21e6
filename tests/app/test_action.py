"""`action.yml`: its shell steps run here as a runner runs them, beside a stand-in for GitHub's REST interface."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.app.conftest import chain

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS = ACTION["runs"]["steps"]
EXPRESSION = re.compile(r"\$\{\{\s*([\w.-]+)\s*\}\}")
ARTIFACT = "https://github.example/artifacts/7"


class GitHub(ThreadingHTTPServer):
    """Comments of pull requests; `refuses` answers every write with 403, `login` makes the token a person's."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.comments: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.refuses, self.login = False, ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answers(BaseHTTPRequestHandler):
    server: GitHub

    def answer(self, code: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self.server.asked.append(f"GET {self.path}")
        if self.path == "/user":
            login = self.server.login
            self.answer(200 if login else 403, {"login": login} if login else {"message": "not accessible"})
            return
        page = int(re.findall(r"&page=(\d+)", self.path)[0])
        self.answer(200, self.server.comments[100 * (page - 1) : 100 * page])

    def write(self) -> None:
        github, place = self.server, self.path
        github.asked.append(f"{self.command} {place}")
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))["body"]
        if github.refuses or self.headers["authorization"] != "Bearer secret":
            self.answer(403, {"message": "Resource not accessible by integration"})
            return
        if self.command == "POST":
            login = github.login or "github-actions[bot]"
            author = {"type": "User" if github.login else "Bot", "login": login}
            github.comments.append({"id": 1000 + len(github.comments), "user": author})
            comment = github.comments[-1]
        else:
            comment = next(row for row in github.comments if row["id"] == int(place.rpartition("/")[2]))
        comment |= {"body": body, "html_url": f"https://github.example/pull/5#{comment['id']}"}
        self.answer(201, comment)

    do_POST = do_PATCH = write

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def github() -> Iterator[GitHub]:
    with GitHub() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


#: Stands in for `remat` where the scripts alone are tested: says its arguments, writes what a check writes.
STUB = """#!/bin/bash
printf '%s\\n' "$*" >>"$RUNNER_TEMP/calls"
if [ "$1" = plan ]; then echo '{}' >"${*: -3:1}"; exit "${PLAN_CODE:-0}"; fi
echo "checked
::error::a name in the model"
[ "${CHECK_CODE:-0}" -le 1 ] || { echo 'Not a supported model file ```' >&2; exit "$CHECK_CODE"; }
while [ "$1" != --markdown ]; do shift; done
echo "**remat check** said $2 ${WORD:-first}" >"$2"
exit "${CHECK_CODE:-0}"
"""


@dataclass
class Job:
    """A job of a workflow: its folders, its environment, and what its steps wrote."""

    folder: Path
    environment: dict[str, str]
    uploads: list[dict[str, str]] = field(default_factory=list)
    log: str = ""
    code: int = 0

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    @property
    def summary(self) -> str:
        return (self.folder / "summary").read_text()

    @property
    def calls(self) -> list[str]:
        path = self.folder / "temp" / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def run(self, **inputs: str) -> dict[str, str]:
        """Run the action's steps with these inputs; its outputs."""
        given = {name: row.get("default", "") for name, row in ACTION["inputs"].items()}
        given |= {name.replace("_", "-"): value for name, value in inputs.items()}
        known = {f"inputs.{name}": value for name, value in given.items()} | {"github.token": "secret"}

        def text(value: object) -> str:
            filled = str(value)
            while EXPRESSION.search(filled):  # the default of an input may be an expression
                filled = EXPRESSION.sub(lambda found: known.get(found[1], ""), filled)
            return filled

        self.log, self.code = "", 0
        (self.folder / "summary").write_text("")
        for step in STEPS:
            if "uses" in step:
                self.uploads.append({name: text(value) for name, value in step["with"].items()})
                known[f"steps.{step['id']}.outputs.artifact-url"] = ARTIFACT
                continue
            outputs = self.folder / "outputs"
            outputs.write_text("")
            environment = self.environment | {name: text(value) for name, value in step.get("env", {}).items()}
            command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
            done = subprocess.run(
                command,
                cwd=self.workspace,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=300,
            )
            self.log += done.stdout
            for line in outputs.read_text().splitlines():
                name, _, value = line.partition("=")
                known[f"steps.{step.get('id')}.outputs.{name}"] = value
            if done.returncode:
                self.code = done.returncode
                break
        return {name: text(row["value"]) for name, row in ACTION["outputs"].items()}


@pytest.fixture
def job(tmp_path: Path, github: GitHub) -> Job:
    """A job of pull request 5, with `model.json` and `plan.json`, where a stub is installed in place of `remat`."""
    for name in ("workspace", "temp/remat/bin"):
        (tmp_path / name).mkdir(parents=True)
    install(tmp_path / "temp/remat/bin/remat", STUB)
    (tmp_path / "temp/remat/bin/python").symlink_to(sys.executable)
    (tmp_path / "event.json").write_text(json.dumps({"pull_request": {"number": 5}}))
    (tmp_path / "workspace/model.json").write_text("{}")
    (tmp_path / "workspace/plan.json").write_text("{}")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "RUNNER_TEMP": str(tmp_path / "temp"),
        "GITHUB_ACTION_PATH": str(ROOT),
        "GITHUB_API_URL": github.url,
        "GITHUB_BASE_REF": "main",
        "GITHUB_EVENT_PATH": str(tmp_path / "event.json"),
        "GITHUB_OUTPUT": str(tmp_path / "outputs"),
        "GITHUB_REPOSITORY": "team/models",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
    }
    return Job(tmp_path, environment)


def install(path: Path, script: str) -> None:
    path.write_text(script)
    path.chmod(0o755)


def git(folder: Path, *arguments: str) -> None:
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *author, *arguments], cwd=folder, check=True, capture_output=True)


def on_a_branch(job: Job) -> None:
    """The workspace becomes a clone, one commit deep, of a repository whose branch `main` has its files."""
    origin = job.folder / "origin"
    shutil.move(job.workspace, origin)
    git(origin, "init", "-q", "-b", "main")
    git(origin, "add", ".")
    git(origin, "commit", "-q", "-m", "models")
    git(origin, "checkout", "-q", "-b", "change")
    git(job.folder, "clone", "-q", "--depth", "1", "--branch", "change", f"file://{origin}", "workspace")


def test_no_expression_stands_in_a_script_and_every_step_has_its_shell() -> None:
    for step in STEPS:
        assert "${{" not in step.get("run", "")
        assert ("uses" in step) != (step.get("shell") == "bash" and "run" in step)
    scripts = [path for path in (ROOT / "deploy/github").iterdir() if path.is_file()]
    assert len(scripts) == 3 and not [path for path in scripts if "${{" in path.read_text()]


def test_every_input_and_output_is_described_and_every_input_used() -> None:
    used = set(re.findall(r"inputs\.([\w-]+)", json.dumps(STEPS)))
    assert used == set(ACTION["inputs"])
    assert all(row["description"].endswith(".") for row in (*ACTION["inputs"].values(), *ACTION["outputs"].values()))
    assert ACTION["inputs"]["model"]["required"] is True
    written = set(re.findall(r"steps\.check\.outputs\.([\w-]+)", json.dumps(ACTION)))
    assert written == set(re.findall(r'echo "([\w-]+)=', (ROOT / "deploy/github/check").read_text()))


def test_the_first_run_comments_and_the_second_updates_the_comment(job: Job, github: GitHub) -> None:
    outputs = job.run(model="model.json", baseline="plan.json")
    assert (job.code, outputs["verdict"], outputs["exit-code"]) == (0, "passed", "0")
    (comment,) = github.comments
    marker, first, *_ = comment["body"].splitlines()
    assert re.fullmatch(r"<!-- remat-check-model\.json-\d+ -->", marker)
    assert first.startswith("**remat check** said ") and first.endswith("/comment.md first")
    assert f"]({ARTIFACT})" in comment["body"] and outputs["comment-url"] == comment["html_url"]
    assert job.summary == comment["body"].partition("\n")[2]
    job.environment |= {"CHECK_CODE": "1", "WORD": "second"}
    outputs = job.run(model="model.json", baseline="plan.json")
    assert (job.code, outputs["verdict"], outputs["exit-code"]) == (1, "failed", "1")
    assert len(github.comments) == 1 and " second\n" in github.comments[0]["body"]
    assert [line.partition(" ")[0] for line in github.asked if "GET" not in line] == ["POST", "PATCH"]


def test_checks_of_two_models_have_a_comment_and_an_artifact_each(job: Job, github: GitHub) -> None:
    (job.workspace / "b c.json").write_text("{}")
    for model, budget in (("model.json", ""), ("model.json", "50%"), ("b c.json", ""), ("model.json", "")):
        job.run(model=model, baseline="plan.json", budget=budget)
    assert len(github.comments) == 3
    assert len({upload["name"] for upload in job.uploads}) == 3
    assert all(re.fullmatch(r"remat-check-[\w.-]+", upload["name"]) for upload in job.uploads)


def test_a_comment_is_found_among_hundreds_and_never_one_of_another_author(job: Job, github: GitHub) -> None:
    job.run(model="model.json", baseline="plan.json")
    (own,) = github.comments
    forged = {**own, "id": 1, "user": {"type": "User", "login": "stranger"}}
    github.comments[:0] = [forged, *({"id": n, "user": None, "body": None} for n in range(2, 251))]
    job.run(model="model.json", baseline="plan.json")
    assert github.asked[-1].endswith(f"/comments/{own['id']}") and len(github.comments) == 251


def test_a_token_of_a_person_updates_the_comments_of_that_person(job: Job, github: GitHub) -> None:
    github.login = "ann"
    for _ in range(2):
        job.run(model="model.json", baseline="plan.json")
    assert len(github.comments) == 1


def test_without_a_token_or_a_pull_request_the_summary_has_the_result(job: Job, github: GitHub) -> None:
    outputs = job.run(model="model.json", baseline="plan.json", token="")
    assert job.code == 0 and "no comment: the input token is empty" in job.log and "**remat check**" in job.summary
    assert outputs["comment-url"] == ""
    Path(job.environment["GITHUB_EVENT_PATH"]).write_text('{"ref": "refs/heads/main"}')
    job.run(model="model.json", baseline="plan.json")
    assert job.code == 0 and "not started by a pull request" in job.log and "**remat check**" in job.summary
    assert github.asked == []


@pytest.mark.parametrize("code", [0, 1])
def test_a_refused_comment_is_a_warning_and_the_verdict_remains(job: Job, github: GitHub, code: int) -> None:
    github.refuses = True
    job.environment["CHECK_CODE"] = str(code)
    job.run(model="model.json", baseline="plan.json")
    assert job.code == code and "**remat check**" in job.summary
    (warning,) = re.findall("^::warning.*$", job.log, re.MULTILINE)
    assert "HTTP 403: Resource not accessible by integration" in warning and "pull-requests: write" in warning
    job.environment["GITHUB_API_URL"] = "http://127.0.0.1:1"  # where nothing listens
    job.run(model="model.json", baseline="plan.json")
    assert job.code == code and "::warning" in job.log


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"model": "nowhere.onnx"}, "nowhere.onnx: no such file; name the model file of this commit"),
        ({"model": "model.json", "baseline": "old.json"}, "old.json: no such file; write it with `remat plan"),
        ({"model": "model.json", "base-model": "old.onnx"}, "old.onnx: no such file; name the earlier model"),
    ],
)
def test_a_missing_file_is_an_error_that_the_comment_names(
    job: Job, github: GitHub, inputs: dict[str, str], message: str
) -> None:
    outputs = job.run(**inputs)
    assert (job.code, outputs["verdict"], job.calls) == (2, "error", [])
    assert message in job.log and message in job.summary and message in github.comments[0]["body"]


def test_a_model_that_cannot_be_read_is_an_error_whose_message_opens_no_markdown(job: Job, github: GitHub) -> None:
    job.environment["CHECK_CODE"] = "2"
    outputs = job.run(model="model.json", baseline="plan.json")
    assert (job.code, outputs["verdict"]) == (2, "error")
    assert "\n````text\nmodel.json\nNot a supported model file ```\n````\n" in github.comments[0]["body"]


def test_names_in_a_model_are_no_commands_to_the_runner(job: Job, github: GitHub) -> None:
    job.run(model="model.json", baseline="plan.json")
    pause, inside, after = re.split(r"^::(?:stop-commands::)?([0-9a-f]{32})(?:::)?$", job.log, flags=re.MULTILINE)[1:4]
    assert "::error::a name in the model" in inside and after == pause


def test_inputs_are_arguments_and_no_shell(job: Job, github: GitHub) -> None:
    name = "$(touch owned); `touch owned` .json"
    (job.workspace / name).write_text("{}")
    (job.workspace / "-o").write_text("{}")
    job.run(model=name, base_model="-o", budget="50%; touch owned", request="a b", max_drift="$HOME", fits="x y")
    plan, check = job.calls
    assert plan.startswith("plan --execute no --budget 50%; touch owned --request a b -o ") and plan.endswith(" -- -o")
    assert check.startswith("check --max-drift $HOME ") and check.endswith(f" -- {plan.split()[-3]} {name}")
    assert "--fits x y --before -o" in check
    assert not list(job.folder.rglob("owned"))


def test_the_base_branchs_model_is_planned_and_checked_against(job: Job, github: GitHub) -> None:
    (job.workspace / "model.json").write_text("old")
    on_a_branch(job)
    (job.workspace / "model.json").write_text("new")
    outputs = job.run(model="model.json", budget="50%", fits="a100-80gb")
    plan, check = job.calls
    base = Path(outputs["folder"]) / "base-model.json"
    assert base.read_text() == "old" and plan.endswith(f"-- {base}") and f"--before {base}" in check
    assert (job.code, outputs["verdict"]) == (0, "passed")
    job.environment["PLAN_CODE"] = "1"  # over the budget: the check says so
    assert job.run(model="model.json", budget="50%")["verdict"] == "passed"
    job.environment["PLAN_CODE"] = "2"
    assert job.run(model="model.json", budget="50%")["verdict"] == "error" and job.code == 2


def test_a_model_that_the_base_branch_lacks_passes_and_says_so(job: Job, github: GitHub) -> None:
    on_a_branch(job)
    (job.workspace / "added.json").write_text("{}")
    outputs = job.run(model="added.json")
    assert (job.code, outputs["verdict"], job.calls) == (0, "no-baseline", [])
    assert "added.json is not in the base branch main: nothing to compare with" in job.summary


def test_without_a_base_branch_a_pointer_or_an_absolute_path_a_baseline_is_asked_for(job: Job, github: GitHub) -> None:
    (job.workspace / "large.onnx").write_text("version https://git-lfs.github.com/spec/v1\n")
    on_a_branch(job)
    assert job.run(model="large.onnx")["verdict"] == "error" and "kept in Git LFS" in job.summary
    job.run(model=str(job.workspace / "model.json"))
    assert job.code == 2 and "an absolute path names no file of the base branch" in job.summary
    job.environment["GITHUB_BASE_REF"] = "gone"
    job.run(model="model.json")
    assert job.code == 2 and "the base branch gone cannot be fetched" in job.summary
    job.environment["GITHUB_BASE_REF"] = ""
    job.run(model="model.json")
    assert job.code == 2 and "outside a pull request there is no base branch" in job.summary


def test_a_comment_that_is_too_long_is_replaced(job: Job, github: GitHub) -> None:
    job.environment["WORD"] = "x" * 70_000
    job.run(model="model.json", baseline="plan.json")
    assert "too long for a comment" in github.comments[0]["body"] and len(github.comments[0]["body"]) < 1000


def test_the_version_of_the_action_is_installed_once_in_an_environment_of_its_own(job: Job, github: GitHub) -> None:
    shutil.rmtree(job.folder / "temp/remat")
    bin_python = f"""#!/bin/bash
[ "$3" = pip ] || exec {sys.executable} "$@"
echo "$*" >>"$RUNNER_TEMP/pip"
"""
    python = f"""#!/bin/bash
case "$2" in
-c) exec {sys.executable} "$@" ;;
-m) mkdir -p "$4/bin"; cp "$RUNNER_TEMP/stub" "$4/bin/remat"; cp "$RUNNER_TEMP/bin-python" "$4/bin/python" ;;
esac
"""
    install(job.folder / "temp/bin-python", bin_python)
    install(job.folder / "temp/stub", STUB)
    install(job.folder / "python", python)
    for _ in range(2):
        job.run(model="model.json", baseline="plan.json", python=str(job.folder / "python"))
        assert job.code == 0, job.log
    (call,) = (job.folder / "temp/pip").read_text().splitlines()
    assert call.startswith("-I -m pip install ") and call.endswith(f"-c {ROOT}/constraints.txt {ROOT}")


def test_a_python_that_is_too_old_is_named(job: Job, github: GitHub) -> None:
    shutil.rmtree(job.folder / "temp/remat")
    install(job.folder / "python", "#!/bin/bash\nexit 1\n")
    job.run(model="model.json", baseline="plan.json", python=str(job.folder / "python"))
    assert job.code == 2 and "is not Python 3.11 or newer" in job.log


def test_a_change_that_grows_is_blamed_in_the_comment_and_its_repair_updates_it(job: Job, github: GitHub) -> None:
    """With `remat` itself."""
    install(
        job.folder / "temp/remat/bin/remat",
        f'#!/bin/bash\nPYTHONPATH={ROOT} OMP_NUM_THREADS=1 exec {sys.executable} -m remat "$@"\n',
    )
    model = job.workspace / "model.json"
    model.write_text(json.dumps(chain(6)))
    on_a_branch(job)
    larger = chain(6)
    larger["values"][3]["shape"] = [128, 64]
    request = job.workspace / "request.json"
    request.write_text('{"iterations": 20, "planner": "greedy"}')
    model.write_text(json.dumps(larger))
    outputs = job.run(model="model.json", budget="70%", request="request.json", fits="8MiB")
    assert (job.code, outputs["verdict"]) == (1, "failed"), job.log
    body = github.comments[0]["body"]
    assert body.splitlines()[1].startswith("**remat check failed** · `model.json` · over budget: the plan peaks at ")
    assert "| `own::Block` | `f2` | `h2` | `float32[64,64] → float32[128,64]` | 16.00 KiB | 32.00 KiB | grew |" in body
    assert "Largest batch that fits 8MiB with this plan: unknown" in body
    assert (Path(outputs["folder"]) / "memory.svg").read_text().startswith("<svg ")
    model.write_text(json.dumps(chain(6)))
    job.run(model="model.json", budget="70%", request="request.json", fits="8MiB")
    assert job.code == 0 and len(github.comments) == 1
    assert github.comments[0]["body"].splitlines()[1].startswith("**remat check passed** · `model.json` · holds: ")
