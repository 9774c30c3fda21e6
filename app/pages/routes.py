"""Routers of all pages."""

from __future__ import annotations

from fastapi import APIRouter

from app.pages.batches import router as batches
from app.pages.compare import router as compare
from app.pages.dashboard import router as dashboard
from app.pages.docs import router as docs
from app.pages.jobs import router as jobs
from app.pages.login import router as login
from app.pages.plan.files import router as plan_files
from app.pages.plan.page import router as plan
from app.pages.samples import router as samples
from app.pages.shell.assets import router as assets
from app.pages.upload import router as upload

PAGES: tuple[APIRouter, ...] = (
    dashboard,
    jobs,
    batches,
    upload,
    samples,
    plan,
    plan_files,
    compare,
    docs,
    login,
    assets,
)
