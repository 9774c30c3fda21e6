"""Settings of a process of the service, `remat serve` or `remat worker`."""

from __future__ import annotations

import sys
from pathlib import Path

from app.settings import Settings
from app.telemetry import logs


def started_settings(data: Path | None) -> Settings:
    """The settings, with another data folder if one is given. Starts the log, and warns of misspelled variables."""
    settings = Settings() if data is None else Settings(data=data)
    logs.start(settings.log_level)
    for line in Settings.misspelled_variables():
        print(f"warning: {line}", file=sys.stderr)
    return settings
