"""Generators of clients make working ones from the OpenAPI document."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from app.api.main import create_app
from app.settings import Settings
from tests.app.conftest import one_layer

pytestmark = pytest.mark.heavy

#: An environment of their own, which .ci/run makes: openapi-python-client needs an older typer than remat.
GENERATORS = Path(__file__).parents[3] / ".venv-generators" / "bin"

CONFIGURATION = {
    "content_type_overrides": {
        "application/msgpack": "application/octet-stream",
        "application/x-msgpack": "application/octet-stream",
        "application/onnx": "application/octet-stream",
        "application/x-onnx": "application/octet-stream",
        "application/vnd.caffe2.net": "application/octet-stream",
        "application/vnd.caffe2.net+text": "application/octet-stream",
        "application/vnd.paddle.program": "application/octet-stream",
        "application/vnd.stablehlo": "application/octet-stream",
        "application/vnd.apache.parquet": "application/octet-stream",
        "application/openmetrics-text": "text/plain",
    }
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, Any]]]:
    """Address and OpenAPI document of a service that listens."""
    app = create_app(Settings(data=tmp_path_factory.mktemp("data"), workers=1, drain_seconds=0, gc_hours=0))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, ws="none", log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}", app.openapi()
    server.should_exit = True
    thread.join(30)


def run(program: str, *arguments: str | Path) -> str:
    """Output of a program of the environment, which succeeded."""
    command = GENERATORS / program
    assert command.exists(), (
        f"python -m venv {GENERATORS.parent}; {GENERATORS}/pip install -r tests/app/client/generators.txt"
    )
    paths = f"{GENERATORS}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [command, *map(str, arguments)], capture_output=True, text=True, timeout=300, env={**os.environ, "PATH": paths}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


TOUR = """
import sys, json
sys.path.insert(0, sys.argv[1])
from remat_generated import models
from remat_generated.api.graphs import get_graph, post_graph, remove_graph
from remat_generated.api.plans import get_plan, list_plans, post_plan
from remat_generated.client import Client

client = Client(base_url=sys.argv[2])
graph = post_graph.sync(client=client, body=models.Document.from_dict(json.loads(sys.argv[3])))
question = {"graph_id": graph.id, "loss": "loss", "budget": "100%", "planner": "greedy"}
made = post_plan.sync(client=client, body=models.Question.from_dict(question), prefer="wait=60")
report = get_plan.sync(made.id, client=client)
assert report.plan.peak_bytes == made.plan.peak_bytes
assert [plan.id for plan in list_plans.sync(client=client).plans] == [made.id]
remove_graph.sync_detailed(graph.id, client=client)
assert get_graph.sync(graph.id, client=client).code == "not_found"
"""
MODELS = """
import sys, json
sys.path.insert(0, sys.argv[1])
import remat_models as models

document = json.loads(sys.argv[2])
question = models.Question.model_validate({"graph": document, "budget": "50%"})
assert question.graph.nodes[0].op == "MatMul"
try:
    models.Question.model_validate({"graph": document, "bugdet": "50%"})
except ValueError:
    sys.exit()
sys.exit("an unknown field was accepted")
"""


def test_openapi_python_client_makes_a_client_that_posts_plans_reads_and_deletes(
    service: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    url, document = service
    described, configuration = tmp_path / "openapi.json", tmp_path / "configuration.json"
    described.write_text(json.dumps(document))
    configuration.write_text(json.dumps(CONFIGURATION))
    made = ("--output-path", tmp_path / "remat_generated", "--meta", "none")
    said = run("openapi-python-client", "generate", "--path", described, "--config", configuration, *made)
    assert "WARNING" not in said, said
    run("python", "-c", TOUR, tmp_path, url, json.dumps(one_layer()))


def test_datamodel_codegen_makes_models_of_requests(service: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    described = tmp_path / "openapi.json"
    described.write_text(json.dumps(service[1]))
    made = ("--output-model-type", "pydantic_v2.BaseModel", "--output", tmp_path / "remat_models.py")
    run("datamodel-codegen", "--input", described, "--input-file-type", "openapi", *made)
    run("python", "-c", MODELS, tmp_path, json.dumps(one_layer()))
