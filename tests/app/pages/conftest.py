"""Clients of a service with stored plans, and of an empty one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from app.api.main import create_app
from app.settings import Settings
from tests.app.pages.seeded import fill, fit

MARKUP = '<img src=x onerror=alert(1)> & "net"'


@pytest.fixture(scope="package")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """Sixty plans of three models, one with markup as its name, and a fit of that model."""
    app = create_app(Settings(data=tmp_path_factory.mktemp("shown"), workers=1, drain_seconds=1))
    fill(app.state.service.store, 60, ("resnet50", MARKUP, "lstm"))
    fit(app.state.service.store, MARKUP, "auto", 4800)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="package")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    app = create_app(Settings(data=tmp_path_factory.mktemp("empty"), workers=1, drain_seconds=1))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client
