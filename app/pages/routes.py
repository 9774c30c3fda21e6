"""Every page."""

from __future__ import annotations

from fastapi import APIRouter

from app.pages.assets import router as assets
from app.pages.dashboard import router as dashboard
from app.pages.login import router as login

PAGES: tuple[APIRouter, ...] = (dashboard, login, assets)
