"""Whatever two tenants ask for, in whatever order, the service answers what a model of it says.

The model is dictionaries: who owns which graph, which question has which operation, what was answered. Children are
threads here, and a question with a seed of `ENDLESS` or more is solved once it is asked to stop: neither costs time.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx2
import msgspec
import pytest
from hypothesis import settings, stateful
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from starlette.testclient import TestClient

from app.api.auth.api_keys import DEFAULT_SCOPES, Quotas, new_key
from app.api.auth.tenant_view import AccessControl
from app.api.main import create_app
from app.api.service.response_cache import ResponseCache
from app.api.service.service import NO_SHAPES
from app.errors import ProblemDetails, to_problem
from app.jobs.interface import FINISHED
from app.settings import Settings
from app.solver import child_tasks
from app.solver.child_process import ChildResult
from app.store.maintenance.garbage_collection import collect
from app.store.maintenance.integrity_check import check_integrity
from tests.app.conftest import chain

Json = dict[str, Any]
TENANTS = ("a", "b")
ENDLESS = 1000
PATIENCE_S = 120.0  # for what the service does by itself
UNKNOWN = {"graphs": "0" * 64, "plans": "0" * 64, "operations": "op" + "0" * 26}
RANKS = {"queued": 0, "running": 1, "succeeded": 2, "failed": 2, "cancelled": 2}
PARTS = ("", "?return=layout", "?return=plan", "/graph", "/source", "/layout", "/timeline")
FORMS = ("", "application/vnd.remat.columns+json", "application/msgpack", "text/plain")
SUMMED = ("baseline_peak_bytes", "peak_bytes", "saved_bytes")
SECTIONS = ((), ("timeline",), ("plan", "layout"), ("graph", "source"))
BAD: tuple[tuple[int, str, Any], ...] = (
    (422, "undefined_value", {"graph": chain(2) | {"values": []}, "budget": "50%"}),
    (422, "unknown_field", {"graph": chain(2), "budgte": "50%"}),
    (422, "one_graph", {"budget": "50%"}),
    (400, "not_parseable", None),
)


class Inside:
    """In the place of the runner: what a child does, done by the thread that would wait for it."""

    def run(
        self,
        task: str,
        payload: Mapping[str, Any],
        seconds: float,
        on_progress: Callable[[Mapping[str, Any]], None] = lambda told: None,
        stop: threading.Event | None = None,
    ) -> ChildResult:
        stop = stop or threading.Event()
        if task == "solve" and payload["fields"].get("seed", 0) >= ENDLESS:
            stop.wait()
        sent = msgspec.msgpack.decode(msgspec.msgpack.encode(payload))
        try:
            made = child_tasks.TASKS[task](sent, lambda message: on_progress(message["progress"]), stop)
        except Exception as error:
            raise ProblemDetails(to_problem(error)) from error
        return ChildResult(msgspec.msgpack.decode(msgspec.msgpack.encode(made)), hit_deadline=False)


@dataclass(frozen=True)
class Question:
    """One of a tenant; two that are equal have one answer."""

    tenant: str
    length: int  # of the chain
    mark: str  # behind every name of it
    seed: int
    budget: str
    by_id: bool = False  # names a graph that was posted before: not another question

    @property
    def asked(self) -> tuple[str, int, str, int, str]:
        return self.tenant, self.length, self.mark, self.seed, self.budget

    @property
    def graph(self) -> Json:
        return named(self.length, self.mark)

    @property
    def graph_id(self) -> str:
        """The id its graph has, or will have."""
        return id_of(self.length, self.mark)

    @property
    def endless(self) -> bool:
        return self.seed >= ENDLESS


@dataclass
class Made:
    """An operation as it was last seen."""

    question: Question
    seen: Json | None = None
    events: list[str] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return self.seen is not None and self.seen["state"] in FINISHED

    @property
    def plan(self) -> str | None:
        return None if self.seen is None or self.seen["result"] is None else self.seen["result"].rpartition("/")[2]


def named(length: int, mark: str) -> Json:
    """The same graph under names of its own."""
    text = json.dumps(chain(length, "net"))
    for node in chain(length)["nodes"]:
        text = text.replace(f'"{node["name"]}"', f'"{node["name"]}{mark}"')
    return dict(json.loads(text))


@functools.cache
def id_of(length: int, mark: str) -> str:
    payload = {"data": json.dumps(named(length, mark)).encode(), "limits": {}, "shapes": NO_SHAPES}
    return str(child_tasks.read(payload, lambda message: None, threading.Event())["id"])


#: Few, so that most are asked more than once: two differ in names alone, two in the seed, and two are a tenant's own.
OWN = "of "
ASKED = ((2, "", 0, "80%"), (2, "'", 0, "80%"), (2, OWN, 0, "80%"), (2, OWN, 1, "80%"))


def question_of(tenant: str, asked: tuple[int, str, int, str], by_id: bool) -> Question:
    length, mark, *rest = asked
    return Question(tenant, length, mark + tenant if mark == OWN else mark, *rest, by_id)  # type: ignore[arg-type]


questions = st.builds(question_of, st.sampled_from(TENANTS), st.sampled_from(ASKED), st.booleans())
tenants = st.sampled_from(TENANTS)
picks = st.integers(0, 10**6)


class Machine(stateful.RuleBasedStateMachine):
    """The service beside its model."""

    def __init__(self) -> None:
        super().__init__()
        self.after = 1_800_000_000.0
        self.keys: dict[str, list[str]] = {tenant: [] for tenant in TENANTS}
        self.graphs: dict[str, bytes] = {}  # kept: id -> canonical document
        self.owned: dict[str, set[str]] = {tenant: set() for tenant in TENANTS}  # ids, also of what was collected
        self.operations: dict[str, Made] = {}
        self.answers: dict[Any, str] = {}  # what was asked -> its plan
        self.open: dict[Any, str] = {}  # what was asked -> the operation that answers it
        self.plans: dict[str, Json] = {}  # kept: id -> report
        self.planned: dict[str, str] = {}  # plan, also one that was collected -> its graph
        self.told: dict[tuple[str, str], tuple[str, bytes]] = {}  # path and form -> tag and body
        self.claims: dict[tuple[str, str], tuple[bytes, str | None]] = {}  # idempotency keys: body and operation
        self.figures: dict[Any, Any] = {}  # what was asked, without tenant and names -> what was found
        self.folder = Path(tempfile.mkdtemp(prefix="remat-machine-"))
        self.running = ExitStack()

    # ── the service ──

    @initialize()
    def begin(self) -> None:
        self._start()
        for tenant in TENANTS:
            self.keys[tenant].append(self._key(tenant))
        self.operator = self._key("operator", frozenset({"operator"}))

    def _start(self) -> None:
        given = Settings(data=self.folder, workers=2, drain_seconds=0, kill_seconds=PATIENCE_S, gc_hours=0, queue=1000)
        with patch("app.api.service.service.Runner", lambda *_: Inside()):
            app = create_app(given, lambda store: AccessControl(store, lambda: self.after))
        self.service, self.access = app.state.service, app.state.access
        self.client = self.running.enter_context(TestClient(app, raise_server_exceptions=False))

    def _key(self, tenant: str, scopes: frozenset[str] = DEFAULT_SCOPES, seconds: float | None = None) -> str:
        text, key = new_key(
            "test", tenant, scopes, Quotas(), self.after, None if seconds is None else self.after + seconds
        )
        self.access.key_store.add(key)
        return text

    def _ask(self, tenant: str, method: str, path: str, key: str | None = None, **more: Any) -> httpx2.Response:
        headers = {"authorization": f"Bearer {key or self.keys[tenant][-1]}", **more.pop("headers", {})}
        return self.client.request(method, path, headers=headers, **more)

    def teardown(self) -> None:
        try:
            if hasattr(self, "client"):
                self._until_idle()
                for made in self.operations.values():
                    if made.question.endless and not made.ended:
                        self._cancel(made)
                for path, form in list(self.told):
                    self._reads_as_before(path, form)
                for made in list(self.operations.values()):
                    if not made.question.endless:
                        self._post(made.question, True, "", ())
                for kind in UNKNOWN:
                    self.ask_for_what_is_anothers(0, kind)
                self._walks()
        finally:
            self.running.close()
            shutil.rmtree(self.folder)

    def _walks(self) -> None:
        found = check_integrity(self.service.store)
        assert found.faults == []
        assert found.graphs == len(self.graphs)

    @rule()
    def restart(self) -> None:
        self.running.close()
        for made in self.operations.values():
            if made.seen is not None and not made.ended:
                made.seen = None  # it may wait again
        self._start()
        self._walks()

    # ── what the model sees ──

    def _listed(self, tenant: str, limit: int = 1000) -> list[Json]:
        """Every operation of the tenant, newest first, page by page."""
        found: list[Json] = []
        cursor = ""
        while True:
            page = self._ask(tenant, "GET", f"/v1/operations?limit={limit}{cursor and '&cursor='}{cursor}").json()
            assert len(page["operations"]) <= limit
            found += page["operations"]
            if page["next"] is None:
                return found
            cursor = page["next"]

    def _see(self, id: str, said: Json) -> None:
        """An operation goes forward only, and what has ended stays as it is."""
        made = self.operations[id]
        if made.ended:
            assert said == made.seen
            return
        if made.seen is not None:
            assert RANKS[said["state"]] >= RANKS[made.seen["state"]]
            assert said["created_at"] == made.seen["created_at"]
        assert said["state"] != "failed", said
        made.seen = said
        if made.ended:
            if self.open.get(made.question.asked) == id:
                del self.open[made.question.asked]
            if made.plan is not None:
                self._keeps(made)

    def _keeps(self, made: Made) -> None:
        assert made.seen is not None and made.plan is not None
        self._keeps_plan(made.question, made.plan, made.seen["state"] == "succeeded")

    def _keeps_plan(self, question: Question, id: str, answers: bool) -> None:
        if answers:
            self.answers[question.asked] = id
        report = self._ask(question.tenant, "GET", f"/v1/plans/{id}").json()
        self.plans[id], self.planned[id] = report, question.graph_id
        assert report["id"] == id and report["checked"] is True
        names = {node["name"] for node in question.graph["nodes"]}
        assert {name for name, _ in report["plan"]["order"]} == names  # the caller's own
        if answers:
            order = [(name.removesuffix(question.mark), run) for name, run in report["plan"]["order"]]
            found = [order, *(report["plan"][name] for name in ("peak_bytes", "seconds", "status"))]
            assert self.figures.setdefault((question.length, question.seed, question.budget), found) == found

    @invariant()
    def nothing_is_lost_and_nobody_sees_anothers(self) -> None:
        for tenant in TENANTS if hasattr(self, "client") else ():
            self._nothing_is_lost_of(tenant)

    def _nothing_is_lost_of(self, tenant: str) -> None:
        listed = self._listed(tenant)
        own = [id for id, made in self.operations.items() if made.question.tenant == tenant]
        assert [said["id"] for said in listed] == sorted(own, reverse=True)
        for said in listed:
            self._see(said["id"], said)

    def _until(self, true: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < until, "it never came"
            time.sleep(0.005)

    def _until_idle(self) -> None:
        """Every operation that ends by itself has ended."""

        def idle() -> bool:
            self.nothing_is_lost_and_nobody_sees_anothers()
            return all(made.ended or made.question.endless for made in self.operations.values())

        self._until(idle)

    def _endless(self) -> bool:
        return any(made.question.endless and not made.ended for made in self.operations.values())

    # ── graphs ──

    def _owns(self, tenant: str, answer: httpx2.Response, graph: Json) -> str:
        """The tenant has posted a graph whose id is of its document."""
        id: str = answer.json()["id"]
        assert answer.headers["etag"] == f'"{id}"' and answer.headers["location"] == f"/v1/graphs/{id}"
        self._holds(tenant, id)
        assert {node["name"] for node in json.loads(self.graphs[id])["nodes"]} == {n["name"] for n in graph["nodes"]}
        return id

    def _holds(self, tenant: str, id: str) -> None:
        self.owned[tenant].add(id)
        if id not in self.graphs:
            self.graphs[id] = self._ask(tenant, "GET", f"/v1/graphs/{id}").content

    @rule(question=questions, key=st.sampled_from(("", "k1", "k2")))
    def post_graph(self, question: Question, key: str) -> None:
        body = json.dumps(question.graph).encode()
        headers = {"content-type": "application/json"} | ({"idempotency-key": key} if key else {})
        answer = self._ask(question.tenant, "POST", "/v1/graphs", content=body, headers=headers)
        claim = self.claims.setdefault((question.tenant, f"graphs {key}"), (body, None)) if key else (body, None)
        if claim[0] != body:
            assert (answer.status_code, answer.json()["code"]) == (409, "idempotency_conflict")
            self._refused(question)
        else:
            assert answer.status_code == 201, answer.text
            self._owns(question.tenant, answer, question.graph)

    def _refused(self, question: Question) -> None:
        """What came with a key that is another's is not kept."""
        if question.graph_id not in self.owned[question.tenant]:
            assert self._ask(question.tenant, "GET", f"/v1/graphs/{question.graph_id}").status_code == 404

    @precondition(lambda self: self.graphs)
    @rule(tenant=tenants, pick=picks, form=st.sampled_from(FORMS[:3]))
    def a_graph_posted_in_another_form_is_the_same(self, tenant: str, pick: int, form: str) -> None:
        own = sorted(self.owned[tenant] & self.graphs.keys())
        if own:
            id = own[pick % len(own)]
            document = self._reads_as_before(f"/v1/graphs/{id}", form, tenant)
            headers = {"content-type": form or "application/json"}
            answer = self._ask(tenant, "POST", "/v1/graphs", content=document, headers=headers)
            assert (answer.status_code, answer.json()["id"]) == (201, id)

    @rule(tenant=tenants, bad=st.sampled_from(BAD))
    def post_what_is_bad(self, tenant: str, bad: tuple[int, str, Any]) -> None:
        status, code, said = bad
        body = b"{" if said is None else json.dumps(said).encode()
        answer = self._ask(tenant, "POST", "/v1/plans", content=body, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text

    # ── plans ──

    @rule(
        question=questions,
        wait=st.booleans(),
        key=st.sampled_from(("", "", "k1", "k2")),
        sections=st.sampled_from(SECTIONS),
    )
    def post_plan(self, question: Question, wait: bool, key: str, sections: tuple[str, ...]) -> None:
        self._post(question, wait, key, sections)

    @precondition(lambda self: not self._endless())
    @rule(tenant=tenants)
    def post_what_takes_for_ever(self, tenant: str) -> None:
        seed = ENDLESS + len(self.operations)
        self._post(Question(tenant, 3, "", seed, "80%"), False, "", ())

    def _post(self, question: Question, wait: bool, key: str, sections: tuple[str, ...]) -> None:
        tenant, asked = question.tenant, question.asked
        body = self._body(question, sections)
        headers = {"prefer": "wait=100" if wait else "wait=0", "content-type": "application/json"}
        self.nothing_is_lost_and_nobody_sees_anothers()
        known = self._known_elsewhere(question)
        answer = self._ask(
            tenant, "POST", "/v1/plans", content=body, headers=headers | ({"idempotency-key": key} if key else {})
        )
        bound, operation = self.claims.get((tenant, f"plans {key}"), (body, None)) if key else (body, None)
        if bound != body:
            assert (answer.status_code, answer.json()["code"]) == (409, "idempotency_conflict"), answer.text
            self._refused(question)
            return
        self._holds(tenant, question.graph_id)
        if operation is None:
            operation = self._operation_of(question, answer, known)
            if key:
                self.claims[tenant, f"plans {key}"] = body, operation
        self.nothing_is_lost_and_nobody_sees_anothers()
        made = None if operation is None else self.operations[operation]
        if made is not None and made.ended and made.plan is None:
            assert (answer.status_code, answer.json()["code"]) == (409, "stopped"), answer.text
        elif answer.status_code == 202:
            assert not (wait and not question.endless), "it took a hundred seconds"
            assert answer.headers["location"] == f"/v1/operations/{operation}" and int(answer.headers["retry-after"])
        else:
            assert answer.status_code == 201, answer.text
            plan = made.plan if made is not None else self.answers[asked]
            assert answer.headers["location"] == f"/v1/plans/{plan}" and answer.json()["id"] == plan
            shown = "&".join(f"return={section}" for section in sections or ("plan", "timeline"))
            assert self._ask(tenant, "GET", f"/v1/plans/{plan}?{shown}").content == answer.content

    def _body(self, question: Question, sections: tuple[str, ...] = ()) -> bytes:
        where: Json = {"graph": question.graph}
        if question.by_id and question.graph_id in self.owned[question.tenant] & self.graphs.keys():
            where = {"graph_id": question.graph_id}
        fields = {"budget": question.budget, "seed": question.seed, "planner": "greedy", "iterations": 3}
        return json.dumps(where | fields | ({"return": sections} if sections else {})).encode()

    def _known_elsewhere(self, question: Question) -> bool:
        """Whether the tenant's question is answered about the graph under other names."""
        return any(
            replace(question, mark=other[2]).asked == other and other[2] != question.mark for other in self.answers
        )

    def _operation_of(self, question: Question, answer: httpx2.Response, known: bool) -> str | None:
        """The operation that a question has now; None: what is kept answers it. A new question has made just one.

        One that was `known` under other names has made none, and one that became so meanwhile may have.
        """
        new = [said["id"] for said in self._listed(question.tenant) if said["id"] not in self.operations]
        if question.asked in self.answers:
            assert new == []
            return None
        if question.asked in self.open:
            assert new == []
            id = self.open[question.asked]
            self._nothing_is_lost_of(question.tenant)  # another tenant may have a new one
            if answer.status_code != 201 or self.operations[id].ended:
                return id
        if known or not new:
            assert new == [] and answer.status_code == 201, answer.text
            self._keeps_plan(question, answer.json()["id"], True)
            self._nothing_is_lost_of(question.tenant)  # another tenant may have a new one
            assert self._known_elsewhere(question)
            return None
        id = next(iter(new)) if len(new) == 1 else pytest.fail(f"{len(new)} new operations")
        self.operations[id] = Made(question)
        self.open[question.asked] = id
        return id

    @rule(question=st.builds(question_of, tenants, st.sampled_from(ASKED[:2]), st.just(False)))
    def three_ask_at_once(self, question: Question) -> None:
        """Two of one tenant are one, another tenant's is another."""
        self.nothing_is_lost_and_nobody_sees_anothers()
        asked = [Question(tenant, *question.asked[1:]) for tenant in ("a", "a", "b")]
        known = [self._known_elsewhere(one) for one in asked]

        def post(one: Question) -> httpx2.Response:
            return self._ask(
                one.tenant, "POST", "/v1/plans", content=self._body(one), headers={"prefer": "wait=0"} | JSON
            )

        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(post, asked))
        for one, answer in zip(asked, answers, strict=True):
            assert answer.status_code in (201, 202), answer.text
            self._holds(one.tenant, one.graph_id)
        for one, answer, elsewhere in list(zip(asked, answers, known, strict=True))[1:]:
            self._operation_of(one, answer, elsewhere)

    # ── operations ──

    @precondition(lambda self: self.operations)
    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        self._cancel(list(self.operations.values())[pick % len(self.operations)])

    def _cancel(self, made: Made) -> None:
        (id,) = (id for id, other in self.operations.items() if other is made)
        tenant, before = made.question.tenant, made.seen if made.ended else None
        said = self._ask(tenant, "POST", f"/v1/operations/{id}:cancel").json()
        if before is not None:
            assert said == before

        def ended() -> bool:
            self._see(id, self._ask(tenant, "GET", f"/v1/operations/{id}").json())
            return made.ended

        self._until(ended)
        assert made.seen is not None
        assert made.seen["state"] == "cancelled" if made.question.endless else made.seen["state"] != "failed"
        self.nothing_is_lost_and_nobody_sees_anothers()

    @precondition(lambda self: any(made.ended for made in self.operations.values()))
    @rule(pick=picks, after=st.integers(0, 5))
    def follow_events(self, pick: int, after: int) -> None:
        ids = [id for id, made in self.operations.items() if made.ended]
        id = ids[pick % len(ids)]
        made = self.operations[id]

        def told(last: int) -> list[str]:
            answer = self._ask(
                made.question.tenant, "GET", f"/v1/operations/{id}/events", headers={"last-event-id": str(last)}
            )
            assert answer.status_code in (200, 204)
            return [event for event in answer.text.split("\n\n") if event and not event.startswith(":")]

        events = told(0)
        assert made.events in ([], events)
        made.events = events
        assert [event.split("\n")[0] for event in events] == [f"id: {n}" for n in range(1, len(events) + 1)]
        assert json.loads(events[-1].partition("\ndata: ")[2]) == made.seen
        assert told(after) == events[after:]

    @rule(tenant=tenants, limit=st.integers(1, 3))
    def list_page_by_page(self, tenant: str, limit: int) -> None:
        self._until_idle()
        whole = self._listed(tenant)
        assert self._listed(tenant, limit) == whole
        done = [said for said in whole if said["state"] == "succeeded"]
        assert self._ask(tenant, "GET", "/v1/operations?state=succeeded").json()["operations"] == done

    # ── what was answered ──

    @precondition(lambda self: self.plans)
    @rule(pick=picks, part=st.sampled_from(PARTS), form=st.sampled_from(FORMS))
    def read_a_plan(self, pick: int, part: str, form: str) -> None:
        ids = sorted(self.plans)
        takes = form if part in ("/graph", "/source") else ""
        self._reads_as_before(f"/v1/plans/{ids[pick % len(ids)]}{part}", takes)

    @precondition(lambda self: self.graphs)
    @rule(pick=picks, form=st.sampled_from(FORMS))
    def read_a_graph(self, pick: int, form: str) -> None:
        ids = sorted(self.graphs)
        self._reads_as_before(f"/v1/graphs/{ids[pick % len(ids)]}", form)

    def _reads_as_before(self, path: str, form: str, tenant: str | None = None) -> bytes:
        """What it was answered with at first; 304 for who has that; and it says 404 once it was collected."""
        kind, id = path.partition("?")[0].split("/")[2:4]
        graph = id if kind == "graphs" else self.planned[id]
        owners = [owner for owner in TENANTS if graph in self.owned[owner]]
        headers = {"accept": form} if form else {}
        answer = self._ask(tenant or owners[0], "GET", path, headers=headers)
        if id not in (self.graphs if kind == "graphs" else self.plans):
            assert answer.status_code == 404, answer.text
            return b""
        assert answer.status_code == 200, answer.text
        tag = answer.headers["etag"]
        assert self.told.setdefault((path, form), (tag, answer.content)) == (tag, answer.content)
        again = self._ask(owners[-1], "GET", path, headers=headers | {"if-none-match": tag})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        return answer.content

    @rule(pick=picks, kind=st.sampled_from(tuple(UNKNOWN)))
    def ask_for_what_is_anothers(self, pick: int, kind: str) -> None:
        things: list[tuple[str, str]] = (
            [*((id, tenant) for id in self.graphs for tenant in TENANTS if id not in self.owned[tenant])]
            if kind == "graphs"
            else [
                (id, tenant)
                for id, made in self.operations.items()
                for tenant in TENANTS
                if tenant != made.question.tenant
            ]
            if kind == "operations"
            else [(id, tenant) for id in self.plans for tenant in TENANTS if self.planned[id] not in self.owned[tenant]]
        )
        if not things:
            return
        id, tenant = sorted(things)[pick % len(things)]
        more = {"graphs": ("/analysis", ":transform"), "plans": PARTS[1:], "operations": ("/events", ":cancel")}[kind]
        for rest in ("", *more):
            method, body = ("POST", {"pass": "prune"}) if rest.startswith(":") else ("GET", None)
            foreign, unknown = (
                self._ask(tenant, method, f"/v1/{kind}/{one}{rest}", json=body) for one in (id, UNKNOWN[kind])
            )
            assert foreign.status_code == unknown.status_code == 404
            assert foreign.text.replace(id, "ID") == unknown.text.replace(UNKNOWN[kind], "ID")
        if kind == "graphs":
            answer = self._ask(tenant, "POST", "/v1/plans", json={"graph_id": id, "budget": "50%"})
            assert answer.status_code == 404

    @rule(tenant=tenants)
    def savings_are_the_sum_of_what_was_planned(self, tenant: str) -> None:
        self._until_idle()
        own = {made.plan for made in self.operations.values() if made.question.tenant == tenant and made.plan}
        for key, plans in ((None, own), (self.operator, set(self.plans))):
            rows = self._ask(tenant, "GET", "/v1/savings", key).json()["rows"]
            assert sum(row["plans"] for row in rows) == len(plans)
            for name in SUMMED:
                of = "baseline" if name == "baseline_peak_bytes" else "plan"
                said = name.removeprefix("baseline_")
                assert sum(row[name] for row in rows) == sum(self.plans[id][of][said] for id in plans), name

    # ── keys ──

    @rule(tenant=tenants)
    def a_new_key_opens_the_same(self, tenant: str) -> None:
        self.keys[tenant].append(self._key(tenant))

    @rule(tenant=tenants, how=st.sampled_from(("revoked", "expired", "read only", "made up")))
    def a_key_that_is_not_good_opens_nothing(self, tenant: str, how: str) -> None:
        text = self._key(tenant, frozenset({"read"}) if how == "read only" else DEFAULT_SCOPES, 1.0)
        status, code = 401, f"{how}_key"
        if how == "revoked":
            self.access.key_store.revoke(text.split("_")[1], self.after)
        elif how == "expired":
            self.after += 1
        elif how == "read only":
            status, code = 403, "out_of_scope"
        else:
            text, code = text[:-1] + ("A" if text[-1] != "A" else "B"), "bad_key"
        answer = self._ask(tenant, "POST", "/v1/graphs", text, json=chain(4, "never kept"))
        assert (answer.status_code, answer.json()["code"]) == (status, code)

    # ── time ──

    @rule(all_of_it=st.booleans())
    def collect_what_is_old(self, all_of_it: bool) -> None:
        """Nothing, or whatever has ended, with what only that needed."""
        self._until_idle()
        store = self.service.store
        for path in store.blobs.folder.rglob("*.zst"):
            os.utime(path, (1, 1))  # no blob is too young
        if not all_of_it:
            collect(store, 1.0, 1.0)
            self._walks()
            return
        collect(store, -1.0, -1.0)  # until tomorrow
        self.service.responses = ResponseCache(self.service.settings.kept_bytes)  # a minute later
        self.operations = {id: made for id, made in self.operations.items() if not made.ended}
        self.plans.clear()
        self.answers.clear()
        self.claims.clear()
        waited_for = {made.question.graph_id for made in self.operations.values()}
        self.graphs = {id: document for id, document in self.graphs.items() if id in waited_for}
        # A plan made again says other times, so its report is another; its parts are the same.
        self.told = {
            asked: said
            for asked, said in self.told.items()
            if asked[0].split("/")[2] == "graphs" or "/" in asked[0].removeprefix("/v1/plans/")
        }
        self._walks()


JSON = {"content-type": "application/json"}


def test_the_service_does_what_its_model_does() -> None:
    stateful.run_state_machine_as_test(Machine, settings=settings(max_examples=3, stateful_step_count=20))


@pytest.mark.heavy
def test_the_service_does_what_its_model_does_for_long() -> None:
    stateful.run_state_machine_as_test(Machine, settings=settings(max_examples=8, stateful_step_count=40))
