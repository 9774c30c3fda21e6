"""The end of a child process that the command line starts: a request on standard input, an answer in a file."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def answer_request(
    answer: Callable[[dict[str, Any]], Mapping[str, Any]], expected: tuple[type[Exception], ...] = ()
) -> None:
    """Write the answer to the request on standard input, or the problem, as JSON to the file of the first argument.

    The text of a problem names the type of the error unless it is `expected`; then the traceback is printed too.
    """
    result: Mapping[str, Any]
    try:
        result = answer(json.load(sys.stdin))
    except Exception as error:
        problem = str(error)
        if not isinstance(error, expected):
            traceback.print_exc()
            problem = f"{type(error).__name__}: {error}"
        result = {"problem": problem}
    Path(sys.argv[1]).write_text(json.dumps(result))
