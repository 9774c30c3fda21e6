"""Whose a batch is: its tenant's, and so are the operations that solve its items, whichever worker began them."""

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
    """The vault, to which operations of a tenant's batches are the tenant's."""

    def __init__(self, vault: KeyStore, store: Store):
        self._vault, self._store = vault, store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._vault, name)

    def granted(self, tenant: str, kind: str, ids: Collection[str]) -> set[str]:
        found = self._vault.granted(tenant, kind, ids)
        if kind == "operations" and (others := set(ids) - found):
            found |= repository.operations_of(self._store, tenant, others)
        return found

    def grants(self, tenant: str, kind: str) -> list[str]:
        found = self._vault.grants(tenant, kind)
        return [*found, *repository.item_operations_of(self._store, tenant)] if kind == "operations" else found


def batch_owner(service: Service) -> BatchOwner:
    """Who would own a batch that is made now."""
    caller: Caller | None = getattr(service, "caller", None)
    if caller is None:
        return BatchOwner()
    solves = caller.key.quotas.solves
    # One is left for what its people ask meanwhile.
    return BatchOwner(caller.key.tenant, caller.key.id, None if solves is None else max(1, solves - 1))


def charge_batch(service: Service, seconds: float, make: Callable[[], BatchRecord]) -> BatchRecord:
    """The batch that is made or begun again, counted against the key. Raises OverQuota before it is."""
    caller: Caller | None = getattr(service, "caller", None)
    return make() if caller is None else caller.charge_batch(seconds, service.jobs, make)


def require_batch(service: Service, id: str) -> BatchRecord:
    """The batch, which is the caller's. Raises NotFound."""
    owner, batch = batch_owner(service), repository.find(service.store, id)
    if owner.tenant is not None and batch.tenant != owner.tenant:
        raise NotFound(f"there is no batch {id[:80]!r}")
    return batch
