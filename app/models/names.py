"""Reports about the model in a file, which is called by the name of the file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from graph.formats.native.identity import renamed
from graph.formats.readers import name_of_file


def named_after(path: str | os.PathLike[str], data: bytes, document: Mapping[str, Any]) -> dict[str, Any]:
    """The report, curve, fit or summary of the model in the file; native documents and `-` keep the graph's name.

    A fit that found no size has no model.
    """
    name = None if os.fspath(path) == "-" else name_of_file(path, data)
    if not name or document["model"] is None:
        return dict(document)
    return {**document, "model": renamed(document["model"], name)}
