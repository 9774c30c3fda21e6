"""`remat verify`: a saved plan checked again from its source, sharing nothing with who made it."""

from __future__ import annotations

from app.commands.files import read_report, to_json
from app.terminal import share, size
from planner import saved
from planner.errors import IllegalPlan


def run(plan: str, as_json: bool) -> int:
    """0 when the plan is what it says, else 1, with the reason printed."""
    report = read_report(plan)
    try:
        found = saved.verify(report)
    except IllegalPlan as error:
        found = {"valid": False, "why": str(error)}
    if as_json:
        print(to_json(found))
    elif found["valid"]:
        laid_out = ", addresses included" if found["layout"] else ""
        print(
            f"valid: {found['steps']} steps, peak {size(found['peak_bytes'])} ({found['peak_bytes']} bytes), "
            f"{share(found['overhead'])} more time{laid_out}"
        )
    else:
        print(f"not valid: {found['why']}")
    return 0 if found["valid"] else 1
