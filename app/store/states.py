"""States and kinds of operations, in the store and over HTTP."""

from __future__ import annotations

STATES = ("queued", "running", "succeeded", "failed", "cancelled")
#: Kind of operation -> HTTP path of its results.
RESULT_PATHS = {"plan": "/v1/plans", "curve": "/v1/curves", "fit": "/v1/fits", "layout": "/v1/layouts"}
