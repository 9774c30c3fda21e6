"""View of the service for one tenant: resources of other tenants do not exist, and the quotas of the key apply.

Ownership: a tenant owns graphs it posted or derived; plans inherit from their graph, operations from their request.
Request keys are scoped to the tenant, so a stored result never reveals a request of another tenant.
"""

from __future__ import annotations

import copy
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import anyio.to_thread
import sqlalchemy as sa

from app.api.auth.api_keys import ApiKey
from app.api.auth.key_store import DAY_S, KeyStore
from app.api.service.service import Service
from app.errors import NotFound, OverQuota
from app.jobs.batches.operations import BatchOperation
from app.jobs.batches.repository import BatchRecord
from app.jobs.interface import JobEvent, Jobs, Operation, Page, SolveRequest
from app.store.maintenance.deletion import delete_graph, fitted_graphs
from app.store.store import Store
from app.store.tables import graphs, operations, plans, results
from app.store.tenancy import insert_owner, owns, scoped_name
from planner.request.field_kinds import DEFAULT_SEARCH_SECONDS

RETRY_S = 5
MAX_REFUSED_AUDITS = 60  # audit entries per minute for refused requests of one key, or without a valid key


class AccessControl:
    """Key store of a store, and quota lock of one serving process."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time):
        self.key_store, self.clock = KeyStore(store), clock
        self.lock = threading.Lock()
        self._minute, self._refused = 0, Counter[str]()  # audit entries of refused requests in this minute, by key

    def may_audit(self, key: ApiKey | None) -> bool:
        """Rate limit of audit entries for refused requests, by key, so that they cannot fill the disk."""
        id, minute = "" if key is None else key.id, int(self.clock() // 60)
        if minute != self._minute:
            self._minute = minute
            self._refused.clear()
        self._refused[id] += 1
        return self._refused[id] <= MAX_REFUSED_AUDITS


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated caller of a request."""

    access: AccessControl
    key: ApiKey

    def own(self, text: str) -> str:
        """`text` scoped to the tenant."""
        return scoped_name(self.key.tenant, text)

    @contextmanager
    def charging(self) -> Iterator[None]:
        """Exclude other requests that check or charge the quotas of the key, of other processes too."""
        with self.access.lock, self.access.key_store.quota_lock(self.key.id):
            yield

    def require_quota(self, seconds: float, jobs: Jobs) -> None:
        """Raises OverQuota unless a solve of `seconds` may start."""
        key, access = self.key, self.access
        running = self._running(jobs)
        if key.quotas.solves is not None and len(running) >= key.quotas.solves:
            raise OverQuota(
                f"{len(running)} solves of this key are running or queued, the quota is {key.quotas.solves}; "
                "wait for one to end, or cancel it",
                code="quota_solves",
                limit={"name": "solves", "value": key.quotas.solves},
                headers={"Retry-After": str(RETRY_S)},
            )
        self.require_seconds(seconds, access.clock())

    def require_seconds(self, seconds: float, now: float) -> None:
        """Raises OverQuota unless `seconds` remain of the daily quota; call `_running` first to settle ended solves."""
        key = self.key
        spent = self.access.key_store.spent(key.id, now)
        if key.quotas.solver_seconds is not None and spent + seconds > key.quotas.solver_seconds:
            raise OverQuota(
                f"the key has used {spent:g} of its {key.quotas.solver_seconds:g} solver seconds today, "
                f"and the request needs {seconds:g}; reduce search_seconds, or retry tomorrow (UTC)",
                code="quota_seconds",
                limit={"name": "solver_seconds", "value": key.quotas.solver_seconds},
                headers={"Retry-After": str(int(DAY_S - now % DAY_S) + 1)},
            )

    def usage(self, jobs: Jobs) -> tuple[int, float]:
        """(unfinished solves, solver seconds charged today) of the key."""
        return len(self._running(jobs)), self.access.key_store.spent(self.key.id, self.access.clock())

    def _running(self, jobs: Jobs) -> list[str]:
        """Ids of unfinished solves, a batch once per item in the queue; ended solves are charged their actual time."""
        key_store, running = self.access.key_store, list[str]()
        for id in key_store.running(self.key.id):
            try:
                operation = jobs.status(id.partition(".")[0])
            except NotFound:
                key_store.settle(self.key.id, id, 0.0)
                continue
            if operation.finished:
                key_store.settle(self.key.id, id, _seconds(operation))
            else:
                running += [id] * (operation.in_queue if isinstance(operation, BatchOperation) else 1)
        return running

    def charge_batch(self, seconds: float, jobs: Jobs, make: Callable[[], BatchRecord]) -> BatchRecord:
        """The batch that `make` creates, charged with `seconds`. Raises OverQuota before calling `make`."""
        access = self.access
        with self.charging():
            self._running(jobs)
            self.require_seconds(seconds, access.clock())
            batch = make()
            access.key_store.charge(self.key.id, f"{batch.operation_id}.{batch.runs}", seconds, access.clock())
        return batch


def _seconds(operation: Operation) -> float:
    if isinstance(operation, BatchOperation):
        return operation.solver_seconds
    if operation.started_at is None or operation.ended_at is None:
        return 0.0
    began, ended = (datetime.fromisoformat(at) for at in (operation.started_at, operation.ended_at))
    return max(0.0, (ended - began).total_seconds())


def view_for(service: Service, caller: Caller) -> Service:
    """The service restricted to the resources of the tenant and the limits of the key."""
    restricted: Any = copy.copy(service)
    quotas = caller.key.quotas
    restricted.settings = service.settings.lowered(
        {"nodes": quotas.nodes, "body_bytes": quotas.bytes, "decompressed_bytes": quotas.bytes}
    )
    restricted.store = _Store(service.store, caller.key.tenant)
    restricted.jobs = _Jobs(service.jobs, caller)
    restricted.caller, restricted.tenant = caller, caller.key.tenant
    view: Service = restricted
    return view


def scope_request(service: Service, question: SolveRequest) -> SolveRequest:
    """The request with its key scoped to the tenant; unchanged without authentication."""
    caller: Caller | None = getattr(service, "caller", None)
    if caller is None:
        return question
    return replace(question, key=caller.own(question.key), owner=caller.key.tenant)


def tenant_of(service: Service) -> str | None:
    """Tenant of the view; None: no authentication."""
    caller: Caller | None = getattr(service, "caller", None)
    return None if caller is None else caller.key.tenant


async def own_result(service: Service, kind: str, id: str) -> None:
    """Make the tenant an owner of a stored curve, fit or layout that answers its request; plans follow their graph."""
    if kind != "plan" and (tenant := tenant_of(service)) is not None:
        await anyio.to_thread.run_sync(_own, service.store, id, tenant)


def _own(store: Store, id: str, tenant: str) -> None:
    with store.writing() as connection:
        insert_owner(connection, results, id, tenant)


def plan_scope(service: Service) -> str | None:
    """Tenant whose plans aggregates cover; None: all plans (operators, or no authentication)."""
    caller: Caller | None = getattr(service, "caller", None)
    return None if caller is None or "operator" in caller.key.scopes else caller.key.tenant


def delete_owned_graph(service: Service, graph_id: str) -> None:
    """Delete the graph and what was made of it; other tenants who own the graph keep it.

    The graph itself goes last, so that a deletion that was refused or cut off can be repeated. Raises NotFound, InUse.
    """
    service.has_graph(graph_id)
    tenant = tenant_of(service)
    for id in (*fitted_graphs(service.store, graph_id, tenant), graph_id):
        delete_graph(service.store, id, tenant)


class _Store:
    """The store restricted to the rows of the tenant."""

    def __init__(self, store: Store, tenant: str):
        self._store, self._tenant = store, tenant

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def row(self, table: sa.Table, id: str) -> dict[str, Any]:
        if table in (graphs, results):
            self._require_owner(table, id)  # before the lookup, so that timing reveals nothing
        found = self._store.row(table, id)
        if table is operations and found["tenant"] != self._tenant:
            raise NotFound(f"no operation {id[:80]!r}")
        if table is plans and not owns(self._store, graphs, found["graph_id"], self._tenant):
            raise NotFound(f"no plan {id[:80]!r}")
        return found

    def _require_owner(self, table: sa.Table, id: str) -> None:
        """Raises NotFound, with the same message as for a missing row."""
        if not owns(self._store, table, id, self._tenant):
            raise NotFound(f"no {table.name[:-1]} {id[:80]!r}")


class _Jobs:
    """`app.jobs.interface.Jobs` restricted to the operations of the tenant."""

    def __init__(self, jobs: Jobs, caller: Caller):
        self._jobs, self._caller = jobs, caller

    def start(self) -> None:
        self._jobs.start()

    def submit(self, question: SolveRequest) -> Operation:
        seconds = float(question.fields.get("search_seconds") or DEFAULT_SEARCH_SECONDS)
        access = self._caller.access
        with self._caller.charging():
            self._caller.require_quota(seconds, self._jobs)
            operation = self._jobs.submit(question)
            access.key_store.charge(self._caller.key.id, operation.id, seconds, access.clock())
        return operation

    def status(self, id: str) -> Operation:
        operation = self._jobs.status(id)
        if operation.tenant != self._caller.key.tenant:
            raise NotFound(f"no operation {id[:80]!r}")
        return operation

    async def wait(self, id: str, seconds: float) -> Operation:
        await anyio.to_thread.run_sync(self.status, id)
        return await self._jobs.wait(id, seconds)

    async def stream(self, id: str, after: int) -> AsyncIterator[JobEvent | None]:
        await anyio.to_thread.run_sync(self.status, id)
        async for event in self._jobs.stream(id, after):
            yield event

    def cancel(self, id: str) -> Operation:
        self.status(id)
        return self._jobs.cancel(id)

    def list(
        self, after: str | None, limit: int, state: str | None, tenant: str | None = None, by_items: bool = False
    ) -> Page:
        return self._jobs.list(after, limit, state, self._caller.key.tenant, by_items)

    def drain(self) -> None:
        self._jobs.drain()

    def close(self) -> None:
        self._jobs.close()
