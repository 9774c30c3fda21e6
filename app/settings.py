"""What an operator may set, each as `REMAT_NAME` in the environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from graph.limits import Limits

MIB, GIB = 2**20, 2**30


class Settings(BaseSettings):
    """Limits and places. An error that a limit causes names the setting."""

    model_config = SettingsConfigDict(env_prefix="REMAT_", extra="ignore")

    data: Path = Field(default=Path("remat-data"), description="folder of graphs, plans and operations")
    database_url: SecretStr | None = Field(
        default=None, description="postgresql://USER@HOST/NAME; SQLite in the data folder unless set"
    )
    blobs_url: str | None = Field(
        default=None, description="s3://BUCKET/PREFIX and the like; a folder in the data folder unless set"
    )
    keep_days: float | None = Field(
        default=None, gt=0, description="operations and plans older than that are collected; none unless set"
    )
    idempotency_days: float = Field(default=7.0, gt=0, description="an Idempotency-Key is remembered at least so long")
    gc_hours: float = Field(default=24.0, ge=0, description="between two collections while serving; 0: none")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least level that is logged"
    )
    otlp_url: str | None = Field(
        default=None, description="http://HOST:4318, where traces and metrics are sent; nowhere unless set"
    )
    metrics_address: str | None = Field(
        default=None, description="HOST:PORT where `remat worker` shows its metrics to everybody; nowhere unless set"
    )

    embed_ancestors: str = Field(
        default="'self'",
        pattern=r"^[A-Za-z0-9:/.*' \[\]-]+$",
        description="who may frame a plan's page of ?embed=1, as frame-ancestors of a Content-Security-Policy has it",
    )

    body_bytes: int = Field(default=256 * MIB, ge=1, description="of a request body as sent")
    fields_bytes: int = Field(default=4 * MIB, ge=1024, description="of a question, its graph left out")
    decompressed_bytes: int = Field(default=1 * GIB, ge=1, description="of a request body after decompression")
    zstd_window_bytes: int = Field(
        default=8 * MIB, ge=1024, description="of a zstd stream; RFC 9659 says 8 MiB for the web"
    )
    nodes: int = Field(default=200_000, ge=1, description="of one graph, nested ones included")
    values: int = Field(default=1_000_000, ge=1, description="of one graph")
    depth: int = Field(default=64, ge=1, le=500, description="of nested JSON and nested graphs")
    name_length: int = Field(default=4_096, ge=1, description="of a name in a graph")
    attribute_bytes: int = Field(default=16 * MIB, ge=1, description="of one attribute")
    constant_bytes: int = Field(
        default=256 * MIB, ge=1, description="of the constants of a graph whose content is kept"
    )

    workers: int = Field(
        default=max(1, os.cpu_count() or 1), ge=0, description="solves at a time in this process; 0: others do them"
    )
    solves_per_key: int | None = Field(
        default=None, ge=1, description="solves of one tenant at a time, over all processes; more wait"
    )
    queue: int = Field(default=64, ge=0, description="solves that may wait; more are answered 429")
    batch_items: int = Field(default=10_000, ge=1, description="of one batch")
    readers: int = Field(default=4, ge=1, description="graphs read at a time")
    read_queue: int = Field(default=128, ge=0, description="graphs that may wait to be read; more are answered 429")
    requests: int = Field(default=512, ge=1, description="requests answered at a time; more are answered 429")
    connections: int = Field(default=2048, ge=1, description="open at a time; more are closed unheard")
    bodies_bytes: int = Field(
        default=2 * GIB, ge=1, description="of bodies in memory: of requests, and of answers on their way; 429 past it"
    )
    kept_bytes: int = Field(default=64 * MIB, ge=0, description="of reports in memory that were asked for lately")
    spare_bytes: int = Field(
        default=256 * MIB, ge=0, description="memory that stays free; POST is 429 below it; 0: none"
    )
    head_seconds: float = Field(default=10.0, gt=0, description="for a request's first lines to come")
    body_seconds: float = Field(default=30.0, gt=0, description="for a body to come, and longer at the slowest rate")
    slowest_bytes: int = Field(default=16 * 1024, ge=1, description="a second: slowest rate of bodies and answers")
    solve_memory_bytes: int = Field(default=8 * GIB, ge=64 * MIB, description="address space a solve may add")
    search_seconds: float = Field(default=600.0, gt=0, description="longest search_seconds a request may ask for")
    overtime_seconds: float = Field(
        default=300.0, ge=0, description="for reading, layout, rewriting and execution besides"
    )
    read_seconds: float = Field(default=120.0, gt=0, description="for reading one graph")
    kill_seconds: float = Field(default=10.0, gt=0, description="from a polite stop to the end of the process")
    attempts: int = Field(default=3, ge=1, description="starts of an operation whose child or worker dies each time")
    lost_seconds: float = Field(
        default=15.0, gt=0, description="a worker of another machine that is silent for so long is taken for dead"
    )

    wait_seconds: float = Field(default=20.0, ge=0, description="how long POST /v1/plans waits unless Prefer says")
    longest_wait_seconds: float = Field(default=300.0, ge=0, description="longest wait Prefer may ask for")
    drain_seconds: float = Field(default=20.0, ge=0, description="given to running solves when the service is stopped")

    def limits(self) -> Limits:
        """The graph room's own limits."""
        return Limits(
            self.decompressed_bytes,
            self.nodes,
            self.values,
            self.depth,
            self.name_length,
            self.attribute_bytes,
            self.constant_bytes,
        )
