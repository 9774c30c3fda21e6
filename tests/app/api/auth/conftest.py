"""A service that asks for keys, and two tenants of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.api.auth.api_keys import DEFAULT_SCOPES, Quotas, new_key
from app.api.auth.tenant_view import AccessControl
from app.api.main import create_app
from app.settings import Settings


class Clock:
    """Time that stands still until it is told to go."""

    def __init__(self) -> None:
        self.after = 1_800_000_000.0

    def __call__(self) -> float:
        return self.after


class Gated:
    """A service behind its gate, and keys to it."""

    def __init__(self, client: TestClient, access: AccessControl, clock: Clock, folder: Path):
        self.client, self.access, self.clock, self.folder = client, access, clock, folder

    def key(
        self, tenant: str = "a", scopes: frozenset[str] = DEFAULT_SCOPES, seconds: float | None = None, **quotas: Any
    ) -> dict[str, str]:
        """The header of a new key."""
        expires = None if seconds is None else self.clock.after + seconds
        text, key = new_key("test", tenant, scopes, Quotas(**quotas), self.clock.after, expires)
        self.access.key_store.add(key)
        return {"Authorization": f"Bearer {text}"}

    def plan(self, headers: dict[str, str], **fields: Any) -> Any:
        return self.client.post("/v1/plans", json={"planner": "greedy", "iterations": 5, **fields}, headers=headers)


@pytest.fixture(scope="package")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gated]:
    folder, clock = tmp_path_factory.mktemp("gated"), Clock()
    settings = Settings(data=folder, workers=1, queue=4, wait_seconds=60, drain_seconds=1)
    app = create_app(settings, lambda store: AccessControl(store, clock))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield Gated(client, app.state.access, clock, folder)


@pytest.fixture(scope="package")
def tenant(gated: Gated) -> Callable[[str], dict[str, str]]:
    """The header of one key per tenant."""
    made: dict[str, dict[str, str]] = {}

    def headers(name: str) -> dict[str, str]:
        return made.setdefault(name, gated.key(name))

    return headers
