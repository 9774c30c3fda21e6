"""Pages of batches show a tenant's own."""

from __future__ import annotations

from tests.app.api.auth.conftest import Gated
from tests.app.api.auth.test_batch_access import begun, graph_of
from tests.app.api.routes.test_batches import ended


def test_a_tenant_sees_the_pages_of_their_own_batches_only(gated: Gated) -> None:
    mine, other = gated.key("has a batch to show"), gated.key("has none")
    id = begun(gated, mine, graph_of(gated, mine, "shown as a batch"), 2).json()["id"]
    ended(gated.client, id, mine)
    for path, lines in (("/batches", "shown as a batch"), (f"/batches/{id}", "shown as a batch")):
        answer = gated.client.get(path, headers=mine)
        assert answer.status_code == 200 and lines in answer.text
    assert "No batches yet" in gated.client.get("/batches", headers=other).text
    assert gated.client.get(f"/batches/{id}", headers=other).status_code == 404


def test_a_key_that_only_reads_may_look(gated: Gated) -> None:
    reader = gated.key("looks on", scopes=frozenset({"read"}))
    assert gated.client.get("/batches", headers=reader).status_code == 200
    assert gated.client.get("/batches", headers=gated.key("runs it", scopes=frozenset({"operator"}))).status_code == 403
