"""Tokens of MLIR text. A type or attribute with its angle brackets is one token: `tensor<4x8xf32>`, `dense<0.0>`."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from graph.errors import BadGraph, quoted

_TOKEN = re.compile(
    r"""(?P<space>(?:\s+|//[^\n]*)+)
    |(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<arrow>->)
    |(?P<name>%[\w$.\-]+(?:\#\d+)?|@"(?:[^"\\]|\\.)*"|[@^\#!][\w$.\-]*|[A-Za-z_][\w$.]*)
    |(?P<number>-?(?:0x[0-9A-Fa-f]+|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?))
    |(?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|->|[<>]')
#: Ends the text that is read: contents of large constants follow.
RESOURCES = "{-#"


class Token(NamedTuple):
    """A piece of text, and where it starts."""

    text: str
    start: int
    begins_line: bool


END = Token("", -1, True)


class Lexer:
    """Tokens with lookahead."""

    def __init__(self, text: str):
        self.text = text
        self._tokens = _tokens(text)
        self._ahead: deque[Token] = deque()

    def peek(self, ahead: int = 0) -> Token:
        """The next token, or one further ahead; END after the last."""
        while len(self._ahead) <= ahead:
            self._ahead.append(next(self._tokens, END))
        return self._ahead[ahead]

    def take(self) -> Token:
        """The next token, which is used up."""
        token = self.peek()
        self._ahead.popleft()
        return token

    def expect(self, text: str) -> Token:
        """The next token, which has to be `text`. Raises BadGraph."""
        token = self.take()
        if token.text != text:
            raise self.fault(token, f"`{text}`")
        return token

    def skip_balanced(self) -> None:
        """Skip a bracket and all up to the one that closes it."""
        depth = 0
        while True:
            token = self.take()
            if token is END:
                raise self.fault(token, "a closing bracket")
            depth += (token.text in _OPENING) - (token.text in _CLOSING)
            if depth == 0:
                return

    def fault(self, token: Token, expected: str) -> BadGraph:
        """The error about a token."""
        if token is END:
            found, line = "the end of the text", self.text.count("\n") + 1
        else:
            found, line = quoted(token.text), self.text.count("\n", 0, token.start) + 1
        return BadGraph.one("not_a_model", f"line {line}", found, expected, "export the program again; was it cut off?")


_OPENING, _CLOSING = frozenset("([{<"), frozenset(")]}>")


def _tokens(text: str) -> Iterator[Token]:
    at, begins_line = 0, True
    while at < len(text):
        if text.startswith(RESOURCES, at):
            return
        match = _TOKEN.match(text, at)
        assert match is not None
        start, at = at, match.end()
        if match.lastgroup == "space":
            begins_line |= "\n" in match[0]
            continue
        if match.lastgroup == "name" and at < len(text) and text[at] == "<" and match[0][0] not in "%@^":
            at = _after_brackets(text, at)
        yield Token(text[start:at], start, begins_line)
        begins_line = False


def _after_brackets(text: str, start: int) -> int:
    """Index after the `>` that closes the `<` at `start`; the end of the text if none does."""
    depth = 0
    for match in _BRACKET.finditer(text, start):
        depth += (match[0] == "<") - (match[0] == ">")
        if depth == 0:
            return match.end()
    return len(text)
