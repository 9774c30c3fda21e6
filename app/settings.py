"""Settings of the service, each read from the environment variable `REMAT_NAME`."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.errors import BadUsage, expected_by
from graph.limits import Limits

MIB, GIB = 2**20, 2**30
MISSPELLED = 0.85  # least similarity of a name to that of the setting which was meant


class Settings(BaseSettings):
    """Paths, URLs and limits. The error of an exceeded limit names the setting.

    Raises BadUsage with a line for each invalid value.
    """

    model_config = SettingsConfigDict(env_prefix="REMAT_", extra="ignore")

    def __init__(self, **given: Any):
        try:
            super().__init__(**given)
        except ValidationError as error:
            faults = [
                f"REMAT_{str(fault['loc'][0]).upper()}: found {str(fault['input'])[:80]!r}, "
                f"expected {expected_by(fault['msg'])}"
                for fault in error.errors(include_url=False)
            ]
            raise BadUsage("\n".join(faults)) from None

    data: Path = Field(default=Path("remat-data"), description="data folder of graphs, plans and operations")
    database_url: SecretStr | None = Field(
        default=None, description="postgresql://USER@HOST/NAME; default: SQLite in the data folder"
    )
    blobs_url: str | None = Field(
        default=None, description="object store, such as s3://BUCKET/PREFIX; default: a folder in the data folder"
    )
    keep_days: float | None = Field(
        default=None, gt=0, description="retention of operations and plans in days; default: kept forever"
    )
    idempotency_days: float = Field(default=7.0, gt=0, description="minimum retention of an Idempotency-Key in days")
    gc_hours: float = Field(default=24.0, ge=0, description="hours between garbage collections; 0: off")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="minimum level of log messages"
    )
    otlp_url: str | None = Field(
        default=None, description="OTLP endpoint of traces and metrics, http://HOST:4318; default: off"
    )
    metrics_address: str | None = Field(
        default=None, description="HOST:PORT of the unauthenticated metrics of `remat worker`; default: off"
    )

    allowed_hosts: str | None = Field(
        default=None,
        description="hosts that requests may name, separated by commas; default: those of loopback where no key is "
        "required there, else any",
    )
    proxies: str = Field(
        default="",
        description="addresses of proxies whose X-Forwarded-For and X-Forwarded-Proto count, separated by commas; "
        "default: none",
    )

    embed_ancestors: str = Field(
        default="'self'",
        pattern=r"^[A-Za-z0-9:/.*' \[\]-]+$",
        description="CSP frame-ancestors of plan pages with ?embed=1",
    )

    body_bytes: int = Field(default=256 * MIB, ge=1, description="maximum size of a request body as sent")
    fields_bytes: int = Field(
        default=4 * MIB, ge=1024, description="maximum size of the request fields, graph excluded"
    )
    decompressed_bytes: int = Field(default=768 * MIB, ge=1, description="maximum size of a decompressed body")
    zstd_window_bytes: int = Field(
        default=8 * MIB, ge=1024, description="maximum window of a zstd stream; RFC 9659 sets 8 MiB for the web"
    )
    nodes: int = Field(default=200_000, ge=1, description="maximum nodes of a graph, subgraphs included")
    values: int = Field(default=1_000_000, ge=1, description="maximum values of a graph")
    depth: int = Field(default=64, ge=1, le=500, description="maximum nesting of JSON and of graphs")
    name_length: int = Field(default=4_096, ge=1, description="maximum length of a name in a graph")
    attribute_bytes: int = Field(default=16 * MIB, ge=1, description="maximum size of one attribute")
    constant_bytes: int = Field(
        default=256 * MIB, ge=1, description="maximum size of the constants whose content is kept"
    )

    workers: int = Field(
        default=max(1, os.cpu_count() or 1),
        ge=0,
        description="concurrent solves in this process; 0: solve in `remat worker` only",
    )
    solves_per_key: int | None = Field(
        default=None, ge=1, description="concurrent solves per tenant over all processes; others wait"
    )
    queue: int = Field(default=64, ge=0, description="maximum waiting solves, half of it per tenant; 429 above")
    batch_items: int = Field(default=10_000, ge=1, description="maximum items of a batch")
    open_items: int = Field(
        default=20_000, ge=1, description="maximum items of the unfinished batches of a tenant; 429 above"
    )
    requests_per_second: float = Field(
        default=200.0, ge=0, description="requests of a key, 5 s of it at once; 429 above; 0: unlimited"
    )
    readers: int = Field(default=4, ge=1, description="graphs parsed concurrently")
    read_queue: int = Field(default=128, ge=0, description="maximum graphs waiting to be parsed; 429 above")
    requests: int = Field(default=512, ge=1, description="maximum concurrent requests; 429 above")
    streams: int = Field(default=512, ge=0, description="maximum event streams and waits for results, beside requests")
    streams_per_key: int = Field(default=64, ge=0, description="of these, maximum of one tenant")
    connections: int = Field(
        default=2048, ge=1, description="maximum open connections; above, one without a request is closed"
    )
    bodies_bytes: int = Field(
        default=GIB, ge=1, description="maximum memory of request bodies and unsent responses; 429 above"
    )
    kept_bytes: int = Field(default=64 * MIB, ge=0, description="size of the response cache")
    spare_bytes: int = Field(default=256 * MIB, ge=0, description="memory kept free; POST returns 429 below it; 0: off")
    head_seconds: float = Field(default=10.0, gt=0, description="timeout of the request line and headers")
    body_seconds: float = Field(default=30.0, gt=0, description="timeout of a body, extended by size / slowest_bytes")
    slowest_bytes: int = Field(default=16 * 1024, ge=1, description="minimum transfer rate in bytes per second")
    solve_memory_bytes: int = Field(default=8 * GIB, ge=64 * MIB, description="maximum memory added by a solve")
    search_seconds: float = Field(default=600.0, gt=0, description="maximum search_seconds of a request")
    overtime_seconds: float = Field(
        default=300.0, ge=0, description="time beyond search_seconds for parsing, layout, rewriting and execution"
    )
    read_seconds: float = Field(default=120.0, gt=0, description="timeout of parsing one graph")
    kill_seconds: float = Field(
        default=10.0, gt=0, description="grace period between stop request and SIGKILL of a child"
    )
    attempts: int = Field(default=3, ge=1, description="maximum attempts of an operation whose child process dies")
    worker_losses: int = Field(
        default=10, ge=1, description="maximum attempts of an operation whose worker or machine is lost"
    )
    lost_seconds: float = Field(
        default=15.0, gt=0, description="lease of a worker: seconds without a heartbeat until others take over"
    )

    wait_seconds: float = Field(default=20.0, ge=0, description="default wait of POST /v1/plans; see Prefer")
    longest_wait_seconds: float = Field(default=300.0, ge=0, description="maximum wait in Prefer")
    drain_seconds: float = Field(default=20.0, ge=0, description="grace period of running solves at shutdown")

    _quotas: frozenset[str] = PrivateAttr(default=frozenset())

    def lowered(self, quotas: Mapping[str, int | None]) -> Settings:
        """A copy for a key whose quotas, by setting, lower some limits; None: unlimited."""
        lower = {name: most for name, most in quotas.items() if most is not None and most < getattr(self, name)}
        if not lower:
            return self
        copy = self.model_copy(update=lower)
        copy._quotas = frozenset(lower)
        return copy

    def limit_name(self, name: str) -> str:
        """Name of the limit for errors: that of the quota of the caller's key, else the variable of the setting."""
        return name.rpartition("_")[2] if name in self._quotas else f"REMAT_{name.upper()}"

    @classmethod
    def misspelled_variables(cls) -> list[str]:
        """A line for each variable of the environment that is no setting and reads like one; it has no effect."""
        names, lines = [f"REMAT_{name.upper()}" for name in cls.model_fields], list[str]()
        for given in sorted(name for name in os.environ if name.startswith("REMAT_") and name not in names):
            if near := difflib.get_close_matches(given, names, 1, MISSPELLED):
                lines.append(f"{given} is no setting; did you mean {near[0]}?")
        return lines

    def limits(self) -> Limits:
        """The limits of `graph`."""
        return Limits(
            self.decompressed_bytes,
            self.nodes,
            self.values,
            self.depth,
            self.name_length,
            self.attribute_bytes,
            self.constant_bytes,
        )
