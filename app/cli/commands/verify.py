"""`remat verify`: a saved plan checked again from its source, sharing nothing with who made it, or its bound."""

from __future__ import annotations

from pathlib import Path

from app.atomic_files import write_atomic
from app.cli.commands.files import is_report, read_format, read_report, to_json
from app.render.text import format_bytes, format_percent
from planner.errors import IllegalPlan
from planner.report import saved_report
from planner.verify import certificate


def run(plan: str, as_json: bool) -> int:
    """0 when the plan is what it says, else 1, with the reason printed."""
    report = read_report(plan)
    try:
        found = saved_report.verify(report)
    except IllegalPlan as error:
        found = {"valid": False, "why": str(error)}
    if as_json:
        print(to_json(found))
    elif found["valid"]:
        laid_out = ", addresses included" if found["layout"] else ""
        print(
            f"valid: {found['steps']} steps, peak {format_bytes(found['peak_bytes'])} ({found['peak_bytes']} bytes), "
            f"{format_percent(found['overhead'])} more time{laid_out}"
        )
    else:
        print(f"not valid: {found['why']}")
    return 0 if found["valid"] else 1


def verify_certificate(name: str, output: Path | None, as_json: bool) -> int:
    """0 when the bound of a report, or the claims of a file that was written from one, are proven, else 1."""
    document = read_format(name, "remat-report/", certificate.FORMAT)
    try:
        if is_report(document):
            document = saved_report.certificate(document)
        proven, why = certificate.verify(document), ""
    except (IllegalPlan, certificate.CertificateRejected) as error:
        proven, why = [], str(error)
    if output is not None and not why:
        write_atomic(output, to_json(document).encode())
    if as_json:
        print(to_json({"valid": not why, "proven": proven} | ({"why": why} if why else {})))
    else:
        print("\n".join(f"proven: {said}" for said in proven) if not why else f"not proven: {why}")
    return 1 if why else 0
