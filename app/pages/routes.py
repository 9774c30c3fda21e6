"""Every page."""

from __future__ import annotations

from fastapi import APIRouter

from app.pages.assets import router as assets
from app.pages.compare import router as compare
from app.pages.dashboard import router as dashboard
from app.pages.login import router as login
from app.pages.plan import router as plan

PAGES: tuple[APIRouter, ...] = (dashboard, plan, compare, login, assets)
