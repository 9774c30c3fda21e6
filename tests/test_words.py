"""Texts that users see use the words of the field; the replaced phrases do not come back.

`REPLACED` are the phrases, without their numbers, that plain wording replaced. They are searched for in the string
constants of Python modules, without docstrings, and in templates and scripts.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("app", "graph", "planner", "remat")

REPLACED = (
    "the command line cannot be read",
    "cannot be obeyed",
    "cannot be answered as put",
    "the model breaks a rule",
    "normalise by their batch",
    "from the best possible",
    "stopped before the search was through",
    "the smallest budget found is",
    "no plan peaks below",
    "binding node:",
    "What binds:",
    "mirror peaks at",
    "unless told",
    "Whose allocator is foreseen",
    "in so many parts",
    "Make the tables of a store what this program knows",
    "Drop what a store holds for nobody",
    "Take solves of a store that others serve",
    "Replay a saved plan on a model of today",
    "it is shown this once",
    "fault count",
    "our own fault",
    "a fault of ours",
    "may be reached by strangers",
    "in a form nobody reads",
    "a parameter nobody reads",
    "a field nobody knows",
    "There is no such thing",
    "is not answered; /docs lists what is",
    "what there is",
    "One row a question",
    "Seconds paid",
    "one step of each that fits",
    "No plan is like that",
    "Take a filter away",
    "Nobody has asked for anything yet",
    "More time than without",
    "No plan takes less than",
    "best bargains are shown",
    "Below the dashed line no plan is",
    "What a format cannot say is told instead",
    "B less A",
    "where the model leaves it open",
    "Run the plan here where that is quick",
    "A head sorts",
    "Not even 1 fits",
    "None is smaller than",
    "every field of the wire contract",
)


def texts() -> Iterator[tuple[str, str]]:
    """(place, text) of every string constant, template and script."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*")):
            place = str(path.relative_to(ROOT))
            if "vendor" in path.parts:
                continue
            if path.suffix == ".py":
                yield from constants(place, ast.parse(path.read_text()))
            elif path.suffix in {".html", ".js"}:
                yield place, path.read_text()


def constants(place: str, tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(place with line, text) of every string constant that is not a docstring."""
    docstrings = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield f"{place}:{node.lineno}", node.value


@pytest.fixture(scope="module")
def uses() -> dict[str, list[str]]:
    """Phrase -> places of its use."""
    found: dict[str, list[str]] = {phrase: [] for phrase in REPLACED}
    for place, text in texts():
        folded = " ".join(text.casefold().split())
        for phrase in REPLACED:
            if phrase.casefold() in folded:
                found[phrase].append(place)
    return found


@pytest.mark.parametrize("phrase", REPLACED)
def test_a_replaced_phrase_is_not_shown_to_users(phrase: str, uses: dict[str, list[str]]) -> None:
    assert not uses[phrase]
