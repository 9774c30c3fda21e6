"""What the service asks of a store: blobs by content, and small records by kind and id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

Record = Mapping[str, Any]


class Store(Protocol):
    """Blobs never change; a record is created once, or replaced as a whole. Nothing is ever half there."""

    def put(self, data: bytes) -> str:
        """Key of the blob, the SHA-256 of its bytes in hex. Raises CannotWrite."""

    def get(self, key: str) -> bytes:
        """Bytes of a blob. Raises NotFound."""

    def create(self, kind: str, id: str, record: Record) -> bool:
        """Whether this call made the record; one that is there stays as it is. Raises CannotWrite."""

    def replace(self, kind: str, id: str, record: Record) -> None:
        """Make `record` the one under that id. Raises CannotWrite."""

    def record(self, kind: str, id: str) -> dict[str, Any]:
        """The record. Raises NotFound."""

    def ids(self, kind: str) -> list[str]:
        """Ids of every record of a kind, ascending."""

    def check(self) -> None:
        """Raises CannotWrite when nothing can be kept."""

    def close(self) -> None:
        """Let go of the store."""
