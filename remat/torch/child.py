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

    Errors that are not `expected` are printed with their traceback too.
    """
    result: Mapping[str, Any]
    try:
        result = answer(json.load(sys.stdin))
    except Exception as error:
        if not isinstance(error, expected):
            traceback.print_exc()
        result = {"problem": {"kind": type(error).__name__, "detail": str(error)}}
    Path(sys.argv[1]).write_text(json.dumps(result))
