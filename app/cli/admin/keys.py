"""`remat keys`: create, list and revoke API keys, also while the service runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.options.options import Command, Group

if TYPE_CHECKING:
    from app.api.auth.api_keys import ApiKey
    from app.api.auth.key_store import KeyStore

# Imports inside functions: loaded per command, so that `remat --help` takes under 0.3 s.

keys = typer.Typer(
    cls=Group, help="Create, list and revoke API keys of a service.", no_args_is_help=True, rich_markup_mode="rich"
)

Data = Annotated[Path | None, typer.Option("--data", metavar="FOLDER", help="The service's data folder.")]
Scope = Annotated[
    list[str], typer.Option("--scope", metavar="read|plan|operator", help="Permissions; default: read and plan.")
]
DURATION_UNITS = {"h": 3600, "d": 86_400, "w": 7 * 86_400}
MAX_LIFETIME_S = 100 * 365 * 86_400  # seconds; keeps the expiry within the range of datetime
MAX_NAME_CHARS = 200


@keys.command(cls=Command)
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the key's owner.")],
    tenant: Annotated[str | None, typer.Option(metavar="NAME", help="Tenant; default: NAME.")] = None,
    scope: Scope = [],  # noqa: B006
    expires: Annotated[
        str | None, typer.Option(metavar="90d", help="Lifetime in h, d or w; default: never expires.")
    ] = None,
    nodes: Annotated[int | None, typer.Option(min=1, metavar="N", help="Limit: nodes of a graph.")] = None,
    bytes: Annotated[int | None, typer.Option(min=1, metavar="N", help="Limit: bytes of a request.")] = None,
    solves: Annotated[int | None, typer.Option(min=1, metavar="N", help="Limit: parallel solves.")] = None,
    solver_seconds: Annotated[
        float | None, typer.Option(min=0, metavar="S", help="Limit: solver seconds per day (UTC).")
    ] = None,
    data: Data = None,
) -> int:
    """Create a key and print it once."""
    import sys
    import time

    from app.api.auth.api_keys import DEFAULT_SCOPES, SCOPES, Quotas, new_key
    from app.errors import BadUsage

    if unknown := set(scope) - set(SCOPES):
        raise BadUsage(f"scope {', '.join(sorted(unknown))}: name {' or '.join(SCOPES)}", code="unknown_scope")
    for option, text in (("NAME", name), ("--tenant", name if tenant is None else tenant)):
        if not text.strip() or not text.isprintable() or len(text) > MAX_NAME_CHARS:
            raise BadUsage(f"{option} {text[:80]!r}: use 1 to {MAX_NAME_CHARS} printable characters")
    now = time.time()
    text, key = new_key(
        name,
        tenant or name,
        frozenset(scope or DEFAULT_SCOPES),
        Quotas(nodes, bytes, solves, solver_seconds),
        now,
        None if expires is None else now + _seconds(expires),
    )
    with opened_key_store(data) as key_store:
        key_store.add(key)
    print(f"key {key.id} of {key.tenant}; copy it now, it will not be shown again", file=sys.stderr)
    print(text)
    return 0


@keys.command("list", cls=Command)
def list_keys(data: Data = None, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> int:
    """List the keys, oldest first, without secrets."""
    import time

    from app.cli.console.files import to_json
    from app.render.text import table

    now = time.time()
    with opened_key_store(data, there=True) as key_store:
        found = [_shown(key, now) for key in key_store.all_keys()]
    rows = [
        (
            row["id"],
            row["name"],
            row["tenant"],
            " ".join(row["scopes"]),
            row["state"],
            row["expires_at"] or "never",
            " ".join(f"{name}={limit:g}" for name, limit in row["quotas"].items() if limit is not None),
        )
        for row in found
    ]
    head = ("id", "name", "tenant", "scopes", "state", "expires", "quotas")
    print(to_json({"keys": found}) if as_json else "\n".join(table(head, rows)))
    return 0


@keys.command(cls=Command)
def revoke(
    id: Annotated[str, typer.Argument(metavar="ID", help="Key id of `remat keys list`.")], data: Data = None
) -> int:
    """Revoke a key, effective with the next request."""
    import sys
    import time

    with opened_key_store(data, there=True) as key_store:
        key = key_store.revoke(id, time.time())
    print(f"key {key.id} of {key.tenant} is revoked", file=sys.stderr)
    return 0


@contextmanager
def opened_key_store(data: Path | None, there: bool = False) -> Iterator[KeyStore]:
    """Key store of the service's database; `there`: its data folder must exist. Raises BadUsage, Unavailable."""
    from app.api.auth.key_files import import_key_file
    from app.api.auth.key_store import KeyStore
    from app.cli.console.files import demand_data_folder
    from app.settings import Settings
    from app.store.store import Store

    given: dict[str, Any] = {} if data is None else {"data": data}
    settings = Settings(**given)
    if there and settings.database_url is None:
        demand_data_folder(settings.data)
    store = Store(settings)
    try:
        store.prepare_beside_service()
        import_key_file(store)
        yield KeyStore(store)
    finally:
        store.close()


def _seconds(text: str) -> float:
    from app.errors import BadUsage

    found = re.fullmatch(r"([0-9]{1,6})([hdw])", text)
    seconds = int(found[1]) * DURATION_UNITS[found[2]] if found else 0
    if not 0 < seconds <= MAX_LIFETIME_S:
        raise BadUsage(f"--expires {text!r}: write 12h, 90d or 52w, at most 100 years", code="bad_duration")
    return seconds


def _shown(key: ApiKey, now: float) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "id": key.id,
        "name": key.name,
        "tenant": key.tenant,
        "scopes": sorted(key.scopes),
        "state": key.state(now),
        "created_at": timestamp(key.created_at),
        "expires_at": timestamp(key.expires_at),
        "revoked_at": timestamp(key.revoked_at),
        "quotas": asdict(key.quotas),
    }


def timestamp(at: float | None) -> str | None:
    """The time in UTC, to the second."""
    from datetime import UTC, datetime

    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
