"""Ownership of batches, and their charges to the quotas of a key."""

from __future__ import annotations

from collections.abc import Callable

from app.api.auth.tenant_view import Caller
from app.api.service.service import Service
from app.errors import NotFound
from app.jobs.batches import repository
from app.jobs.batches.repository import BatchOwner, BatchRecord


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
