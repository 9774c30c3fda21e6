"""`remat verify`: independent check of a saved plan against its source graph, or of the certificate of its bound."""

from __future__ import annotations

from pathlib import Path

from app.atomic_files import write_atomic
from app.cli.console.files import demand_writable, is_report, read_format, read_report, to_json
from app.render.text import format_bytes, format_slowdown
from planner.errors import IllegalPlan
from planner.report import saved_report
from planner.verify import certificate


def run(plan: str, as_json: bool) -> int:
    """Exit code: 0 if the plan is valid, else 1; prints the reason."""
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
            f"valid: {found['steps']} steps, peak {format_bytes(found['peak_bytes'])} ({found['peak_bytes']:,} bytes), "
            f"{format_slowdown(found['overhead'])}{laid_out}"
        )
        if found["not_recomputed"]:
            print(f"cannot be recomputed from the file: {', '.join(found['not_recomputed'])}")
    else:
        print(f"not valid: {found['why']}")
    return 0 if found["valid"] else 1


def verify_certificate(name: str, output: Path | None, as_json: bool) -> int:
    """Exit code: 0 if the bound of a report, or of a certificate file, is proven, else 1."""
    demand_writable({name: "the plan"}, output)
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
        print("\n".join(f"proven: {claim}" for claim in proven) if not why else f"not proven: {why}")
    return 1 if why else 0
