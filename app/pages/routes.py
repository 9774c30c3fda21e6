"""Every page."""

from __future__ import annotations

from fastapi import APIRouter

from app.pages.assets import router as assets
from app.pages.dashboard import router as dashboard

PAGES: tuple[APIRouter, ...] = (dashboard, assets)
