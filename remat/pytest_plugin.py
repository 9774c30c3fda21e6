"""pytest plugin: the fixture `remat_check` fails a test whose model needs more memory or time than its baseline.

def test_memory(remat_check):
    remat_check("model.onnx", budget="50%", baseline="baseline.json")

`pytest --remat-update` plans the models again and writes the baselines.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

# Imports inside functions: pytest imports this module in every run, also where no test uses the fixture.


class RematCheck(Protocol):
    """The type of the fixture `remat_check`."""

    def __call__(
        self,
        model: Any,
        *inputs: Any,
        baseline: str | os.PathLike[str],
        budget: str | float | int | None = None,
        max_drift: str = "2%",
        loss: str | Callable[[Any], Any] | None = None,
        **request: Any,
    ) -> None:
        """Fail the test unless the plan in `baseline` fits `model` as it is now.

        Parameters:
            model: A model file, its bytes, or a PyTorch module. Files are relative to the folder of the test.
            inputs: Arguments of one call of the module, with the shapes of training.
            baseline: The report that `--remat-update` writes, kept beside the test.
            budget: Budget of the plan, as of `remat.plan`.
            max_drift: Allowed growth of peak and time.
            loss: Of a module the function that computes the loss from what it returns; else the field `loss`.
            request: Other request fields, such as `batch` and `dims`.
        """


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("remat", "memory of models")
    group.addoption("--remat-update", action="store_true", help="Plan models again and write baselines of remat_check.")


@pytest.fixture
def remat_check(request: pytest.FixtureRequest) -> RematCheck:
    """Compare the memory and the time of a model's training step with a stored baseline."""
    folder, update = request.path.parent, bool(request.config.getoption("--remat-update"))

    def check(model: Any, *inputs: Any, baseline: str | os.PathLike[str], **options: Any) -> None:
        from remat.memory_check import problem_of

        if problem := problem_of(folder, model, inputs, Path(baseline), update, **options):
            pytest.fail(problem, pytrace=False)

    return check
