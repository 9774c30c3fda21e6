"""A document of the wire format that notebooks show as picture and table."""

from __future__ import annotations

from typing import Any


class NotebookDocument(dict[str, Any]):
    """A report, curve or fit as a dict, with HTML for notebooks; another document is shown as its text.

    >>> NotebookDocument({"format": "remat-graph/1"})._repr_html_() is None
    True
    """

    def _repr_html_(self) -> str | None:
        from app.render.notebook import document_html  # slow to import: loaded when a notebook shows a document

        return document_html(self)
