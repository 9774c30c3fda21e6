"""Messages to users that Dask and Ray share."""

from __future__ import annotations

from app.errors import SolveFailed


def lacks_remat(error: BaseException) -> SolveFailed:
    """Error of a scheduler or worker that cannot import remat."""
    reason = f" ({error})" if isinstance(error, ImportError) else ""
    message = f"the cluster cannot import remat{reason}; install the version of this machine on all of its machines"
    return SolveFailed(message, code="version_mismatch")
