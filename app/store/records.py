"""Graphs, plans, results and idempotency keys as the store keeps them."""

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
)
from app.telemetry import metrics

DEFAULT_SECTIONS = ("plan", "timeline")
MAX_EQUIVALENT_GRAPHS = 32  # of a graph whose answers are looked at


def now() -> str:
    """The time as records say it."""
    return to_timestamp(datetime.now(UTC))


def save_graph(store: Store, read: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a graph that a child has read; the same graph has one row."""
    row = {name: read[name] for name in ("id", "nodes", "values", "format", "forward_only")}
    at, document = now(), read["document"]
    # PostgreSQL holds no NUL in a text; the document has the name as it was.
    row |= {"name": read["name"].replace("\0", "\ufffd"), "blob": blob_key(document), "created_at": at, "seen_at": at}
    row["form"] = form = read.get("form")
    with store.writing(document) as connection:
        made = insert(connection, graphs).values(row)
        seen = {"seen_at": at, "form": form}
        connection.execute(made.on_conflict_do_update(index_elements=["id"], set_=seen))
    return store.row(graphs, read["id"])


def graph_of(store: Store, graph_id: str) -> dict[str, Any]:
    """The row of a graph. Raises NotFound."""
    try:
        return store.row(graphs, graph_id)
    except NotFound as error:
        raise NotFound(f"{error}; post it to /v1/graphs first") from None


def document_of(store: Store, graph_id: str) -> bytes:
    """The canonical document of a graph. Raises NotFound."""
    return store.blobs.get(graph_of(store, graph_id)["blob"])


def equivalent_graphs(store: Store, graph_id: str) -> list[str]:
    """Graphs that differ from this one in names alone, those that were posted last first."""
    twin = graphs.alias()
    asked = sa.select(twin.c.id).join(graphs, graphs.c.form == twin.c.form)
    asked = asked.where(graphs.c.id == graph_id, twin.c.id != graph_id).order_by(twin.c.seen_at.desc())
    with store.reading() as connection:
        return list(connection.scalars(asked.limit(MAX_EQUIVALENT_GRAPHS)))


def request_key(about: str, fields: Mapping[str, Any], kind: str = "plan") -> str:
    """Names the question: the same graph, request and versions have the same answer.

    `about` is the id of a graph, or the SHA-256 of what is asked about instead.
    """
    asked = {name: given for name, given in fields.items() if name != "return"}
    text = msgspec.json.encode([kind, about, asked, versions()], order="deterministic")
    return hashlib.sha256(text).hexdigest()


def solve_payload(
    store: Store, graph_id: str | None, fields: Mapping[str, Any], asked: str | None = None
) -> dict[str, Any]:
    """What a child is told of a question about a stored graph, or about what was sent with it. Raises NotFound."""
    if graph_id is None:
        return {"data": store.blobs.get(str(asked)), "fields": dict(fields)}
    graph, told = graph_of(store, graph_id), dict(fields)
    if graph["format"] != "native" and graph["forward_only"] and "loss" not in told:
        told.setdefault("differentiate", True)  # as the file would be; the stored document is native
    return {"data": store.blobs.get(graph["blob"]), "fields": told}


_FOUND = sa.func.coalesce(answers.c.plan_id, answers.c.result_id).label("found")
_ANSWER = sa.select(_FOUND).where(answers.c.key == sa.bindparam("asked"))  # made once, as it is asked for every solve
InTransaction = Callable[[sa.Connection, str], None]


def _nothing(connection: sa.Connection, id: str) -> None: ...


def save_plan(
    store: Store,
    solved: Mapping[str, Any],
    graph_id: str,
    answers_key: str | None = None,
    also: InTransaction = _nothing,
) -> str:
    """Id of the plan, which is of its content, times of the clock left out; it answers the question of that key.

    `also` is done in the same transaction: all of it is kept, or nothing.
    """
    plan = _Plan.of(solved, graph_id)
    with store.writing(*plan.blobs) as connection:
        plan.insert(connection)
        _answer(connection, answers_key, plan_id=plan.id)
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
) -> str:
    """Id of a curve, a fit or a layout with the plans it names, kept as `save_plan` keeps one.

    `made` is {"document", "plans"}, and {"graph"} where the plans are of one that is not stored yet.
    """
    if "graph" in made:
        graph_id = save_graph(store, made["graph"])["id"]
    plans = [_Plan.of(solved, str(graph_id)) for solved in made["plans"]]
    document = dict(made["document"])
    for place, plan in zip(document.get("points", [document]), plans, strict=False):
        place["plan"] = f"/v1/plans/{plan.id}"
    timeless = {name: said for name, said in document.items() if name != "elapsed"}
    id = hashlib.sha256(msgspec.json.encode([kind, timeless], order="deterministic")).hexdigest()
    data, at = msgspec.json.encode(document), now()
    row: dict[str, Any] = {"id": id, "kind": kind, "blob": blob_key(data), "created_at": at, "seen_at": at}
    grow = document.get("grow")  # what somebody called a dimension; PostgreSQL holds no NUL in a text
    row |= {"grow": grow and grow.replace("\0", "\ufffd"), "size": document.get("size")}
    with store.writing(data, *(blob for plan in plans for blob in plan.blobs)) as connection:
        for plan in plans:
            plan.insert(connection)
        connection.execute(upsert_seen(connection, results), row)
        named = [{"result_id": id, "plan_id": plan_id} for plan_id in {plan.id for plan in plans}]
        if named:
            connection.execute(insert_if_absent(connection, result_plans), named)
        _answer(connection, answers_key, result_id=id)
        also(connection, id)
    for plan in plans:
        metrics.count_plan(plan.columns)
    return id


@dataclass(frozen=True, slots=True)
class _Plan:
    """A plan on its way into the store."""

    id: str
    row: Mapping[str, Any]
    columns: Mapping[str, Any]
    figures: bytes
    sections: Mapping[str, bytes]

    @classmethod
    def of(cls, solved: Mapping[str, Any], graph_id: str) -> _Plan:
        report = msgspec.json.decode(solved["report"])
        timeless = {name: said for name, said in report.items() if name not in ("id", "elapsed")}
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
    """Id of the plan, or of the result that is none, that answers the question, once there is one."""
    return next(iter(find_answers(store, [key]).values()), None)


def find_answers(store: Store, keys: Iterable[str]) -> dict[str, str]:
    """Key -> what answers that question, where it is answered."""
    with store.reading() as connection:
        rows = connection.execute(sa.select(answers.c.key, _FOUND).where(answers.c.key.in_(list(keys))))
        return {row.key: row.found for row in rows}


def find_answer_in(connection: sa.Connection, key: str) -> str | None:
    """As `find_answer`, for one who has a transaction."""
    found: str | None = connection.scalar(_ANSWER, {"asked": key})
    return found


def plan_parts(store: Store, plan_id: str) -> tuple[bytes, dict[str, bytes]]:
    """(figures, sections) of a plan as they were kept. Raises NotFound."""
    figures = store.blobs.get(store.row(plans, plan_id)["figures"])
    return figures, {name: store.blobs.get(blob) for name, blob in _sections(store, plan_id).items()}


def report_of(store: Store, plan_id: str, wanted: Iterable[str] = DEFAULT_SECTIONS) -> bytes:
    """The report with those sections that the plan was made with. Raises NotFound."""
    row = store.row(plans, plan_id)
    report = msgspec.json.decode(store.blobs.get(row["figures"]), type=dict[str, msgspec.Raw])
    parts = _sections(store, plan_id)
    for name in wanted:
        if name in parts:
            report[name] = msgspec.Raw(store.blobs.get(parts[name]))
    return msgspec.json.encode(report)


def result_of(store: Store, kind: str, id: str) -> bytes:
    """The document of a curve, a fit or a layout. Raises NotFound."""
    missing = NotFound(f"there is no {kind} {id[:80]!r}")
    try:
        row = store.row(results, id)
    except NotFound:
        raise missing from None
    if row["kind"] != kind:
        raise missing
    return store.blobs.get(row["blob"])


def section_of(store: Store, plan_id: str, section: str) -> bytes:
    """One section as JSON. Raises NotFound, and Gone for a section the plan was made without."""
    store.row(plans, plan_id)
    parts = _sections(store, plan_id)
    if section not in parts:
        raise Gone(f"plan {plan_id} has no {section}; ask again with a layout that is not none")
    return store.blobs.get(parts[section])


def _sections(store: Store, plan_id: str) -> dict[str, str]:
    """Name -> blob."""
    asked = sa.select(sections.c.name, sections.c.blob).where(sections.c.plan_id == plan_id)
    with store.reading() as connection:
        return {row.name: row.blob for row in connection.execute(asked)}


def claim_key(store: Store, key: str, path: str, body: bytes) -> str | None:
    """Bind an idempotency key to this body; the operation it started before, if any. Raises Conflict."""
    id, said = _key_id(key, path), blob_key(body)
    row = {"id": id, "body": said, "created_at": now()}
    with store.writing() as connection:
        connection.execute(insert_if_absent(connection, idempotency_keys), row)
        bound, operation_id = connection.execute(
            sa.select(idempotency_keys.c.body, idempotency_keys.c.operation_id).where(idempotency_keys.c.id == id)
        ).one()
    _demand_same(bound, said)
    started: str | None = operation_id
    return started


def require_key_free(store: Store, key: str, path: str, body: bytes) -> None:
    """Raises Conflict where the key is bound to another body already: before anything of this one is kept."""
    asked = sa.select(idempotency_keys.c.body).where(idempotency_keys.c.id == _key_id(key, path))
    with store.reading() as connection:
        bound = connection.scalar(asked)
    if bound is not None:
        _demand_same(bound, blob_key(body))


def _demand_same(bound: str, said: str) -> None:
    if bound != said:
        raise Conflict("the idempotency key came with another body before; take a new key for a new question")


def bind_key(store: Store, key: str, path: str, operation_id: str) -> None:
    """Remember which operation the key started."""
    started = sa.update(idempotency_keys).where(idempotency_keys.c.id == _key_id(key, path))
    with store.writing() as connection:
        connection.execute(started.values(operation_id=operation_id))


def _key_id(key: str, path: str) -> str:
    return hashlib.sha256(msgspec.json.encode([path, key])).hexdigest()
