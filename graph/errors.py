"""What can be wrong with a model. Every message says the thing, the place and the remedy.

GraphError
├── BadGraph               the document breaks a rule; carries up to ten findings
│   └── NoGradient         an op on the gradient path cannot be differentiated
├── CannotDifferentiate    a rule does not cover this use of its op; told as NoGradient with the node's place
├── CannotExecute          the numpy reference has no kernel, or the bytes are too many
└── ArenaFault             planned addresses would overwrite bytes that are still needed: a defect of a plan
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

MAX_FINDINGS = 10
MAX_QUOTE_LENGTH = 80


def quoted(text: str) -> str:
    """The text in quotes for a message, cut in the middle when it is long."""
    if len(text) > MAX_QUOTE_LENGTH:
        half = MAX_QUOTE_LENGTH // 2
        return f"{text[:half]!r}...{text[-8:]!r} ({len(text)} characters)"
    return repr(text)


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault: where it is, what stands there, what was expected and how to mend it."""

    code: str  # one word of `docs/reference/errors.md`, such as "undefined_value"
    path: str  # place in the sender's terms: "nodes[41].inputs[0]", "values.x.shape"
    found: str
    expected: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}: found {self.found}, expected {self.expected}; {self.remedy}"


class GraphError(Exception):
    """Root of everything the graph room raises on purpose."""


class BadGraph(GraphError):
    """A model that breaks a rule, with every finding (ten at most) at once.

    `excerpt` quotes the lines around the first fault, where there are lines to quote.
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
    """Faults collected so that ten are told at once; the rest are only counted."""

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
        """Take over what another reader found."""
        self.count += len(error.findings) + error.left_out
        self.kept.extend(error.findings[: MAX_FINDINGS - len(self.kept)])

    def settle(self, excerpt: str = "") -> None:
        """Nothing when nothing was found, else BadGraph."""
        if self.count:
            raise BadGraph(self.kept, self.count - len(self.kept), excerpt)


class NoGradient(BadGraph):
    """An op between the loss and a wanted value that cannot be differentiated."""

    def inside(self, where: str) -> NoGradient:
        """The same with every path beginning at `where`."""
        return NoGradient([replace(found, path=f"{where}{found.path}") for found in self.findings], self.left_out)


class CannotDifferentiate(GraphError):
    """Raised by a gradient rule for a use of its op that it does not cover."""

    def __init__(self, found: str, remedy: str, code: str = ""):
        self.found, self.remedy, self.code = found, remedy, code
        super().__init__(f"{found}; {remedy}")


class CannotExecute(GraphError):
    """The reference cannot run this graph; the message says which node and why."""


class ArenaFault(GraphError):
    """Planned addresses overlap live bytes or leave the arena; the message says whose and where."""
