"""A service behind its gate, for what is counted there."""

from tests.app.api.auth.conftest import gated, tenant

__all__ = ["gated", "tenant"]
