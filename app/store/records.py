"""Storage of graphs, plans, results and idempotency keys."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import sqlalchemy as sa

from app.catalogue import versions
from app.errors import Conflict, Gone, NotFound
from app.store.blobs import blob_key
from app.store.database import insert, insert_if_absent, upsert_seen
from app.store.store import Store
from app.store.tables import (
    answers,
    graphs,
    idempotency_keys,
    plan_columns,
    plans,
    result_plans,
    results,
    sections,
    to_timestamp,
    without_nul,
)
from app.store.tenancy import insert_owner
from app.telemetry import metrics
from planner.request.field_kinds import NOT_IN_SUMMARY, without_proof

DEFAULT_SECTIONS = ("plan", "timeline")


def now() -> str:
    """The current time in wire format."""
    return to_timestamp(datetime.now(UTC))


def save_graph(store: Store, read: Mapping[str, Any], tenant: str | None = None) -> dict[str, Any]:
    """The stored row of a graph that a child has read, owned by the tenant; a known graph has a new `seen_at`."""
    row = {name: read[name] for name in ("id", "nodes", "values", "format", "forward_only", "batch")}
    at, document = now(), read["document"]
    row |= {name: without_nul(read[name]) for name in ("name", "graph_name", "inputs")}
    row |= {"blob": blob_key(document), "created_at": at, "seen_at": at}
    row["form"] = form = read.get("form")
    with store.writing(document) as connection:
        statement = insert(connection, graphs).values(row)
        seen = {"seen_at": at, "form": form}
        connection.execute(statement.on_conflict_do_update(index_elements=["id"], set_=seen))
        insert_owner(connection, graphs, read["id"], tenant)
    return store.row(graphs, read["id"])


def graph_of(store: Store, graph_id: str) -> dict[str, Any]:
    """The row of a graph. Raises NotFound."""
    try:
        return store.row(graphs, graph_id)
    except NotFound as error:
        raise NotFound(f"{error}; post it to /v1/graphs first") from None


def document_key(store: Store, graph_id: str) -> str:
    """Blob key of the canonical document of a graph. Raises NotFound."""
    key: str = graph_of(store, graph_id)["blob"]
    return key


def request_key(about: str, fields: Mapping[str, Any], kind: str = "plan") -> str:
    """Key of a request: SHA-256 of kind, subject, fields without `return`, and versions.

    `about` is the id or the form of a graph, or the SHA-256 of an input document that is not a stored graph.
    """
    solved = {name: given for name, given in fields.items() if name != "return"}
    text = msgspec.json.encode([kind, about, solved, versions()], order="deterministic")
    return hashlib.sha256(text).hexdigest()


def solve_payload(
    store: Store, graph_id: str | None, fields: Mapping[str, Any], document_id: str | None = None
) -> dict[str, Any]:
    """{"data", "fields"} of a solve for a child: a stored graph, or the input document. Raises NotFound."""
    if graph_id is None:
        return {"data": store.blobs.get(str(document_id)), "fields": dict(fields)}
    graph, effective = graph_of(store, graph_id), dict(fields)
    if graph["format"] != "native" and graph["forward_only"] and "loss" not in effective:
        effective.setdefault("differentiate", True)  # the default of framework files; the stored document is native
    return {"data": store.blobs.get(graph["blob"]), "fields": effective}


_FOUND = sa.func.coalesce(answers.c.plan_id, answers.c.result_id).label("found")
_ANSWER = sa.select(_FOUND).where(answers.c.key == sa.bindparam("of_key"))  # built once: executed for every solve
InTransaction = Callable[[sa.Connection, str], None]


def _nothing(connection: sa.Connection, id: str) -> None: ...


def save_plan(
    store: Store,
    solved: Mapping[str, Any],
    graph_id: str,
    answers_key: str | None = None,
    also: InTransaction = _nothing,
    form_key: str | None = None,
) -> str:
    """Id of the stored plan: a hash of its content without wall-clock times.

    `answers_key` maps the request to it, `form_key` the same request on equivalent graphs. `also` runs in the same
    transaction.
    """
    plan = _Plan.of(solved, graph_id)
    with store.writing(*plan.blobs) as connection:
        plan.insert(connection)
        _answer(connection, answers_key, plan_id=plan.id)
        _answer(connection, form_key, plan_id=plan.id)
        also(connection, plan.id)
    metrics.count_plan(plan.columns)
    return plan.id


def save_result(
    store: Store,
    kind: str,
    made: Mapping[str, Any],
    graph_id: str | None,
    answers_key: str | None = None,
    also: InTransaction = _nothing,
    tenant: str | None = None,
) -> str:
    """Id of the stored curve, fit or layout, saved with its plans as in `save_plan` and owned by the tenant.

    `made` is {"document", "plans"}, with "graph" if the graph of the plans is not stored yet.
    """
    if "graph" in made:
        graph_id = save_graph(store, made["graph"], tenant)["id"]
    plans = [_Plan.of(solved, str(graph_id)) for solved in made["plans"]]
    document = dict(made["document"])
    for place, plan in zip(document.get("points", [document]), plans, strict=False):
        place["plan"] = f"/v1/plans/{plan.id}"
    timeless = {name: value for name, value in document.items() if name != "elapsed"}
    id = hashlib.sha256(msgspec.json.encode([kind, timeless], order="deterministic")).hexdigest()
    data, at = msgspec.json.encode(document), now()
    row: dict[str, Any] = {"id": id, "kind": kind, "blob": blob_key(data), "created_at": at, "seen_at": at}
    row |= {"grow": without_nul(document.get("grow")), "size": document.get("size")}
    with store.writing(data, *(blob for plan in plans for blob in plan.blobs)) as connection:
        for plan in plans:
            plan.insert(connection)
        connection.execute(upsert_seen(connection, results), row)
        insert_owner(connection, results, id, tenant)
        references = [{"result_id": id, "plan_id": plan_id} for plan_id in {plan.id for plan in plans}]
        if references:
            connection.execute(insert_if_absent(connection, result_plans), references)
        _answer(connection, answers_key, result_id=id)
        also(connection, id)
    for plan in plans:
        metrics.count_plan(plan.columns)
    return id


@dataclass(frozen=True, slots=True)
class _Plan:
    """Rows and blobs of a plan to store."""

    id: str
    row: Mapping[str, Any]
    columns: Mapping[str, Any]
    figures: bytes
    sections: Mapping[str, bytes]

    @classmethod
    def of(cls, solved: Mapping[str, Any], graph_id: str) -> _Plan:
        report = msgspec.json.decode(solved["report"])
        timeless = {name: value for name, value in report.items() if name not in ("id", "elapsed")}
        id = hashlib.sha256(msgspec.json.encode([graph_id, timeless], order="deterministic")).hexdigest()
        figures, at = msgspec.json.encode(report | {"id": id}), now()
        row = {"id": id, "graph_id": graph_id, "figures": blob_key(figures), "created_at": at, "seen_at": at}
        return cls(id, row, plan_columns(report), figures, solved["sections"])

    @property
    def blobs(self) -> tuple[bytes, ...]:
        return self.figures, *self.sections.values()

    def insert(self, connection: sa.Connection) -> None:
        connection.execute(upsert_seen(connection, plans), {**self.row, **self.columns})
        parts = [{"plan_id": self.id, "name": name, "blob": blob_key(data)} for name, data in self.sections.items()]
        if parts:
            connection.execute(insert_if_absent(connection, sections), parts)


def _answer(connection: sa.Connection, key: str | None, **answer: str) -> None:
    if key is not None:
        connection.execute(insert_if_absent(connection, answers), {"key": key, "created_at": now(), **answer})


def find_answer(store: Store, key: str) -> str | None:
    """Id of the stored plan or other result of the request key; None if there is none."""
    return next(iter(find_answers(store, [key]).values()), None)


def find_answers(store: Store, keys: Iterable[str]) -> dict[str, str]:
    """Request key -> id of its stored result, for keys that have one."""
    with store.reading() as connection:
        rows = connection.execute(sa.select(answers.c.key, _FOUND).where(answers.c.key.in_(list(keys))))
        return {row.key: row.found for row in rows}


def find_answer_in(connection: sa.Connection, key: str) -> str | None:
    """As `find_answer`, in an open transaction."""
    result_id: str | None = connection.scalar(_ANSWER, {"of_key": key})
    return result_id


def report_of(store: Store, plan_id: str, wanted: Iterable[str] = DEFAULT_SECTIONS) -> bytes:
    """The report as JSON, with those of the `wanted` sections that the plan has. Raises NotFound."""
    row = store.row(plans, plan_id)
    report = msgspec.json.decode(store.blobs.get(row["figures"]), type=dict[str, msgspec.Raw])
    parts, names = _sections(store, plan_id), list(wanted)
    for name in names:
        if name in parts:
            report[name] = msgspec.Raw(store.blobs.get(parts[name]))
    if "source" not in names or "summary" in names:  # only with its source can a bound be checked
        plan = _members(report["plan"])
        section = without_proof(plan | {"bound": _members(plan["bound"])}, NOT_IN_SUMMARY if "summary" in names else ())
        report["plan"] = msgspec.Raw(msgspec.json.encode(section))
    return msgspec.json.encode(report)


def certificate_of(store: Store, plan_id: str) -> bytes:
    """The certificate of a plan's bound as JSON. Raises NotFound."""
    report = msgspec.json.decode(store.blobs.get(store.row(plans, plan_id)["figures"]), type=dict[str, msgspec.Raw])
    bound = _members(_members(report["plan"])["bound"])
    return bytes(bound["certificate"])


def _members(section: msgspec.Raw) -> dict[str, msgspec.Raw]:
    """The undecoded members of a JSON object."""
    return msgspec.json.decode(section, type=dict[str, msgspec.Raw])


def result_of(store: Store, kind: str, id: str) -> bytes:
    """The document of a curve, a fit or a layout. Raises NotFound."""
    missing = NotFound(f"no {kind} {id[:80]!r}")
    try:
        row = store.row(results, id)
    except NotFound:
        raise missing from None
    if row["kind"] != kind:
        raise missing
    return store.blobs.get(row["blob"])


def section_of(store: Store, plan_id: str, section: str) -> bytes:
    """One section as JSON. Raises NotFound, and Gone if the plan has no such section."""
    return store.blobs.get(section_key(store, plan_id, section))


def section_key(store: Store, plan_id: str, section: str) -> str:
    """Blob key of a section. Raises NotFound, and Gone if the plan has no such section."""
    store.row(plans, plan_id)
    parts = _sections(store, plan_id)
    if section not in parts:
        raise Gone(f"plan {plan_id} has no {section}; request a plan with a layout other than none")
    return parts[section]


def _sections(store: Store, plan_id: str) -> dict[str, str]:
    """Section name -> blob key."""
    query = sa.select(sections.c.name, sections.c.blob).where(sections.c.plan_id == plan_id)
    with store.reading() as connection:
        return {row.name: row.blob for row in connection.execute(query)}


def claim_key(store: Store, key: str, path: str, body: bytes) -> str | None:
    """Bind an idempotency key to this body; returns the operation it started before, if any. Raises Conflict."""
    id, body_hash = _key_id(key, path), blob_key(body)
    row = {"id": id, "body": body_hash, "created_at": now()}
    with store.writing() as connection:
        connection.execute(insert_if_absent(connection, idempotency_keys), row)
        bound, operation_id = connection.execute(
            sa.select(idempotency_keys.c.body, idempotency_keys.c.operation_id).where(idempotency_keys.c.id == id)
        ).one()
    _require_same(bound, body_hash)
    started: str | None = operation_id
    return started


def require_key_free(store: Store, key: str, path: str, body: bytes) -> None:
    """Raises Conflict if the key is bound to a different body. Call before storing anything of the request."""
    query = sa.select(idempotency_keys.c.body).where(idempotency_keys.c.id == _key_id(key, path))
    with store.reading() as connection:
        bound = connection.scalar(query)
    if bound is not None:
        _require_same(bound, blob_key(body))


def _require_same(bound: str, body_hash: str) -> None:
    if bound != body_hash:
        raise Conflict("the idempotency key was used with a different body; use a new key for a new request")


def bind_key(store: Store, key: str, path: str, operation_id: str) -> None:
    """Record the operation that the request with the key started."""
    started = sa.update(idempotency_keys).where(idempotency_keys.c.id == _key_id(key, path))
    with store.writing() as connection:
        connection.execute(started.values(operation_id=operation_id))


def _key_id(key: str, path: str) -> str:
    return hashlib.sha256(msgspec.json.encode([path, key])).hexdigest()
