"""HTTP routes, one file per resource: parse, call one function, respond.

Imports app.api.auth, app.api.schemas, app.api.service, app.api.wire, app.jobs, app.store and app.models. Start with
plans.py and submit_or_wait.py.
"""

from __future__ import annotations

from fastapi import APIRouter, Request

from app.api.routes.batches import router as batches
from app.api.routes.catalogue import router as lists
from app.api.routes.curves import router as curves
from app.api.routes.dependencies import only_known_parameters
from app.api.routes.docs import router as docs
from app.api.routes.fits import router as fits
from app.api.routes.graphs import router as graphs
from app.api.routes.health import router as health
from app.api.routes.layouts import router as layouts
from app.api.routes.me import router as me
from app.api.routes.measurements import router as measurements
from app.api.routes.operations import router as operations
from app.api.routes.plans import router as plans
from app.api.routes.savings import router as savings

ROUTERS: tuple[APIRouter, ...] = (
    graphs,
    plans,
    measurements,
    curves,
    fits,
    layouts,
    batches,
    operations,
    savings,
    lists,
    me,
    health,
    docs,
)

__all__ = ["ROUTERS", "Request", "only_known_parameters"]
