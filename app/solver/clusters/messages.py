"""Messages to users that Dask and Ray share."""

from __future__ import annotations

from app.errors import SolveFailed


def lacks_remat(error: ImportError) -> SolveFailed:
    """Error of a worker that cannot import remat."""
    message = f"the cluster's workers cannot import remat ({error}); install the version of this machine there"
    return SolveFailed(message, code="version_mismatch")
