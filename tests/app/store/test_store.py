"""The store keeps blobs by content and rows beside them, across restarts, whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from hypothesis import given
from hypothesis import strategies as st

from app.atomic_files import CannotWrite
from app.errors import BadUsage, Conflict, NotFound, Unavailable
from app.jobs import repository
from app.jobs.interface import JobEvent, Operation
from app.settings import Settings
from app.store import records
from app.store.blobs import GRACE, Blobs
from app.store.database import SQLITE_WRITES
from app.store.maintenance.garbage_collection import collect
from app.store.maintenance.integrity_check import check_integrity
from app.store.schema import _config, migrate
from app.store.store import Store
from app.store.tables import (
    events,
    graphs,
    idempotency_keys,
    metadata,
    operations,
    plan_notes,
    plan_tags,
    plans,
    result_plans,
    results,
    schema_support,
    to_timestamp,
)
from app.store.tags_and_notes import annotate, annotations_of, known_tags
from tests.app.stores import GRAPH_ID, add, graph_read, opened, solved
from tests.postgres import Cluster


@pytest.fixture
def store(store_settings: dict[str, Any]) -> Iterator[Store]:
    """With one graph, on SQLite and on PostgreSQL."""
    made = opened(**store_settings)
    yield made
    made.close()


@given(st.binary(max_size=2000))
def test_a_blob_comes_back_under_the_hash_of_its_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    blobs = Blobs(None, tmp_path_factory.mktemp("blobs"))
    key = blobs.put(data)
    assert key == hashlib.sha256(data).hexdigest() == blobs.put(data)
    assert blobs.get(key) == data


@pytest.mark.parametrize("damage", [b"", b"garbage", b"(\xb5/\xfd half"])
def test_a_damaged_blob_is_told_found_and_mended_by_who_has_its_bytes(store: Store, damage: bytes) -> None:
    if store.blobs.folder is None:
        pytest.skip("the files of an object store are its own")
    path = store.blobs.folder / GRAPH_ID[:2] / f"{GRAPH_ID}.zst"
    path.write_bytes(damage)
    with pytest.raises(Unavailable, match="damaged"):
        store.blobs.get(records.document_key(store, GRAPH_ID))
    assert any(GRAPH_ID in said for said in check_integrity(store).faults)
    records.save_graph(store, graph_read())
    assert store.blobs.get(records.document_key(store, GRAPH_ID)) == b"{}"
    assert not check_integrity(store).faults


def test_a_new_data_folder_is_its_owners_only(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    Store(Settings(data=folder)).close()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_what_is_kept_is_there_after_a_restart(store_settings: dict[str, Any]) -> None:
    first = opened(**store_settings)
    plan_id = records.save_plan(first, solved(), GRAPH_ID, "k1")
    first.close()
    second = opened(**store_settings)
    assert records.find_answer(second, "k1") == plan_id
    assert json.loads(records.report_of(second, plan_id))["timeline"] == {"step_bytes": ["plan"]}
    assert second.blobs.get(records.document_key(second, GRAPH_ID)) == b"{}"
    second.close()


def test_the_same_plan_has_one_row_and_the_first_answer_stays(store: Store) -> None:
    ids = [records.save_plan(store, solved(), GRAPH_ID, "k1") for _ in range(2)]
    other = records.save_plan(store, solved("other"), GRAPH_ID, "k1")
    assert ids[0] == ids[1] != other
    assert records.find_answer(store, "k1") == ids[0]
    assert check_integrity(store).plans == 2


def test_a_plan_of_a_graph_nobody_has_leaves_nothing(store: Store) -> None:
    with pytest.raises(sa.exc.IntegrityError):
        records.save_plan(store, solved(), "0" * 64, "k1")
    assert records.find_answer(store, "k1") is None
    assert check_integrity(store).plans == 0


def test_a_second_process_is_kept_out_of_a_folder_and_may_read(store: Store, store_settings: dict[str, Any]) -> None:
    if store.is_sqlite:
        with pytest.raises(Unavailable, match="in use by another process"):
            opened(**store_settings)
    else:
        opened(**store_settings).close()
    reader = Store(Settings(**store_settings))
    assert reader.blobs.get(records.document_key(reader, GRAPH_ID)) == b"{}"
    reader.close()


@pytest.mark.parametrize("id", ["../../etc/passwd", "", "a/b", "a\0b", "x" * 200, ".", "' OR 1=1 --"])
def test_what_a_client_sends_never_becomes_another_place(store: Store, id: str) -> None:
    for ask in (records.document_key, records.report_of, repository.find):
        with pytest.raises(NotFound):
            ask(store, id)
    with pytest.raises(NotFound):
        store.blobs.get(id)


def test_a_name_with_a_nul_is_kept_by_every_database(store: Store) -> None:
    made = records.save_graph(store, graph_read(b'{"name": "a\\u0000b"}', "a\0b"))
    assert made["name"] == "a�b"
    operation = Operation("op1", "k", made["id"], {"loss": "a\0b"}, records.now())
    add(store, operation)
    assert repository.find(store, "op1") == operation


def claimed(store: Store, worker: str, per_tenant: int | None = None) -> Operation:
    begun = repository.claim(store, worker, per_tenant)
    assert begun is not None
    return begun[0]


def test_an_operation_is_a_row(store: Store) -> None:
    assert {field.name for field in fields(Operation)} - {column.name for column in repository.OF_GRAPH} == set(
        operations.c.keys()
    )
    operation = add(store, Operation("op2", "k", GRAPH_ID, {"budget": 0.5}, records.now()))
    assert repository.find(store, "op2") == operation
    begun = claimed(store, "worker")
    assert (begun.state, begun.attempts, begun.worker) == ("running", 1, "worker")
    assert repository.claim(store, "another") is None
    begun.stage, begun.progress = "plan", {"seconds": 0.1}
    assert repository.save_progress(store, [(begun, [JobEvent(3, "progress", begun.progress)])]) == {"op2": False}
    assert repository.cancel(store, "op2") and repository.save_progress(store, [(begun, [])]) == {"op2": True}
    told, now = repository.events_since(store, "op2", 1)
    assert [(event.id, event.name) for event in told] == [(2, "state"), (3, "progress")]
    assert (now.progress, now.stage, now.last_event) == (begun.progress, "plan", 3)
    with pytest.raises(NotFound, match="post it"):
        add(store, Operation("op3", "another", "0" * 64, {}, records.now()))


def test_who_lost_an_operation_changes_nothing_of_it(store: Store) -> None:
    add(store, Operation("op8", "k", GRAPH_ID, {}, records.now()))
    lost = claimed(store, "one")
    assert repository.requeue_of_workers(store, ["one"]) == 1
    mine = claimed(store, "two")
    assert mine.attempts == 2
    for told in ([], [JobEvent(9, "progress", {})]):
        assert repository.save_progress(store, [(lost, told), (mine, [])]) == {"op8": False}  # of the second alone
        assert repository.save_progress(store, [(lost, told)]) == {}
    assert [event.id for event in repository.events_since(store, "op8", 0)[0]] == [1, 2, 3, 4]
    told = [JobEvent(4, "progress", {})]  # as another has told since
    with pytest.raises(repository.ClaimLost):
        records.save_plan(
            store, solved(), GRAPH_ID, "k", lambda c, id: repository.finish(c, lost, told, "succeeded", id)
        )
    assert (check_integrity(store).plans, records.find_answer(store, "k"), repository.find(store, "op8").state) == (
        0,
        None,
        "running",
    )
    records.save_plan(store, solved(), GRAPH_ID, "k", lambda c, id: repository.finish(c, mine, [], "succeeded", id))
    assert repository.find(store, "op8").result == records.find_answer(store, "k")


def test_what_was_kept_as_the_database_went_away_is_told_again_and_there_once(store: Store) -> None:
    add(store, Operation("op8", "k", GRAPH_ID, {}, records.now()))
    claimed(store, "one")
    assert repository.requeue_of_workers(store, ["one"]) == 1
    mine = claimed(store, "one")
    assert mine.attempts == 2
    told = [JobEvent(5, "progress", {"seconds": 0.1}), JobEvent(6, "progress", {"seconds": 0.2})]
    for heard in (told[:1], told):
        assert repository.save_progress(store, [(mine, heard)]) == {"op8": False}
    with store.writing() as connection:
        repository.finish(connection, mine, told, "cancelled")
    events, ended = repository.events_since(store, "op8", 4)
    assert [event.id for event in events] == [5, 6, 7]
    assert (ended.state, ended.last_event) == ("cancelled", 7)


def test_the_queue_is_by_priority_then_by_age(store: Store) -> None:
    for id, priority in (("op1", 200), ("op2", 100), ("op3", 100), ("op4", 1)):
        add(store, Operation(id, id, GRAPH_ID, {}, records.now(), priority=priority))
    assert [claimed(store, "one").id for _ in range(4)] == ["op4", "op2", "op3", "op1"]
    assert repository.claim(store, "one") is None


def test_answered_operations_of_the_queue_end_together_with_one_event_each(store: Store) -> None:
    plan = records.save_plan(store, solved(), GRAPH_ID, "answered")
    curve = {"document": {"points": []}, "plans": []}
    found = records.save_result(store, "curve", curve, GRAPH_ID, "curve")
    for id, key, kind in (("op1", "answered", "plan"), ("op2", "open", "plan"), ("op3", "curve", "curve")):
        add(store, Operation(id, key, GRAPH_ID, {}, records.now(), kind))
    with store.writing() as connection:
        assert repository.end_answered(connection) == 2
        assert repository.end_answered(connection) == 0
    one, two, three = (repository.find(store, id) for id in ("op1", "op2", "op3"))
    assert (one.state, one.answer, three.state, three.answer) == ("succeeded", plan, "succeeded", found)
    assert two.state == "queued"
    events, _ = repository.events_since(store, "op1", 0)
    assert [(event.id, event.data["state"]) for event in events] == [(1, "queued"), (2, "succeeded")]


def test_tenants_take_turns_and_have_no_more_than_their_share(store: Store) -> None:
    for id, tenant in (("op1", "a"), ("op2", "a"), ("op3", "a"), ("op4", "b"), ("op5", None)):
        add(store, Operation(id, id, GRAPH_ID, {}, records.now(), tenant=tenant))
    begun = claimed(store, "one", 1)
    assert begun.id == "op1"  # all are new here, so the oldest is first
    assert {claimed(store, "one", 1).id for _ in range(2)} == {"op4", "op5"}
    assert repository.claim(store, "one", 1) is None  # of every tenant one is running
    with store.writing() as connection:
        repository.finish(connection, begun, [], "cancelled")
    assert claimed(store, "one", 1).id == "op2"
    assert claimed(store, "one", 2).id == "op3"


def test_an_operation_is_claimed_once_by_workers_that_look_at_once(store: Store) -> None:
    ids = [f"op{n}" for n in range(10, 40)]
    for id in ids:
        add(store, Operation(id, id, GRAPH_ID, {}, records.now()))
    begun: list[str] = []

    def work(worker: str) -> None:
        while (operation := repository.claim(store, worker)) is not None:
            begun.append(operation[0].id)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in ("one", "two", "three")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(begun) == ids


def test_a_question_has_one_unfinished_operation(store: Store) -> None:
    first = add(store, Operation("op9", "k", GRAPH_ID, {}, records.now()))
    assert add(store, Operation("opA", "k", GRAPH_ID, {}, records.now())).id == first.id
    with pytest.raises(sa.exc.IntegrityError), store.writing() as connection:  # as two processes at once would
        row = {name: said for name, said in asdict(replace(first, id="opB")).items() if name in operations.c}
        connection.execute(sa.insert(operations).values(row))


def test_an_idempotency_key_belongs_to_one_body(store: Store) -> None:
    assert records.claim_key(store, "key", "/v1/plans", b"one") is None
    add(store, Operation("op4", "k", GRAPH_ID, {}, records.now()))
    records.bind_key(store, "key", "/v1/plans", "op4")
    assert records.claim_key(store, "key", "/v1/plans", b"one") == "op4"
    assert records.claim_key(store, "key", "/v1/graphs", b"two") is None
    with pytest.raises(Conflict):
        records.claim_key(store, "key", "/v1/plans", b"two")


def test_the_tables_are_what_the_migrations_make(store: Store) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with store.reading() as connection:
        assert compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), metadata) == []


@contextlib.contextmanager
def of_revision(store: Store, revision: str) -> Iterator[tuple[sa.Connection, str]]:
    """(a transaction on the schema of that revision with one graph, the time it was made)."""
    with store.engine.execution_options(**SQLITE_WRITES).begin() as connection:
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        at = records.now()
        graph = {"id": GRAPH_ID, "name": "", "nodes": 1, "values": 1, "format": "native", "forward_only": False}
        connection.execute(sa.insert(graphs).values(graph | {"created_at": at, "seen_at": at, "blob": GRAPH_ID}))
        yield connection, at


def test_what_an_older_program_left_running_waits_again_once_a_question(tmp_path: Path) -> None:
    older = Store(Settings(data=tmp_path))
    with of_revision(older, "0001") as (connection, at):
        for id in ("op1", "op2"):
            left = {"id": id, "key": "k", "graph_id": GRAPH_ID, "fields": {}, "state": "running", "created_at": at}
            more = {"kind": "plan", "attempts": 1, "last_event": 4, "cancel_requested": False}
            connection.execute(sa.insert(operations).values(left | more))
    migrate(older.engine)
    kept = [repository.find(older, id) for id in ("op1", "op2")]
    assert [(one.state, one.cancel_requested) for one in kept] == [("queued", True), ("queued", False)]
    older.close()


def test_operations_of_an_older_program_keep_their_events_and_keys(tmp_path: Path) -> None:
    older = Store(Settings(data=tmp_path))
    with of_revision(older, "0003") as (connection, at):
        asked = {"id": "op1", "key": "k", "graph_id": GRAPH_ID, "fields": {}, "state": "queued", "created_at": at}
        more = {"kind": "plan", "attempts": 0, "last_event": 1, "cancel_requested": False}
        connection.execute(sa.insert(operations).values(asked | more))
        said = {"operation_id": "op1", "id": 1, "name": "state", "data": {}}
        connection.execute(sa.insert(events).values(said))
        bound = {"id": "i", "body": "b", "operation_id": "op1", "created_at": at}
        connection.execute(sa.insert(idempotency_keys).values(bound))
    migrate(older.engine)
    told, kept = repository.events_since(older, "op1", 0)
    assert ([event.id for event in told], kept.state, kept.graph_id) == ([1], "queued", GRAPH_ID)
    assert older.row(idempotency_keys, "i")["operation_id"] == "op1"
    with pytest.raises(sa.exc.IntegrityError), older.writing() as connection:  # which is looked at again
        connection.execute(sa.update(operations).values(found="nothing"))
    older.close()


def test_what_waited_in_the_queue_of_an_older_program_keeps_its_priority(
    store_settings: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    if on_postgresql := "database_url" in store_settings:
        name = f"{store_settings['data'].name}-old"
        store_settings["database_url"] = request.getfixturevalue("postgres").database(name)
    older = Store(Settings(**store_settings))
    with of_revision(older, "0010") as (connection, at):
        if on_postgresql:
            connection.exec_driver_sql("CREATE SCHEMA dbos")
        table = "dbos.workflow_status" if on_postgresql else "workflow_status"
        connection.exec_driver_sql(f"CREATE TABLE {table} (workflow_uuid TEXT PRIMARY KEY, priority INTEGER)")
        inputs = table.replace("status", "input")
        connection.exec_driver_sql(f"CREATE TABLE {inputs} (workflow_uuid TEXT REFERENCES {table})")
        for id, priority in (("op1", 300), ("op2", 1), ("op3", 100)):
            left = {"id": id, "key": id, "graph_id": GRAPH_ID, "fields": {}, "state": "queued", "created_at": at}
            more = {"kind": "plan", "attempts": 0, "last_event": 1, "cancel_requested": False, "wanted": True}
            columns = {name: operations.c[name] for name in (left | more)} | {"child_deaths": operations.c.child_deaths}
            row = sa.table("operations", *(sa.column(name, column.type) for name, column in columns.items()))
            connection.execute(sa.insert(row).values(left | more | {"child_deaths": 0}))
            connection.exec_driver_sql(f"INSERT INTO {table} VALUES ('{id}', {priority})")
            connection.exec_driver_sql(f"INSERT INTO {inputs} VALUES ('{id}')")
    migrate(older.engine)
    assert [claimed(older, "one").id for _ in range(3)] == ["op2", "op3", "op1"]
    with older.reading() as connection:
        left = sa.inspect(connection)
        assert "dbos" not in left.get_schema_names() and not {"workflow_status", "workflow_input"} & set(
            left.get_table_names()
        )
    older.close()


def curve_found(*orders: str) -> dict[str, Any]:
    """What a child says of a curve it has made."""
    return {"document": {"points": [{} for _ in orders], "elapsed": {}}, "plans": [solved(order) for order in orders]}


def test_a_result_is_kept_once_with_the_plans_it_names(store: Store) -> None:
    ids = [records.save_result(store, "curve", curve_found("a", "b", "a"), GRAPH_ID, "k1") for _ in range(2)]
    assert ids[0] == ids[1] == records.find_answer(store, "k1")
    document = json.loads(records.result_of(store, "curve", ids[0]))
    paths = [point["plan"] for point in document["points"]]
    assert paths[0] == paths[2] != paths[1]
    assert json.loads(records.report_of(store, paths[1].rpartition("/")[2]))["plan"]["order"] == "b"
    for kind, id in (("fit", ids[0]), ("curve", "0" * 64)):
        with pytest.raises(NotFound, match=f"no {kind}"):
            records.result_of(store, kind, id)
    packed = records.save_result(store, "layout", {"document": {"offsets": [0]}, "plans": []}, None)
    assert json.loads(records.result_of(store, "layout", packed)) == {"offsets": [0]}
    found = check_integrity(store)
    assert (found.faults, found.results, found.plans) == ([], 2, 2)
    with store.writing() as connection:
        connection.execute(sa.delete(result_plans).where(result_plans.c.result_id == ids[0]))
    assert any("2 in the document" in said for said in check_integrity(store).faults)


def test_a_result_holds_its_plans_and_an_operation_its_question(store: Store) -> None:
    curve = records.save_result(store, "curve", curve_found("a"), GRAPH_ID, "k1")
    at = records.now()
    done = Operation("op1", "k1", GRAPH_ID, {}, at, "curve", "succeeded", ended_at=at, found=curve)
    add(store, done)
    asked = Operation("op2", "k2", None, {}, at, "layout")
    repository.submit(store, asked, 1, 100, b"buffers")
    aged(store, timedelta(days=10))
    with store.writing() as connection:
        connection.execute(sa.update(operations).where(operations.c.id == "op1").values(ended_at=at))
    assert (collect(store, 9, 9).results, check_integrity(store).plans) == (0, 1)
    assert records.solve_payload(store, None, {}, asked.asked)["data"] == b"buffers"
    aged(store, timedelta(days=10))
    repository.cancel(store, "op2")
    aged(store, timedelta(days=10))
    taken = collect(store, 9, 9)
    assert (taken.operations, taken.results, taken.plans) == (2, 1, 1)
    assert records.find_answer(store, "k1") is None
    aged(store, 2 * GRACE)
    collect(store, 9, 9)
    found = check_integrity(store)
    assert (found.faults, found.blobs, found.unnamed_blobs) == ([], 0, 0)


@pytest.mark.heavy
def test_roles_that_read_the_views_of_savings_read_those_of_a_newer_revision(postgres: Cluster, tmp_path: Path) -> None:
    older = Store(Settings(data=tmp_path, database_url=postgres.database(tmp_path.name)))
    with of_revision(older, "0015") as (connection, _):
        connection.exec_driver_sql('CREATE ROLE "a viewer"')
        connection.exec_driver_sql('GRANT SELECT ON savings_by_model TO "a viewer"')
        connection.exec_driver_sql("GRANT SELECT ON savings_by_day TO PUBLIC")
    migrate(older.engine)
    may = "SELECT has_table_privilege('a viewer', 'savings_by_{}', 'SELECT')"
    with older.reading() as connection:
        allowed = [connection.scalar(sa.text(may.format(by))) for by in ("model", "day", "planner")]
    assert allowed == [True, True, False]
    older.close()


def test_a_database_of_a_newer_program_is_refused_unless_it_supports_this_one(store_settings: dict[str, Any]) -> None:
    made = opened(**store_settings)
    with made.writing() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = 'from the future'"))
    made.close()
    served = opened(**store_settings)
    with served.writing() as connection:
        connection.execute(sa.update(schema_support).values(oldest_revision="from the future"))
    served.close()
    with pytest.raises(Unavailable, match="newer version of remat"):
        opened(**store_settings)


def test_a_folder_of_an_older_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    with pytest.raises(Unavailable, match="choose another folder"):
        Store(Settings(data=tmp_path))


def test_a_url_that_nobody_reads_is_refused_without_its_password(tmp_path: Path) -> None:
    for urls in ({"database_url": "mysql://me:secret@host/name"}, {"blobs_url": "ftp://me:secret@host"}):
        with pytest.raises(BadUsage) as caught:
            Store(Settings(data=tmp_path, **urls))  # type: ignore[arg-type]
        assert "secret" not in str(caught.value)


def test_blobs_may_lie_in_another_folder(tmp_path: Path) -> None:
    store = opened(tmp_path / "rows", blobs_url=(tmp_path / "my blobs").as_uri())
    assert len(list((tmp_path / "my blobs").rglob("*.zst"))) == 1
    assert not (tmp_path / "rows" / "blobs").exists()
    assert check_integrity(store).faults == []
    store.close()


def test_savings_are_columns_and_views(store: Store) -> None:
    records.save_plan(store, solved(budget="50%"), GRAPH_ID)
    records.save_plan(store, solved(budget="30%", status="proven", saved_bytes=70, saved=0.7), GRAPH_ID)
    records.save_plan(store, solved(planner="milp", saved_bytes=60, saved=0.6, overhead=None), GRAPH_ID)
    with store.reading() as connection:
        by_planner = connection.execute(sa.text("SELECT * FROM savings_by_planner ORDER BY planner")).mappings().all()
        models = connection.execute(sa.text("SELECT model, plans, saved_bytes FROM savings_by_model")).all()
        budgets = connection.execute(sa.text("SELECT budget, plans FROM savings_by_budget ORDER BY budget")).all()
        days = connection.execute(sa.text("SELECT day, plans FROM savings_by_day")).all()
    assert [(row["planner"], row["plans"], row["proven"]) for row in by_planner] == [("greedy", 2, 1), ("milp", 1, 0)]
    assert (by_planner[0]["saved_bytes"], by_planner[0]["saved"]) == (120, pytest.approx(0.6))
    assert (by_planner[1]["overhead"], by_planner[1]["solver_seconds"]) == (None, 2.0)
    assert models == [("net", 3, 180)]
    assert budgets == [("30%", 1), ("50%", 2)]
    assert days == [(records.now()[:10], 3)]


def test_the_walk_finds_what_does_not_fit_together(store: Store) -> None:
    plan_id = records.save_plan(store, solved(), GRAPH_ID)
    gone = records.save_plan(store, solved("gone"), GRAPH_ID)
    assert not check_integrity(store).faults
    with store.writing() as connection:
        connection.execute(sa.update(plans).where(plans.c.id == plan_id).values(saved_bytes=51))
    store.blobs.remove(store.row(plans, gone)["figures"])
    add(store, Operation("op5", "k", GRAPH_ID, {}, records.now(), state="succeeded"))
    found = check_integrity(store)
    assert found.fault_count == 4
    for said in (f"plan {plan_id}: column saved_bytes is 51", f"plan {gone}: no blob", "op5: succeeded, but"):
        assert any(said in fault for fault in found.faults), found.faults


def test_tags_and_notes_are_of_a_tenant_and_go_with_their_plan(store: Store) -> None:
    plan_id = records.save_plan(store, solved(), GRAPH_ID)
    other = records.save_plan(store, solved("other"), GRAPH_ID)
    assert annotate(store, plan_id, None, ["b", "a", "b"], "of nobody") == {"tags": ["a", "b"], "note": "of nobody"}
    assert annotate(store, plan_id, "one", ["c"]) == {"tags": ["c"], "note": None}
    assert annotate(store, plan_id, "one", None, "kept") == {"tags": ["c"], "note": "kept"}
    found = annotations_of(store, [plan_id, other], "one")
    assert found == {plan_id: {"tags": ["c"], "note": "kept"}, other: {"tags": [], "note": None}}
    assert (known_tags(store, None), known_tags(store, "one"), known_tags(store, "two")) == (["a", "b"], ["c"], [])
    with pytest.raises(NotFound):
        annotate(store, "0" * 64, None, ["x"])
    aged(store, timedelta(days=10))
    assert collect(store, 9, 9).plans == 2
    with store.reading() as connection:
        for table in (plan_tags, plan_notes):
            assert connection.scalar(sa.select(sa.func.count()).select_from(table)) == 0


def aged(store: Store, by: timedelta) -> None:
    """Everything in the store becomes so much older."""
    with store.writing() as connection:
        for table in (graphs, plans, results, operations, idempotency_keys):
            for name in {"created_at", "seen_at", "ended_at"} & set(table.c.keys()):
                for id, at in connection.execute(sa.select(table.c.id, table.c[name])).all():
                    moved = None if at is None else to_timestamp(datetime.fromisoformat(at) - by)
                    connection.execute(sa.update(table).where(table.c.id == id).values({name: moved}))
    assert store.blobs.folder is not None
    for path in store.blobs.folder.glob("*/*"):
        at = path.stat().st_mtime - by.total_seconds()
        os.utime(path, (at, at))


def test_old_things_go_and_what_they_name_goes_with_them(store: Store) -> None:
    plan_id = records.save_plan(store, solved(), GRAPH_ID, "k1")
    at = records.now()
    add(store, Operation("op6", "k1", GRAPH_ID, {}, at, state="succeeded", result=plan_id, ended_at=at))
    add(store, Operation("op7", "k2", GRAPH_ID, {}, records.now()))
    records.claim_key(store, "key", "/v1/plans", b"one")
    aged(store, timedelta(days=10))
    fresh = records.save_plan(store, solved("fresh"), GRAPH_ID, "k3")
    assert collect(store, None, 30).plans == 0
    assert check_integrity(store).plans == 2
    taken = collect(store, 9, 9)
    assert (taken.operations, taken.plans, taken.graphs, taken.idempotency_keys) == (1, 1, 0, 1)
    assert taken.blobs == 2  # figures and timeline of the old plan
    assert records.find_answer(store, "k1") is None
    assert json.loads(records.report_of(store, fresh))["id"] == fresh
    found = check_integrity(store)
    assert (found.faults, found.unnamed_blobs, found.operations) == ([], 0, 1)  # the queued one stays, and its graph


def test_a_blob_that_no_row_names_yet_is_left_alone_until_it_is_old(store: Store) -> None:
    key = store.blobs.put(b"about to be named")
    assert collect(store, 1, 1).blobs == 0
    aged(store, 2 * GRACE)
    assert store.blobs.put(b"about to be named") == key  # as young as new again
    assert collect(store, 1, 1).blobs == 0
    aged(store, 2 * GRACE)
    assert collect(store, 1, 1).blobs == 1
    assert not store.blobs.has(key)


def test_a_blob_collected_before_its_row_is_committed_is_written_again(store: Store) -> None:
    with store.writing(b"named late"):
        store.blobs.remove(hashlib.sha256(b"named late").hexdigest())
    assert store.blobs.has(hashlib.sha256(b"named late").hexdigest())


def test_half_written_files_are_never_seen_and_go_in_time(store: Store) -> None:
    assert store.blobs.folder is not None
    half = store.blobs.folder / GRAPH_ID[:2] / f"{GRAPH_ID}.zst#1"
    half.write_bytes(b"half")
    assert check_integrity(store).faults == []
    assert collect(store, None, 1).unfinished_files == 0
    aged(store, 2 * GRACE)
    assert collect(store, None, 1).unfinished_files == 1
    assert not half.exists()
    half.symlink_to("has its final name by now")
    assert collect(store, None, 1).unfinished_files == 0


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "remat.sqlite").write_bytes(b"something else entirely, of some length" * 100)
    with pytest.raises(Unavailable, match="damaged"):
        opened(tmp_path)


def test_a_database_that_somebody_writes_to_for_long_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.store.database.BUSY_SECONDS", 0.05)
    store = opened(tmp_path)
    other = sqlite3.connect(tmp_path / "remat.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="retry"):
        records.save_plan(store, solved(), GRAPH_ID)
    other.close()
    records.save_plan(store, solved(), GRAPH_ID)
    store.close()


def test_migrating_twice_changes_nothing(tmp_path: Path) -> None:
    store = Store(Settings(data=tmp_path))
    before, after = migrate(store.engine)
    assert before is None
    assert migrate(store.engine) == (after, after)
    store.close()


def test_a_folder_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CannotWrite, match="--data"):
        Store(Settings(data=tmp_path / "file" / "data"))
