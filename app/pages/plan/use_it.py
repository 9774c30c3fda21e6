"""Code that applies a plan, with its id filled in: one tab for each way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

SECTIONS = "?return=timeline&return=layout&return=source"  # that `remat verify` needs
PYTORCH_RUNTIMES = ("torch-",)  # prefixes of runtimes whose steps remat.torch records


class Tab(NamedTuple):
    """One way to apply a plan."""

    name: str
    note: str
    code: str


def tabs(report: Mapping[str, Any], origin: str, file: str, has_keys: bool) -> list[Tab]:
    """PyTorch, ONNX, Python and curl; `file`: the model's name for file names, `has_keys`: requests need a key."""
    plan = f"{origin}/v1/plans/{report['id']}"
    key = ' -H "Authorization: Bearer $REMAT_API_KEY"' if has_keys else ""
    return [
        _pytorch(report, plan, key),
        Tab(
            "ONNX",
            "The rewritten training step, with every recomputed node in its place.",
            f"curl{key} -H 'Accept: application/onnx' \\\n  {plan}/graph -o {file}-remat.onnx\n\n"
            f'import onnxruntime\n\nsession = onnxruntime.InferenceSession("{file}-remat.onnx")',
        ),
        Tab(
            "Python",
            "The client of the service; a key is read from REMAT_API_KEY."
            if has_keys
            else "The client of the service.",
            f'from remat import Client\n\nclient = Client("{origin}")\nreport = client.report("{report["id"]}")\n'
            f'print(report["plan"]["peak_bytes"])\n\n'
            f'graph = client.rewritten("{report["id"]}", "application/onnx")',
        ),
        Tab(
            "curl",
            "The plan with everything that remat verify needs, then a check that needs no service.",
            f"curl{key} '{plan}{SECTIONS}' \\\n  -o plan.json\nremat verify plan.json",
        ),
    ]


def _pytorch(report: Mapping[str, Any], plan: str, key: str) -> Tab:
    """A plan of a recorded step is used as it is; another model is recorded and planned for the same budget."""
    if report["runtime"].startswith(PYTORCH_RUNTIMES):
        return Tab(
            "PyTorch",
            "For the module whose step was recorded with remat.torch.capture; another step is refused.",
            f"# curl{key} '{plan}{SECTIONS}' -o plan.json\n"
            "import remat.torch\n\n"
            'planned = remat.torch.optimize(model, (inputs,), plan="plan.json")\n'
            "planned(inputs).backward()",
        )
    budget = report["request"].get("budget")
    goal = f'"{budget}"' if isinstance(budget, str) else budget or report["plan"]["budget_bytes"] or '"50%"'
    return Tab(
        "PyTorch",
        "This plan is of a graph, not of a recorded module: remat.torch records the module and plans it alike.",
        "import remat.torch\n\n"
        f"planned = remat.torch.optimize(model, (inputs,), budget={goal})\n"
        "print(remat.torch.report_of(planned))\nplanned(inputs).backward()",
    )
