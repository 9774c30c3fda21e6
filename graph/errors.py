"""Exceptions and findings of the graph packages. Every message names the thing, the place and the remedy.

GraphError
├── BadGraph               the document breaks a rule; carries up to ten findings
│   └── NoGradient         an op on the gradient path cannot be differentiated
├── CannotDifferentiate    a rule does not cover this use of its op; reported as NoGradient with the node's path
├── CannotExecute          the numpy interpreter has no kernel for a node, or its input has another type
└── ArenaFault             planned addresses would overwrite live bytes: a defect of the plan
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

MAX_FINDINGS = 10
MAX_QUOTE_LENGTH = 80
MAX_LISTED = 5  # names in one message


def quoted(text: str) -> str:
    """`repr(text)` for a message, cut in the middle above MAX_QUOTE_LENGTH characters."""
    if len(text) > MAX_QUOTE_LENGTH:
        half = MAX_QUOTE_LENGTH // 2
        return f"{text[:half]!r}...{text[-8:]!r} ({len(text)} characters)"
    return repr(text)


def listed(names: Sequence[str]) -> str:
    """The first MAX_LISTED names of a list in a message, and the number of the others."""
    more = len(names) - MAX_LISTED
    return ", ".join(names[:MAX_LISTED]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault: its path, the value found, the value expected and the remedy."""

    code: str  # error code of `docs/reference/errors.md`, such as "undefined_value"
    path: str  # place in the document: "nodes[41].inputs[0]", "values.x.shape"
    found: str
    expected: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}: found {self.found}, expected {self.expected}; {self.remedy}"


class GraphError(Exception):
    """Base class of all errors that `graph` raises."""


class BadGraph(GraphError):
    """An invalid model, with up to MAX_FINDINGS findings; `left_out` counts the others.

    `excerpt` quotes the lines around the first fault; "" when there is no text to quote.
    """

    def __init__(self, findings: Sequence[Finding], left_out: int = 0, excerpt: str = ""):
        self.findings = tuple(findings[:MAX_FINDINGS])
        self.excerpt = excerpt
        self.left_out = left_out + len(findings) - len(self.findings)
        more = f"\n... and {self.left_out} more" if self.left_out else ""
        quote = f"\n{excerpt}" if excerpt else ""
        super().__init__("\n".join(str(finding) for finding in self.findings) + more + quote)

    @classmethod
    def one(cls, code: str, path: str, found: str, expected: str, remedy: str) -> BadGraph:
        return cls([Finding(code, path, found, expected, remedy)])


class Findings:
    """Collector of findings: keeps the first MAX_FINDINGS, counts the rest."""

    def __init__(self) -> None:
        self.kept: list[Finding] = []
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def add(self, code: str, path: str, found: str, expected: str, remedy: str) -> None:
        self.count += 1
        if len(self.kept) < MAX_FINDINGS:
            self.kept.append(Finding(code, path, found, expected, remedy))

    def add_all(self, error: BadGraph) -> None:
        """Add the findings of another error."""
        self.count += len(error.findings) + error.left_out
        self.kept.extend(error.findings[: MAX_FINDINGS - len(self.kept)])

    def settle(self, excerpt: str = "") -> None:
        """Raise BadGraph if there is any finding."""
        if self.count:
            raise BadGraph(self.kept, self.count - len(self.kept), excerpt)


class NoGradient(BadGraph):
    """A non-differentiable op between the loss and a value that needs a gradient."""

    def inside(self, where: str) -> NoGradient:
        """This error with `where` prefixed to every path."""
        return NoGradient([replace(finding, path=f"{where}{finding.path}") for finding in self.findings], self.left_out)


class CannotDifferentiate(GraphError):
    """A use of an op that its gradient rule does not cover."""

    def __init__(self, found: str, remedy: str, code: str = ""):
        self.found, self.remedy, self.code = found, remedy, code
        super().__init__(f"{found}; {remedy}")


class CannotExecute(GraphError):
    """A graph that the numpy interpreter cannot run; the message names the node and the reason."""


class ArenaFault(GraphError):
    """Planned addresses that overlap live bytes or leave the arena; the message names the values and addresses."""
