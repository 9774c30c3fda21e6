"""What to type instead of a command line that cannot be parsed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

BUDGET = re.compile(r"[0-9.]+ *(%|[kmgt]i?b?)", re.IGNORECASE)
UNKNOWN_COMMAND = re.compile(r"No such command '(.*)'\.")
EXTRA_ARGUMENTS = re.compile(r"Got unexpected extra argument(?:\(s\)|s)? \((.*)\)")
#: Message of a value that cannot be converted -> the same in plain words.
PLAIN = (
    (re.compile(r"Input should be a valid integer.*"), "expected a whole number, such as 8"),
    (re.compile(r"Input should be a valid number.*"), "expected a number, such as 0.5"),
    (re.compile(r"Input should be ((?:less|greater) than (?:or equal to )?\S+)"), r"expected a number \1"),
)


def advice(message: str, command: str, arguments: Sequence[str]) -> str:
    """The parser's message in plain words, with the command line that was probably meant.

    `command`: the command that refused, such as `remat plan`; `arguments`: the whole command line.
    """
    if (unknown := UNKNOWN_COMMAND.match(message)) and Path(unknown[1]).is_file():
        return f"{unknown[1]!r} is a file and no command. Did you mean `remat plan {' '.join(arguments)}`?"
    if extra := EXTRA_ARGUMENTS.match(message):
        words = extra[1].split()
        budget = next((word for word in words if BUDGET.fullmatch(word)), None)
        if budget is not None:
            return f"{budget!r} is no file. Did you mean `--budget {budget}`?"
        if command == "remat batch":  # the shell has replaced a pattern by the names of its files
            return f"`{command}` takes one folder or pattern; quote the pattern, such as `{command} 'models/*.onnx'`."
        return f"{' '.join(words)!r}: more arguments than `{command}` takes; give options before or after one model"
    if message.startswith("Missing argument 'MODEL"):
        return f"Name a model file, such as `{command} model.onnx`; `remat try` plans a bundled model."
    for pattern, plain in PLAIN:
        message = pattern.sub(plain, message)
    return message
