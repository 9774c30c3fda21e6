"""A graph that differs from a stored one in names only gets the report of a solve of its own, without a search."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from starlette.testclient import TestClient

from app.api.service.service import Service
from app.errors import SolveFailed
from app.jobs.answers.form import SEARCH, UNSHARED_FIELDS, VALUE_LIST_FIELDS, NoForm, form_hash, numbered_fields
from app.solver import child_tasks
from app.solver.child_process import Runner
from app.store.records import request_key
from graph.formats.native.writer import canonical
from graph.formats.readers import load
from graph.ir import Graph
from planner.errors import IllegalPlan
from planner.formulation import goal_of_request
from planner.request.plan_request import PARSERS
from tests.app.api.routes.test_batches import begun, ended, items_of, posted
from tests.app.api.routes.test_questions import operations
from tests.app.conftest import chain, one_layer
from tests.app.renames import renamed, under
from tests.documents import documents

Json = dict[str, Any]
QUICK: Json = {"budget": "70%", "planner": "greedy", "iterations": 5}
MARKUP = "<b title='\"'>{}\\</b>\n"


def solved(graph: Graph, fields: Mapping[str, Any], known: bytes | None = None) -> Any:
    payload = {"data": canonical(graph), "fields": dict(fields), "limits": {}, "known": known}
    return child_tasks.solve(payload, lambda message: None, threading.Event())


def reused(own: Graph, other: Graph, fields: Mapping[str, Any], of_other: Mapping[str, Any]) -> Any:
    """A solve of `own` with the search result of a solve of `other`."""
    return solved(own, fields, solved(other, of_other)["sections"][SEARCH])


def timeless(made: Any) -> Any:
    """The report without what a run measures: seconds, and the error of the gradients, whose samples follow names."""
    report = msgspec.json.decode(made["report"])
    report["executed"] |= {"compared": "", "gradients": (report["executed"]["gradients"] or {}).get("status")}
    sections = {name: _without_error(section) for name, section in made["sections"].items()}
    return {name: value for name, value in report.items() if name not in ("id", "elapsed")}, sections


def _without_error(section: bytes) -> bytes:
    """The section; a search result without the error of the gradients."""
    content = msgspec.json.decode(section)
    executed = content.get("executed") if isinstance(content, dict) else None
    if not isinstance(executed, dict):
        return section
    return msgspec.json.encode({**content, "executed": {**executed, "gradients": None}})


def is_searched(made: Any) -> bool:
    return bool(msgspec.json.decode(made["report"])["elapsed"]["plan"])


def numbers(graph: Graph) -> dict[str, int]:
    return {value.name: v for v, value in enumerate(graph.values)}


@settings(max_examples=8, phases=[Phase.generate])
@given(documents(), st.sampled_from(["", MARKUP]), st.sampled_from(["free", "given"]), st.data())
def test_a_reused_search_gives_the_report_of_a_solve(
    document: Json, form: str, order: str, data: st.DataObject
) -> None:
    other = load(json.dumps(document).encode())
    assume(other.values and form_hash(other) is not None)
    number = {name: f"#{i}" for i, name in enumerate(n.name for n in (*other.values, *other.nodes))}
    name = form.format if form else number.__getitem__
    own = renamed(other, name)
    assert form_hash(own) == form_hash(other)
    kept = data.draw(st.lists(st.sampled_from([value.name for value in other.values]), max_size=2, unique=True))
    of_other = QUICK | {"order": order, "checkpoints": kept}
    fields = QUICK | {"order": order, "checkpoints": [name(one) for one in kept]}
    by_number = numbered_fields(fields, lambda: canonical(own))
    assert by_number == numbered_fields(of_other, lambda: canonical(other))
    assert by_number["checkpoints"] == [numbers(other)[one] for one in kept]
    found = reused(own, other, fields, of_other)
    assert not is_searched(found)
    assert timeless(found) == timeless(solved(own, fields))


@pytest.mark.parametrize("layout", ["none", "fast"])
def test_a_reused_search_names_the_gradients_of_a_training_step(layout: str) -> None:
    other = load(json.dumps(one_layer()).encode())
    own = renamed(other, MARKUP.format)
    common = QUICK | {"layout": layout, "execute": "yes", "return": ["plan"]}
    found = reused(own, other, common | {"loss": MARKUP.format("loss")}, common | {"loss": "loss"})
    assert timeless(found) == timeless(solved(own, common | {"loss": MARKUP.format("loss")}))
    assert timeless(found)[0]["executed"]["status"] == "equal"
    assert f"grad/{MARKUP.format('fc1')}" in {name for name, _ in timeless(found)[0]["plan"]["order"]}


def test_texts_of_a_reused_search_contain_the_names_of_the_graph() -> None:
    other = load(json.dumps(chain(3)).encode())
    own = renamed(other, "own {}".format)
    fields = QUICK | {"execute": "yes"}  # the ops have no kernels, which the report says of a node
    found = reused(own, other, fields, fields)
    assert not is_searched(found)
    assert timeless(found) == timeless(solved(own, fields))
    assert "own " in timeless(found)[0]["executed"]["why"]


def test_a_reducible_share_of_a_budget_is_not_searched_a_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    other = load(json.dumps(chain(5)).encode())
    own = renamed(other, "own {}".format)
    fields = QUICK | {"budget": "50%", "fraction_of": "reducible"}
    first, whole = solved(other, fields), solved(own, fields)

    def searches(*_: Any) -> int:
        raise AssertionError("the smallest peak is searched")

    monkeypatch.setattr(goal_of_request, "_smallest_bytes", searches)
    assert timeless(solved(own, fields, first["sections"][SEARCH])) == timeless(whole)


def test_a_search_result_of_another_problem_is_refused() -> None:
    other, own = (load(json.dumps(chain(length)).encode()) for length in (3, 4))
    with pytest.raises(IllegalPlan, match="another problem"):
        reused(own, other, QUICK, QUICK)


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


X, H1, G0 = (numbers(load(json.dumps(chain(3)).encode()))[name] for name in ("x", "h1", "g0"))


@pytest.mark.parametrize(
    "field, given, expected",
    [
        ("keep", ["h1", "x"], [H1, X]),
        ("inputs", {"x": [8, 8]}, {str(X): [8, 8]}),
        ("differentiate", {"of": ["g0"], "update": "sgd"}, {"of": [G0], "update": "sgd"}),
        ("differentiate", True, True),
        ("seed", 3, 3),
        ("keep", ["our h1"], None),  # no name of the graph
        ("keep", ["grad/x"], None),
        ("shapes", [{"batch": 2}], None),
        ("differentiate", {"of": {"g0": "h1"}}, None),
        ("advise", True, None),
        ("advise", False, False),
    ],
)
def test_names_in_a_request_become_value_numbers(field: str, given: Any, expected: Any) -> None:
    def document() -> bytes:
        return canonical(load(json.dumps(chain(3)).encode()))

    if expected is None:
        with pytest.raises(NoForm):
            numbered_fields({field: given}, document)
    else:
        assert numbered_fields({field: given}, document) == {field: expected}


NAME_FREE_FIELDS = (
    "budget max_overhead fits fraction_of counts order phases runtime recipe reserve planner search_seconds iterations "
    "seed collectives device host_memory loss_chunks fuse_attention batch dims unknown_checkpoints layout execute "
    "return"
)


def test_every_field_of_a_request_is_known_to_name_values_or_not() -> None:
    naming = VALUE_LIST_FIELDS | UNSHARED_FIELDS | {"loss", "inputs", "differentiate"}
    assert PARSERS.keys() == naming | set(NAME_FREE_FIELDS.split())


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


def test_a_request_is_submitted_when_the_child_that_reuses_a_search_dies(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(client, chain(6))
    before, in_child = operations(client), Service.run_in_child

    async def dies(service: Service, task: str, load: Callable[[], Mapping[str, Any]], *more: int) -> Any:
        if "known" in load():
            raise SolveFailed("it died", code="child_died")
        return await in_child(service, task, load, *more)

    monkeypatch.setattr(Service, "run_in_child", dies)
    ask(client, under(chain(6), "own {}".format))
    assert operations(client) == before + 1


@pytest.mark.parametrize("dies", [False, True], ids=["reused", "searched because the child dies"])
def test_an_item_of_a_batch_reuses_the_search_of_another_with_other_names(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    run, known = Runner.run, list[bool]()

    def counted(runner: Runner, task: str, payload: Mapping[str, Any], *more: Any, **named: Any) -> Any:
        if task == "solve":
            known.append(payload["known"] is not None)
            if dies and known[-1]:
                raise SolveFailed("it died", code="child_died")
        return run(runner, task, payload, *more, **named)

    monkeypatch.setattr(Runner, "run", counted)
    ids = posted(client, chain(9 + dies), under(chain(9 + dies), MARKUP.format))
    made = [ended(client, begun(client, [id], budgets=["70%"], seeds=[3]).json()["id"]) for id in ids]
    assert [batch["state"] for batch in made] == ["succeeded"] * 2
    assert known == [False, True, False][: 2 + dies]
    first, second = (client.get(items_of(client, batch["id"])[0]["plan"]).json() for batch in made)
    assert (second["elapsed"]["plan"] == 0) == (not dies)
    assert second["plan"]["order"] == [[MARKUP.format(name), run] for name, run in first["plan"]["order"]]
    assert second["plan"]["peak_bytes"] == first["plan"]["peak_bytes"]


def test_a_request_key_depends_on_the_graph() -> None:
    assert request_key("a", QUICK) != request_key("b", QUICK)
