"""Ownership of batches: a tenant owns its batches and the operations of their items."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from app.api.auth.key_store import KeyStore
from app.api.auth.tenant_view import Caller
from app.api.service.service import Service
from app.errors import NotFound
from app.jobs.batches import repository
from app.jobs.batches.repository import BatchOwner, BatchRecord
from app.store.store import Store


class BatchKeyStore:
    """A key store that grants a tenant the operations of its batches."""

    def __init__(self, key_store: KeyStore, store: Store):
        self._key_store, self._store = key_store, store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._key_store, name)

    def granted(self, tenant: str, kind: str, ids: Collection[str]) -> set[str]:
        found = self._key_store.granted(tenant, kind, ids)
        if kind == "operations" and (others := set(ids) - found):
            found |= repository.operations_of(self._store, tenant, others)
        return found

    def grants(self, tenant: str, kind: str) -> list[str]:
        found = self._key_store.grants(tenant, kind)
        return [*found, *repository.item_operations_of(self._store, tenant)] if kind == "operations" else found


def batch_owner(service: Service) -> BatchOwner:
    """Owner of a batch created by the caller."""
    caller: Caller | None = getattr(service, "caller", None)
    if caller is None:
        return BatchOwner()
    solves = caller.key.quotas.solves
    # One solve is reserved for interactive requests.
    return BatchOwner(caller.key.tenant, caller.key.id, None if solves is None else max(1, solves - 1))


def charge_batch(service: Service, seconds: float, make: Callable[[], BatchRecord]) -> BatchRecord:
    """The batch that `make` creates or retries, charged to the key. Raises OverQuota before calling `make`."""
    caller: Caller | None = getattr(service, "caller", None)
    return make() if caller is None else caller.charge_batch(seconds, service.jobs, make)


def require_batch(service: Service, id: str) -> BatchRecord:
    """The batch, if the caller owns it. Raises NotFound."""
    owner, batch = batch_owner(service), repository.find(service.store, id)
    if owner.tenant is not None and batch.tenant != owner.tenant:
        raise NotFound(f"no batch {id[:80]!r}")
    return batch
