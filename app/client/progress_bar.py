"""Progress bar of a batch in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# Imports inside functions: rich is loaded when a bar is drawn.


@contextmanager
def progress_bar(**console: Any) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Callback for `on_progress` of `batch` and `wait_batch` that draws finished and failed items.

    `console`: arguments of `rich.console.Console`; default: standard error. Draws only on a terminal.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    target = Console(**({"stderr": True} | console))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=target, disable=not target.is_terminal) as bar:
        task = bar.add_task("batch", total=None)

        def update(batch: dict[str, Any]) -> None:
            failed = batch["items"]["failed"]
            text = batch["state"] if not failed else f"{batch['state']}, {failed} failed"
            bar.update(task, total=batch["total"], completed=batch["done"], description=text)

        yield update
