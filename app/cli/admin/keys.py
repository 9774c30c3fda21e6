"""`remat keys`: made, listed and revoked, also while a service runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from app.api.auth.api_keys import ApiKey
    from app.api.auth.key_store import SqliteKeyStore

# Imports inside functions: a command imports what it needs, so that `remat --help` answers in under 0.3 s.

keys = typer.Typer(help="Make, list and revoke the API keys of a service.", no_args_is_help=True, rich_markup_mode=None)

Data = Annotated[Path | None, typer.Option("--data", metavar="FOLDER", help="The service's data folder.")]
Scope = Annotated[
    list[str],
    typer.Option("--scope", metavar="read|plan|operator", help="What it is good for; read and plan unless told."),
]
DURATION_UNITS = {"h": 3600, "d": 86_400, "w": 7 * 86_400}
MAX_LIFETIME_S = 100 * 365 * 86_400  # seconds; a later end is as good as none, and no calendar has it
MAX_NAME_CHARS = 200


@keys.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose it is, for people.")],
    tenant: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who shares what it sees; NAME unless told.")
    ] = None,
    scope: Scope = [],  # noqa: B006
    expires: Annotated[
        str | None, typer.Option(metavar="90d", help="From now, in h, d or w; never unless told.")
    ] = None,
    nodes: Annotated[int | None, typer.Option(min=1, metavar="N", help="Most nodes of a graph.")] = None,
    bytes: Annotated[int | None, typer.Option(min=1, metavar="N", help="Most bytes of a request.")] = None,
    solves: Annotated[int | None, typer.Option(min=1, metavar="N", help="Most solves at a time.")] = None,
    solver_seconds: Annotated[float | None, typer.Option(min=0, metavar="S", help="Most of them a day (UTC).")] = None,
    data: Data = None,
) -> int:
    """Make a key and print it, this once."""
    import sys
    import time

    from app.api.auth.api_keys import DEFAULT_SCOPES, SCOPES, Quotas, new_key
    from app.errors import BadUsage

    if unknown := set(scope) - set(SCOPES):
        raise BadUsage(f"scope {', '.join(sorted(unknown))}: name {' or '.join(SCOPES)}", code="unknown_scope")
    for said, text in (("NAME", name), ("--tenant", name if tenant is None else tenant)):
        if not text.strip() or not text.isprintable() or len(text) > MAX_NAME_CHARS:
            raise BadUsage(f"{said} {text[:80]!r}: name it in 1 to {MAX_NAME_CHARS} characters on one line")
    now = time.time()
    text, key = new_key(
        name,
        tenant or name,
        frozenset(scope or DEFAULT_SCOPES),
        Quotas(nodes, bytes, solves, solver_seconds),
        now,
        None if expires is None else now + _seconds(expires),
    )
    _key_store(data).add(key)
    print(f"key {key.id} of {key.tenant}; it is shown this once", file=sys.stderr)
    print(text)
    return 0


@keys.command("list")
def list_keys(
    data: Data = None, as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False
) -> int:
    """List the keys, oldest first; no secret is kept that could be shown."""
    import time

    from app.cli.commands.files import to_json
    from app.render.text import table

    now = time.time()
    found = [_shown(key, now) for key in _key_store(data, there=True).all_keys()]
    rows = [
        (
            row["id"],
            row["name"],
            row["tenant"],
            " ".join(row["scopes"]),
            row["state"],
            row["expires_at"] or "never",
            " ".join(f"{name}={most:g}" for name, most in row["quotas"].items() if most is not None),
        )
        for row in found
    ]
    head = ("id", "name", "tenant", "scopes", "state", "expires", "quotas")
    print(to_json({"keys": found}) if as_json else "\n".join(table(head, rows)))
    return 0


@keys.command()
def revoke(id: Annotated[str, typer.Argument(metavar="ID", help="As listed.")], data: Data = None) -> int:
    """End a key: the next request with it is refused."""
    import sys
    import time

    key = _key_store(data, there=True).revoke(id, time.time())
    print(f"key {key.id} of {key.tenant} is revoked", file=sys.stderr)
    return 0


def _key_store(data: Path | None, there: bool = False) -> SqliteKeyStore:
    """The keys of a data folder, which is `there` already, or made."""
    from app.api.auth.key_store import SqliteKeyStore
    from app.cli.commands.files import demand_data_folder
    from app.settings import Settings

    given: dict[str, Any] = {} if data is None else {"data": data}
    folder = Settings(**given).data
    if there:
        demand_data_folder(folder)
    return SqliteKeyStore(folder)


def _seconds(text: str) -> float:
    from app.errors import BadUsage

    found = re.fullmatch(r"([0-9]{1,6})([hdw])", text)
    seconds = int(found[1]) * DURATION_UNITS[found[2]] if found else 0
    if not 0 < seconds <= MAX_LIFETIME_S:
        raise BadUsage(f"--expires {text!r}: write 12h, 90d or 52w, at most 100 years", code="bad_duration")
    return seconds


def _shown(key: ApiKey, now: float) -> dict[str, Any]:
    from dataclasses import asdict
    from datetime import UTC, datetime

    def said(at: float | None) -> str | None:
        return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")

    return {
        "id": key.id,
        "name": key.name,
        "tenant": key.tenant,
        "scopes": sorted(key.scopes),
        "state": key.state(now),
        "created_at": said(key.created_at),
        "expires_at": said(key.expires_at),
        "revoked_at": said(key.revoked_at),
        "quotas": asdict(key.quotas),
    }
