"""The same graph under other names is answered from the store, as if it had been solved under its own."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from app.api.service.service import Service
from app.errors import SolveFailed
from app.jobs.answers.relabel import form_hash, relabel_fields
from app.solver import child_tasks
from app.solver.child_process import NO_PLAN_STAGES, Runner
from app.store.records import request_key
from graph.formats.native.writer import canonical
from graph.formats.readers import load
from graph.ir import Graph
from tests.app.api.routes.test_batches import begun, ended, items_of, posted
from tests.app.api.routes.test_questions import operations
from tests.app.conftest import chain, one_layer
from tests.app.renames import renamed, under
from tests.documents import documents

Json = dict[str, Any]
QUICK: Json = {"budget": "70%", "planner": "greedy", "iterations": 5}
MARKUP = "<b title='\"'>{}\\</b>\n"


def solved(graph: Graph, fields: Mapping[str, Any]) -> Any:
    return child_tasks.solve(about(graph, fields), lambda told: None, threading.Event())


def about(graph: Graph, fields: Mapping[str, Any]) -> Json:
    return {"data": canonical(graph), "fields": dict(fields), "limits": {}}


def told(
    ours: Graph,
    theirs: Graph,
    fields: Mapping[str, Any],
    others: Mapping[str, Any],
    tell: child_tasks.SendMessage = lambda _: None,
) -> Any:
    """What is told about ours from a solve of theirs."""
    found = solved(theirs, others)
    answered = {"theirs": about(theirs, others), "figures": found["report"], "sections": found["sections"]}
    return child_tasks.relabel(about(ours, fields) | answered, tell, threading.Event())


def timeless(made: Any) -> Any:
    report = msgspec.json.decode(made["report"])
    return {name: said for name, said in report.items() if name not in ("id", "elapsed")}, made["sections"]


@settings(max_examples=8, phases=[Phase.generate])
@given(documents(), st.sampled_from(["", MARKUP]), st.sampled_from(["free", "given"]), st.data())
def test_what_is_told_is_what_solving_it_says(document: Json, form: str, order: str, data: st.DataObject) -> None:
    theirs = load(json.dumps(document).encode())
    assume(theirs.values and form_hash(theirs) is not None)
    number = {name: f"#{i}" for i, name in enumerate(n.name for n in (*theirs.values, *theirs.nodes))}
    name = form.format if form else number.__getitem__
    ours = renamed(theirs, name)
    assert form_hash(ours) == form_hash(theirs)
    kept = data.draw(st.lists(st.sampled_from([value.name for value in theirs.values]), max_size=2, unique=True))
    others = QUICK | {"order": order, "checkpoints": kept}
    fields = QUICK | {"order": order, "checkpoints": [name(one) for one in kept]}
    assert relabel_fields(fields, lambda: canonical(ours), lambda: canonical(theirs)) == others
    found, own = told(ours, theirs, fields, others), solved(ours, fields)
    if found is None:  # it says something in words, which may be names
        assert timeless(own)[0]["warnings"]
    else:
        assert timeless(found) == timeless(own)


@pytest.mark.parametrize("layout", ["none", "fast"])
def test_a_training_step_is_told_with_the_names_of_its_gradients(layout: str) -> None:
    theirs = load(json.dumps(one_layer()).encode())
    ours = renamed(theirs, MARKUP.format)
    said = QUICK | {"layout": layout, "execute": "yes", "return": ["plan"]}
    found = told(ours, theirs, said | {"loss": MARKUP.format("loss")}, said | {"loss": "loss"})
    own = solved(ours, said | {"loss": MARKUP.format("loss")})
    assert timeless(found) == timeless(own)
    assert timeless(found)[0]["executed"]["status"] == "equal"
    assert f"grad/{MARKUP.format('fc1')}" in {name for name, _ in timeless(found)[0]["plan"]["order"]}


def test_what_is_said_in_words_about_a_name_is_not_told() -> None:
    theirs = load(json.dumps(chain(3)).encode())
    ours = renamed(theirs, "own {}".format)
    executed = QUICK | {"execute": "yes"}  # its ops have no kernels, which says a node
    assert told(ours, theirs, executed, executed) is None
    assert told(ours, theirs, QUICK, QUICK) is not None


def test_names_that_mean_something_keep_graphs_apart() -> None:
    plain = load(json.dumps(chain(3)).encode())
    rows = chain(3)["values"]
    other_order = load(json.dumps(chain(3) | {"values": [rows[0], rows[2], rows[1], *rows[3:]]}).encode())
    assert form_hash(plain) != form_hash(load(json.dumps(chain(4)).encode()))
    assert form_hash(plain) != form_hash(other_order)
    assert form_hash(plain) != form_hash(replace(plain, name="another model"))
    noted = replace(plain, annotations={"checkpoints": ["h1"]})
    assert form_hash(noted) is None
    assert form_hash(renamed(noted, "own {}".format)) not in (None, form_hash(plain))


@pytest.mark.parametrize(
    "field, given, there",
    [
        ("keep", ["our h1", "our x"], ["h1", "x"]),
        ("inputs", {"our x": [8, 8]}, {"x": [8, 8]}),
        ("differentiate", {"of": ["our g0"], "update": "sgd"}, {"of": ["g0"], "update": "sgd"}),
        ("differentiate", True, True),
        ("loss", "our h1", "h1"),
        ("seed", 3, 3),
        ("return", ["plan"], ["plan"]),
        ("keep", ["h1"], None),  # no name of ours
        ("keep", ["our grad/x"], None),
        ("shapes", [{"batch": 2}], None),
        ("differentiate", {"of": {"our g0": "our h1"}}, None),
        ("advise", True, None),
        ("gradient_events", True, None),
        ("advise", False, False),
    ],
)
def test_a_field_is_said_in_their_names_or_the_question_is_another(field: str, given: Any, there: Any) -> None:
    theirs = load(json.dumps(chain(3)).encode())
    documents = canonical(renamed(theirs, "our {}".format)), canonical(theirs)
    expected = None if there is None else {field: there}
    assert relabel_fields({field: given}, *(lambda document=document: document for document in documents)) == expected


# ── over HTTP ──


def ask(client: TestClient, graph: Json, **fields: Any) -> Json:
    asked, until = QUICK | {"graph": graph, "seed": 77, **fields}, time.monotonic() + 300
    while (answer := client.post("/v1/plans", json=asked)).status_code == 202:
        assert time.monotonic() < until
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def test_the_same_graph_under_other_names_starts_no_operation(client: TestClient) -> None:
    first = ask(client, chain(5), keep=["h1"])
    before = operations(client)
    own = under(chain(5), MARKUP.format)
    second = ask(client, own, keep=[MARKUP.format("h1")])
    assert operations(client) == before
    assert second["id"] != first["id"] and second["elapsed"]["plan"] == 0
    assert second["plan"]["order"] == [[MARKUP.format(name), run] for name, run in first["plan"]["order"]]
    rewritten = client.get(f"/v1/plans/{second['id']}/graph").json()
    assert {value["name"] for value in rewritten["values"]} >= {value["name"] for value in own["values"]}
    assert ask(client, own, keep=[MARKUP.format("h1")])["id"] == second["id"]
    another = QUICK | {"graph": own, "seed": 77, "keep": [MARKUP.format("h2")]}
    assert client.post("/v1/plans", json=another, headers={"prefer": "wait=0"}).status_code in (201, 202)
    assert operations(client) == before + 1


def test_what_cannot_be_told_is_solved(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(client, chain(6))
    before, in_child = operations(client), Service.run_in_child

    async def dies(service: Service, task: str, payload: Mapping[str, Any]) -> Any:
        if task == "retell":
            raise SolveFailed("it died", code="child_died")
        return await in_child(service, task, payload)

    monkeypatch.setattr(Service, "run_in_child", dies)
    ask(client, under(chain(6), "own {}".format))
    assert operations(client) == before + 1


def test_a_child_that_tells_again_has_no_plan_yet_for_whoever_stops_it() -> None:
    theirs, messages = load(json.dumps(chain(3)).encode()), list[Mapping[str, Any]]()
    assert told(renamed(theirs, "own {}".format), theirs, QUICK, QUICK, messages.append) is not None
    (message,) = messages
    assert message["progress"]["stage"] in NO_PLAN_STAGES
    assert message["progress"]["incumbent_peak_bytes"] is None


@pytest.mark.parametrize("dies", [False, True], ids=["told", "cannot be told"])
def test_an_item_is_told_from_another_with_other_names(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    run, tasks = Runner.run, list[str]()

    def counted(runner: Runner, task: str, *more: Any, **named: Any) -> Any:
        tasks.append(task)
        if dies and task == "retell":
            raise SolveFailed("it died", code="child_died")
        return run(runner, task, *more, **named)

    monkeypatch.setattr(Runner, "run", counted)
    length = 9 + dies
    twins = [chain(length), under(chain(length), MARKUP.format)]
    ids = posted(client, *twins)
    made = [ended(client, begun(client, [id], budgets=["70%"], seeds=[3]).json()["id"]) for id in ids]
    assert [batch["state"] for batch in made] == ["succeeded"] * 2
    assert tasks.count("retell") == 1 and tasks.count("solve") == 1 + dies
    first, second = (client.get(items_of(client, batch["id"])[0]["plan"]).json() for batch in made)
    assert second["plan"]["order"] == [[MARKUP.format(name), run] for name, run in first["plan"]["order"]]
    assert second["plan"]["peak_bytes"] == first["plan"]["peak_bytes"]


def test_a_key_of_a_question_is_of_the_names_it_came_with() -> None:
    assert request_key("a", QUICK) != request_key("b", QUICK)
