"""The database schema, and the columns of `plans` derived from a report.

graphs ◀── plans ◀── sections, result_plans ──▶ results       a blob is named by the SHA-256 of its bytes
   ▲         ▲ ◀──── answers ──────────────────────▲          request key → plan or result
   │         ╰────── measurements, plan_tags, plan_notes      what a tenant attached to a plan
   ╰── operations ◀── idempotency_keys, events ────╯          workers run operations
            ╰──────▶ questions                                inputs that are not stored graphs
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

MAX_BIGINT = 2**63 - 1
NOT_COMPARED = ("return", "execute", "layout")  # request fields that change no peak


class Timestamp(sa.types.TypeDecorator[str]):
    """A time in wire format, `2026-01-31T12:00:00.000Z`: sortable text in SQLite, timestamptz in PostgreSQL."""

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> Any:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(postgresql.TIMESTAMP(timezone=True))
        return dialect.type_descriptor(sa.Text())

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> Any:
        return datetime.fromisoformat(value) if value is not None and dialect.name == "postgresql" else value

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> str | None:
        return to_timestamp(value) if isinstance(value, datetime) else value


def to_timestamp(time: datetime) -> str:
    """The time in wire format: UTC with milliseconds."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

graphs = sa.Table(
    "graphs",
    metadata,
    sa.Column("id", sa.Text, primary_key=True, doc="SHA-256 of the canonical document, names included"),
    sa.Column("name", sa.Text, nullable=False, doc="of the model, as given, or of the graph in its file"),
    sa.Column("graph_name", sa.Text, doc="of the graph in its file; null: the model has no other name"),
    sa.Column("inputs", sa.JSON(none_as_null=True), doc="first inputs with dtype and shape; null: stored without"),
    sa.Column("batch", sa.BigInteger, doc="leading length of all inputs; null: there is none"),
    sa.Column("nodes", sa.BigInteger, nullable=False),
    sa.Column("values", sa.BigInteger, nullable=False),
    sa.Column("format", sa.Text, nullable=False, doc="native, or the framework it was imported from"),
    sa.Column("forward_only", sa.Boolean, nullable=False),
    sa.Column("blob", sa.Text, nullable=False, index=True, doc="the canonical document"),
    sa.Column("created_at", Timestamp, nullable=False),
    sa.Column("seen_at", Timestamp, nullable=False, doc="last time it was posted"),
    sa.Column("form", sa.Text, doc="SHA-256 without names of nodes and values; null: attributes contain names"),
)

plans = sa.Table(
    "plans",
    metadata,
    sa.Column("id", sa.Text, primary_key=True, doc="SHA-256 of the report without wall-clock times"),
    sa.Column("graph_id", sa.Text, sa.ForeignKey("graphs.id"), nullable=False, index=True),
    sa.Column("inputs", sa.JSON(none_as_null=True), doc="of the planned graph, as in graphs"),
    sa.Column("batch", sa.BigInteger, doc="of the planned graph, as in graphs"),
    sa.Column("planner", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False, doc="proven, found or over_budget"),
    sa.Column("runtime", sa.Text, nullable=False),
    sa.Column("device", sa.Text, nullable=False, doc="name of the profile, or custom"),
    sa.Column("counts", sa.Text, nullable=False, doc="everything or activations"),
    sa.Column("request", sa.Text, doc="SHA-256 of the request fields, equal for comparable plans; null: not recorded"),
    sa.Column("budget", sa.Text, doc="as requested; null: max_overhead or fits was requested instead"),
    sa.Column("budget_bytes", sa.BigInteger),
    sa.Column("max_overhead", sa.Double, doc="share of the baseline time"),
    sa.Column("fits", sa.Boolean),
    sa.Column("baseline_peak_bytes", sa.BigInteger, nullable=False),
    sa.Column("peak_bytes", sa.BigInteger, nullable=False),
    sa.Column("arena_bytes", sa.BigInteger, doc="null: planned without a layout"),
    sa.Column("saved_bytes", sa.BigInteger, nullable=False),
    sa.Column("saved", sa.Double, nullable=False, doc="share of the baseline peak"),
    sa.Column("baseline_seconds", sa.Double, nullable=False, doc="of one step"),
    sa.Column("seconds", sa.Double, nullable=False, doc="of one step"),
    sa.Column("overhead", sa.Double, doc="extra time as a share of the baseline time"),
    sa.Column("bound_overhead", sa.Double, doc="proven minimum overhead"),
    sa.Column("bound_peak_bytes", sa.BigInteger),
    sa.Column("gap", sa.Double, doc="relative gap to the bound"),
    sa.Column("seed", sa.Text, nullable=False, doc="random seed, any integer"),
    sa.Column("reproducible", sa.Boolean, nullable=False),
    sa.Column("executed", sa.Text, nullable=False, doc="equal or not executed"),
    sa.Column("executed_peak_bytes", sa.BigInteger, doc="measured peak; null: not executed at this size"),
    sa.Column("solver_seconds", sa.Double, nullable=False, doc="time to compute the plan"),
    sa.Column("figures", sa.Text, nullable=False, index=True, doc="blob: the report without its sections"),
    sa.Column("created_at", Timestamp, nullable=False, index=True),
    sa.Column("seen_at", Timestamp, nullable=False, doc="last time it was computed"),
)

sections = sa.Table(
    "sections",
    metadata,
    sa.Column("plan_id", sa.Text, sa.ForeignKey("plans.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("name", sa.Text, primary_key=True, doc="timeline, layout, explain, source, graph, sketch or search"),
    sa.Column("blob", sa.Text, nullable=False, index=True),
)

results = sa.Table(
    "results",
    metadata,
    sa.Column("id", sa.Text, primary_key=True, doc="SHA-256 of kind and document without wall-clock times"),
    sa.Column("kind", sa.Text, nullable=False, doc="curve, fit or layout"),
    sa.Column("grow", sa.Text, doc="of a fit: batch, sequence or the name of the growing dimension"),
    sa.Column("size", sa.BigInteger, doc="of a fit: the largest size that fits; null: none fits"),
    sa.Column("blob", sa.Text, nullable=False, index=True, doc="the document"),
    sa.Column("created_at", Timestamp, nullable=False),
    sa.Column("seen_at", Timestamp, nullable=False, doc="last time it was computed"),
)

result_plans = sa.Table(
    "result_plans",
    metadata,
    sa.Column("result_id", sa.Text, sa.ForeignKey("results.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("plan_id", sa.Text, sa.ForeignKey("plans.id"), primary_key=True, index=True, doc="plan in the document"),
)

questions = sa.Table(
    "questions",
    metadata,
    sa.Column("id", sa.Text, primary_key=True, doc="blob: input document that is not a stored graph"),
    sa.Column("created_at", Timestamp, nullable=False),
)

answers = sa.Table(
    "answers",
    metadata,
    sa.Column("key", sa.Text, primary_key=True, doc="hash of graph or its form, request and versions"),
    sa.Column("plan_id", sa.Text, sa.ForeignKey("plans.id", ondelete="CASCADE"), index=True),
    sa.Column(
        "result_id", sa.Text, sa.ForeignKey("results.id", ondelete="CASCADE"), index=True, doc="curve, fit or layout"
    ),
    sa.Column("created_at", Timestamp, nullable=False),
)

measurements = sa.Table(
    "measurements",
    metadata,
    sa.Column("id", sa.Text, primary_key=True, doc="SHA-256 of plan, tenant and document"),
    sa.Column("plan_id", sa.Text, sa.ForeignKey("plans.id", ondelete="CASCADE"), nullable=False, index=True),
    sa.Column("tenant", sa.Text, doc="who posted it; null: posted without authentication"),
    sa.Column("kind", sa.Text, nullable=False, doc="step or snapshot"),
    sa.Column("peak_bytes", sa.BigInteger, nullable=False, doc="measured, with the plan"),
    sa.Column("seconds", sa.Double, doc="measured, of a step with the plan; null: a snapshot"),
    sa.Column("document", sa.JSON, nullable=False),
    sa.Column("created_at", Timestamp, nullable=False),
)

_WRITER = "tenant that wrote it; empty text: written without authentication"
plan_tags = sa.Table(
    "plan_tags",
    metadata,
    sa.Column("plan_id", sa.Text, sa.ForeignKey("plans.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("tenant", sa.Text, primary_key=True, doc=_WRITER),
    sa.Column("tag", sa.Text, primary_key=True),
    sa.Index(None, "tenant", "tag"),
)

plan_notes = sa.Table(
    "plan_notes",
    metadata,
    sa.Column("plan_id", sa.Text, sa.ForeignKey("plans.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("tenant", sa.Text, primary_key=True, doc=_WRITER),
    sa.Column("note", sa.Text, nullable=False),
)

operations = sa.Table(
    "operations",
    metadata,
    sa.Column("id", sa.Text, primary_key=True, doc="sorts by creation time"),
    sa.Column("key", sa.Text, nullable=False, doc="request key"),
    sa.Column("graph_id", sa.Text, sa.ForeignKey("graphs.id"), index=True),
    sa.Column("fields", sa.JSON, nullable=False, doc="of the request"),
    sa.Column("created_at", Timestamp, nullable=False),
    sa.Column("kind", sa.Text, nullable=False, doc="plan, curve, fit or layout"),
    sa.Column("state", sa.Text, nullable=False, doc="queued, running, succeeded, failed or cancelled"),
    sa.Column("stage", sa.Text),
    sa.Column("started_at", Timestamp),
    sa.Column("ended_at", Timestamp),
    sa.Column("progress", sa.JSON(none_as_null=True), doc="last incumbent, bound and gap"),
    sa.Column("asked", sa.Text, sa.ForeignKey("questions.id"), index=True, doc="input document, if there is no graph"),
    sa.Column("result", sa.Text, sa.ForeignKey("plans.id"), index=True, doc="the plan"),
    sa.Column("found", sa.Text, sa.ForeignKey("results.id"), index=True, doc="the curve, fit or layout"),
    sa.Column("error", sa.JSON(none_as_null=True), doc="a problem object"),
    sa.Column("worker", sa.Text, doc="id of the worker that runs it, possibly dead"),
    sa.Column("attempts", sa.BigInteger, nullable=False, doc="number of claims"),
    sa.Column("last_event", sa.BigInteger, nullable=False),
    sa.Column("cancel_requested", sa.Boolean, nullable=False),
    sa.Column("child_deaths", sa.BigInteger, nullable=False, doc="attempts whose child process died"),
    sa.Column("wanted", sa.Boolean, nullable=False, doc="requested directly, not only by a batch"),
    sa.Column("tenant", sa.Text, doc="null: requested without authentication"),
    sa.Column("priority", sa.BigInteger, nullable=False, doc="lower values run first"),
    sa.Column("trace", sa.Text, doc="traceparent of the request that submitted it; null: it had none"),
    sa.Index(None, "state", "id"),
    sa.Index(None, "tenant", "id"),
    sa.Index(None, "tenant", "started_at"),
)
_queued = operations.c.state == "queued"
sa.Index("ix_operations_queued", operations.c.priority, operations.c.id, sqlite_where=_queued, postgresql_where=_queued)
_unfinished = operations.c.ended_at.is_(None) & ~operations.c.cancel_requested
sa.Index(
    "ix_operations_unfinished", operations.c.key, unique=True, sqlite_where=_unfinished, postgresql_where=_unfinished
)

events = sa.Table(
    "events",
    metadata,
    sa.Column("operation_id", sa.Text, sa.ForeignKey("operations.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False, doc="counts from 1"),
    sa.Column("name", sa.Text, nullable=False, doc="state or progress"),
    sa.Column("data", sa.JSON, nullable=False),
)

schema_support = sa.Table(
    "schema_support",
    metadata,
    sa.Column("oldest_revision", sa.Text, primary_key=True, doc="head of the oldest version that may serve"),
)

workers = sa.Table(
    "workers",
    metadata,
    sa.Column("id", sa.Text, primary_key=True, doc="of one process, never reused"),
    sa.Column("host", sa.Text, nullable=False, doc="host name, boot id and PID namespace"),
    sa.Column("pid", sa.BigInteger, nullable=False),
    sa.Column("born", sa.Text, nullable=False, doc="start time of the process in clock ticks since boot"),
    sa.Column("slots", sa.BigInteger, nullable=False, doc="concurrent solves"),
    sa.Column("beats", sa.BigInteger, nullable=False, doc="heartbeats sent"),
    sa.Column("started_at", Timestamp, nullable=False),
    sa.Column("beat_at", Timestamp, nullable=False),
)

idempotency_keys = sa.Table(
    "idempotency_keys",
    metadata,
    sa.Column("id", sa.Text, primary_key=True, doc="SHA-256 of path and key"),
    sa.Column("body", sa.Text, nullable=False, doc="SHA-256 of the request body"),
    sa.Column(
        "operation_id", sa.Text, sa.ForeignKey("operations.id", ondelete="CASCADE"), index=True, doc="operation started"
    ),
    sa.Column("created_at", Timestamp, nullable=False, index=True),
)

BLOB_COLUMNS = (
    graphs.c.blob,
    plans.c.figures,
    sections.c.blob,
    results.c.blob,
    questions.c.id,
)  # all columns that reference blobs


def without_nul(data: Any) -> Any:
    """Plain data whose strings PostgreSQL can hold: with U+FFFD in place of NUL. Documents keep what was sent."""
    if isinstance(data, str):
        return data.replace("\0", "\ufffd")
    if isinstance(data, Mapping):
        return {name: without_nul(entry) for name, entry in data.items()}
    return [without_nul(entry) for entry in data] if isinstance(data, list) else data


def _request_hash(request: Mapping[str, Any]) -> str:
    fields = {name: value for name, value in request.items() if name not in NOT_COMPARED}
    return hashlib.sha256(msgspec.json.encode(fields, order="deterministic")).hexdigest()


def plan_columns(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of `plans` from the figures of a report."""
    plan, base, request = figures["plan"], figures["baseline"], figures["request"]
    device = figures["device"]
    return {
        "inputs": without_nul(figures["model"].get("inputs")),
        "batch": figures["model"].get("batch"),
        "planner": plan["planner"],
        "status": plan["status"],
        "runtime": figures["runtime"],
        "device": device if isinstance(device, str) else "custom",
        "counts": plan["counts"],
        "request": _request_hash(request),
        "budget": None if request.get("budget") is None else str(request["budget"]),
        "budget_bytes": None if plan["budget_bytes"] is None else min(plan["budget_bytes"], MAX_BIGINT),
        "max_overhead": plan["max_overhead"],
        "fits": figures["fits"],
        "baseline_peak_bytes": base["peak_bytes"],
        "peak_bytes": plan["peak_bytes"],
        "arena_bytes": plan["arena_bytes"],
        "saved_bytes": plan["saved_bytes"],
        "saved": plan["saved"],
        "baseline_seconds": base["seconds"],
        "seconds": plan["seconds"],
        "overhead": plan["overhead"],
        "bound_overhead": plan["bound"]["overhead"],
        "bound_peak_bytes": plan["bound"]["peak_bytes"],
        "gap": plan["gap"],
        "seed": str(plan["seed"]),
        "reproducible": plan["reproducible"],
        "executed": figures["executed"]["status"],
        "executed_peak_bytes": figures["executed"].get("peak_bytes"),
        "solver_seconds": sum(figures["elapsed"].values()),
    }
