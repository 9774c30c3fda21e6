"""What no text shown to a user has: words of Python, bare numbers of bytes, rules that a file is said to break."""

from __future__ import annotations

import re

#: Names of errors, types and values as Python's messages have them (`dynamo=True` is code that a message advises);
#: numbers of bytes without separators or a unit.
FOREIGN = re.compile(
    r"\b(?:[A-Z][a-z]+)+(?:Error|Exception)\b|\b(?:NoneType|dict|tuple|ndarray)\b|'(?:str|int|float|bool|list|bytes)'"
    r"|(?<!=)\b(?:None|True|False)\b|<class |Traceback|breaks a rule|\b\d{4,} bytes\b"
)
