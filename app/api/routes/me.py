"""`/v1/me`: the caller, with tenant, scopes and quotas."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import anyio.to_thread
import msgspec
from fastapi import APIRouter, Request, Response

from app.api.auth.api_keys import ApiKey, Quotas
from app.api.auth.middleware import CALLER
from app.api.auth.tenant_view import Caller
from app.api.routes.dependencies import ServiceDep
from app.api.wire.openapi import problem_docs, ref, response_docs
from app.store.tables import to_timestamp

router = APIRouter(tags=["catalogue"])


@router.get(
    "/v1/me",
    response_class=Response,
    responses=response_docs(200, "The caller", {"application/json": ref("Me")}) | problem_docs(422),
)
async def get_me(request: Request, service: ServiceDep) -> Response:
    """Tenant, API key, quotas and their use; without authentication, tenant and key are null."""
    caller: Caller | None = request.scope.get(CALLER)
    body: dict[str, Any] = {"tenant": None, "key": None, "quotas": asdict(Quotas()), "used": None}
    if caller is not None:
        solves, seconds = await anyio.to_thread.run_sync(caller.usage, service.jobs)
        used = {"solves": solves, "solver_seconds": seconds}
        body = {"tenant": caller.key.tenant, "key": _key(caller.key), "quotas": asdict(caller.key.quotas), "used": used}
    return Response(msgspec.json.encode(body), 200, {"Cache-Control": "no-store"}, "application/json")


def _key(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "scopes": sorted(key.scopes),
        "created_at": _time(key.created_at),
        "expires_at": None if key.expires_at is None else _time(key.expires_at),
    }


def _time(seconds: float) -> str:
    return to_timestamp(datetime.fromtimestamp(seconds, UTC))
