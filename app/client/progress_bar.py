"""A bar that follows a batch, for those who wait at a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# Imports inside functions: rich is loaded when a bar is drawn.


@contextmanager
def progress_bar(**console: Any) -> Iterator[Callable[[dict[str, Any]], None]]:
    """What `on_progress` of `batch` and `wait_batch` may be: it draws how many items have ended, and how many failed.

    `console` goes to `rich.console.Console`; the bar is on standard error, and is not drawn where that is no terminal.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    where = Console(**({"stderr": True} | console))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=where, disable=not where.is_terminal) as bar:
        task = bar.add_task("batch", total=None)

        def follow(batch: dict[str, Any]) -> None:
            failed = batch["items"]["failed"]
            said = batch["state"] if not failed else f"{batch['state']}, {failed} failed"
            bar.update(task, total=batch["total"], completed=batch["done"], description=said)

        yield follow
