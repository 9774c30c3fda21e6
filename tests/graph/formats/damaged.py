"""Files with a few bytes changed, cut out or repeated."""

from __future__ import annotations

from hypothesis import strategies as st


def damaged(data: st.DataObject, raw: bytes, longest: int = 40, least: int = 0) -> bytes:
    """`raw` after one to four changes of up to `longest` bytes; a byte put in is at least `least`, and then text."""
    changed = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(len(changed) - 1, 0)))
        kind = data.draw(st.sampled_from(["set", "cut", "copy"]))
        end = at + data.draw(st.integers(1, longest))
        if kind == "set" and changed:
            changed[at] = data.draw(st.integers(least, 126 if least else 255))
        elif kind == "cut":
            del changed[at:end]
        else:
            changed[at:at] = changed[at:end]
    return bytes(changed)
