"""The table of layouts; each is a module with `place(lives, size, workspace, alignment, monitor) -> offsets`.

Offsets are int64[k + s]: one per instance of `Lifetimes`, then one per step's workspace. What takes a
storage over has the offset of its source, a write into a resident storage that of the storage; what
has no bytes, or is never live, has -1.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import numpy as np

from planner.errors import BadRequest
from planner.problem.monitor import Monitor
from planner.problem.plan import Lifetimes

Layout = Callable[[Lifetimes, np.ndarray, np.ndarray, int, Monitor], np.ndarray]

#: Name -> module below this package, imported when first needed.
LAYOUTS = {"fast": "best_fit", "best": "randomized"}


def layout_named(name: str) -> Layout:
    """The layout of that name. Raises BadRequest listing those there are."""
    if name not in LAYOUTS:
        raise BadRequest.one(
            "unknown_layout", "layout", repr(name), f"none, {', '.join(LAYOUTS)}", "choose one of these"
        )
    layout: Layout = import_module(f"{__name__}.{LAYOUTS[name]}").place
    return layout


def place(
    name: str, lives: Lifetimes, size: np.ndarray, workspace: np.ndarray, alignment: int, monitor: Monitor
) -> tuple[np.ndarray, int]:
    """(offsets, bytes of the arena they need) by the named layout.

    `size` is int64[m], bytes per buffer, 0 for what lies elsewhere; `workspace` is int64[s] per step.
    """
    offsets = layout_named(name)(lives, size, workspace, alignment, monitor)
    ends = offsets + np.concatenate([size[lives.buffer], workspace])
    return offsets, int(ends[offsets >= 0].max(initial=0))
