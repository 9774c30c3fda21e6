"""Graphs, plans and idempotency keys as the store keeps them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import sqlalchemy as sa

from app.catalogue import versions
from app.errors import Conflict, Gone, NotFound
from app.store.blobs import key_of
from app.store.database import insert
from app.store.store import Store
from app.store.tables import answers, graphs, idempotency_keys, of_report, plans, sections, wire
from app.watching import instruments

DEFAULT_SECTIONS = ("plan", "timeline")


def now() -> str:
    """The time as records say it."""
    return wire(datetime.now(UTC))


def keep_graph(store: Store, read: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a graph that a child has read; the same graph has one row."""
    row = {name: read[name] for name in ("id", "nodes", "values", "format", "forward_only")}
    at, document = now(), read["document"]
    # PostgreSQL holds no NUL in a text; the document has the name as it was.
    row |= {"name": read["name"].replace("\0", "\ufffd"), "blob": key_of(document), "created_at": at, "seen_at": at}
    with store.writing(document) as connection:
        made = insert(connection, graphs).values(row)
        connection.execute(made.on_conflict_do_update(index_elements=["id"], set_={"seen_at": at}))
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


def question_key(graph_id: str, fields: Mapping[str, Any]) -> str:
    """Names the question: the same graph, request and versions have the same answer."""
    asked = {name: given for name, given in fields.items() if name != "return"}
    text = msgspec.json.encode([graph_id, asked, versions()], order="deterministic")
    return hashlib.sha256(text).hexdigest()


def solve_payload(store: Store, graph_id: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """What a child is told of a question about a stored graph. Raises NotFound."""
    graph, asked = graph_of(store, graph_id), dict(fields)
    if graph["format"] != "native" and graph["forward_only"] and "loss" not in asked:
        asked.setdefault("differentiate", True)  # as the file would be; the stored document is native
    return {"data": store.blobs.get(graph["blob"]), "fields": asked}


def keep_plan(
    store: Store,
    solved: Mapping[str, Any],
    graph_id: str,
    answers_key: str | None = None,
    also: Callable[[sa.Connection, str], None] = lambda connection, plan_id: None,
) -> str:
    """Id of the plan, which is of its content, times of the clock left out; it answers the question of that key.

    `also` is done in the same transaction: all of it is kept, or nothing.
    """
    report = msgspec.json.decode(solved["report"])
    timeless = {name: said for name, said in report.items() if name not in ("id", "elapsed")}
    plan_id = hashlib.sha256(msgspec.json.encode([graph_id, timeless], order="deterministic")).hexdigest()
    figures, at = msgspec.json.encode(report | {"id": plan_id}), now()
    row = {"id": plan_id, "graph_id": graph_id, "figures": key_of(figures), "created_at": at, "seen_at": at}
    columns = of_report(report)
    parts = [{"plan_id": plan_id, "name": name, "blob": key_of(data)} for name, data in solved["sections"].items()]
    with store.writing(figures, *solved["sections"].values()) as connection:
        made = insert(connection, plans).values(row | columns)
        connection.execute(made.on_conflict_do_update(index_elements=["id"], set_={"seen_at": at}))
        if parts:
            connection.execute(insert(connection, sections).on_conflict_do_nothing(), parts)
        if answers_key is not None:
            answer = {"key": answers_key, "plan_id": plan_id, "created_at": at}
            connection.execute(insert(connection, answers).values(answer).on_conflict_do_nothing())
        also(connection, plan_id)
    instruments.plan_made(columns)
    return plan_id


def answer_of(store: Store, key: str) -> str | None:
    """Id of the plan that answers the question, once there is one."""
    with store.reading() as connection:
        found = connection.scalar(sa.select(answers.c.plan_id).where(answers.c.key == key))
    instruments.looked_up(found is not None)
    return found


def report_of(store: Store, plan_id: str, wanted: Iterable[str] = DEFAULT_SECTIONS) -> bytes:
    """The report with those sections that the plan was made with. Raises NotFound."""
    row = store.row(plans, plan_id)
    report = msgspec.json.decode(store.blobs.get(row["figures"]), type=dict[str, msgspec.Raw])
    parts = _sections(store, plan_id)
    for name in wanted:
        if name in parts:
            report[name] = msgspec.Raw(store.blobs.get(parts[name]))
    return msgspec.json.encode(report)


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


def claim(store: Store, key: str, path: str, body: bytes) -> str | None:
    """Bind an idempotency key to this body; the operation it started before, if any. Raises Conflict."""
    id, said = _key_id(key, path), key_of(body)
    row = {"id": id, "body": said, "created_at": now()}
    with store.writing() as connection:
        connection.execute(insert(connection, idempotency_keys).values(row).on_conflict_do_nothing())
        bound, operation_id = connection.execute(
            sa.select(idempotency_keys.c.body, idempotency_keys.c.operation_id).where(idempotency_keys.c.id == id)
        ).one()
    if bound != said:
        raise Conflict(f"idempotency key {key[:80]!r} came with another body before; take a new key for a new question")
    started: str | None = operation_id
    return started


def bind(store: Store, key: str, path: str, operation_id: str) -> None:
    """Remember which operation the key started."""
    started = sa.update(idempotency_keys).where(idempotency_keys.c.id == _key_id(key, path))
    with store.writing() as connection:
        connection.execute(started.values(operation_id=operation_id))


def _key_id(key: str, path: str) -> str:
    return hashlib.sha256(msgspec.json.encode([path, key])).hexdigest()
