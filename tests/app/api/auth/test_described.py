"""Requests made from the OpenAPI document, with a key of a tenant, find no answer it does not promise."""

from __future__ import annotations

from pathlib import Path

import pytest
import schemathesis

from app.api.auth.api_keys import SCOPES, Quotas, new_key
from app.api.auth.tenant_view import AccessControl
from app.api.main import create_app
from app.settings import Settings
from tests.app.api.test_schemathesis import faults


@pytest.mark.heavy
def test_answers_with_a_key_are_as_documented(tmp_path: Path) -> None:
    app = create_app(Settings(data=tmp_path, search_seconds=1, wait_seconds=5, drain_seconds=0), AccessControl)
    access = app.state.access
    text, key = new_key("n", "t", frozenset(SCOPES), Quotas(solves=2, solver_seconds=1e6), access.clock())
    access.key_store.add(key)
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    schema.config.headers = {"Authorization": f"Bearer {text}"}
    try:
        assert faults(schema, 3, ["fuzzing"]) == []
        assert all(entry.status != 401 for entry in access.key_store.entries(10**6))
    finally:
        app.state.service.close()
