"""A service behind its gate, for what is counted there."""

from tests.app.access.conftest import gated, tenant

__all__ = ["gated", "tenant"]
