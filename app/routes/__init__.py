"""The HTTP paths, one file a thing: parse, call one function, return."""

from __future__ import annotations

from fastapi import APIRouter, Request

from app.routes.batches import router as batches
from app.routes.common import only_known_parameters
from app.routes.curves import router as curves
from app.routes.docs import router as docs
from app.routes.fits import router as fits
from app.routes.graphs import router as graphs
from app.routes.health import router as health
from app.routes.layouts import router as layouts
from app.routes.lists import router as lists
from app.routes.operations import router as operations
from app.routes.plans import router as plans
from app.routes.savings import router as savings

ROUTERS: tuple[APIRouter, ...] = (
    graphs, plans, curves, fits, layouts, batches, operations, savings, lists, health, docs,
)  # fmt: skip

__all__ = ["ROUTERS", "Request", "only_known_parameters"]
