"""Texts that users see use the words of the field; the replaced phrases do not come back.

`REPLACED` are the phrases that plain wording replaced; `N` stands for a number or an interpolated value. They are
searched for in the strings of Python modules, docstrings included (help texts, schemas and reference pages are made of
them), and in templates, scripts, schemas, documentation and its pictures.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("app", "graph", "planner", "remat")
SHOWN = (*PACKAGES, "docs", "deploy", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "demo", "check")
#: Suffixes of files read as they are, beside Python modules.
AS_THEY_ARE = {"", ".html", ".js", ".css", ".json", ".md", ".svg", ".txt", ".yml"}
#: What an f-string interpolates.
VALUE = "{}"

REPLACED = (
    "the command line cannot be read",
    "cannot be obeyed",
    "cannot be answered as put",
    "the model breaks a rule",
    "normalise by their batch",
    "dropouts draw",
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
    "No plan takes less",
    "N more time",
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


def files() -> Iterator[Path]:
    """Every file that users read, or that makes what they read."""
    for name in SHOWN:
        place = ROOT / name
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.is_file() and not {"vendor", "__pycache__"} & set(path.parts):
                yield path


def texts() -> Iterator[tuple[str, str]]:
    """(place, text) of every string of a module, and of every other file whole."""
    for path in files():
        place = str(path.relative_to(ROOT))
        if path.suffix == ".py":
            yield from strings(place, ast.parse(path.read_text()))
        elif path.suffix in AS_THEY_ARE:
            yield place, path.read_text()


def strings(place: str, tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(place with line, text) of every string; an f-string is one text, its values `VALUE`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else VALUE for part in node.values)
            yield f"{place}:{node.lineno}", "".join(str(part) for part in parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield f"{place}:{node.lineno}", node.value


def pattern(phrase: str) -> re.Pattern[str]:
    """The phrase in any case and across line ends; `N` is a number, with its unit, or an interpolated value."""
    words = [r"(?:\d%?|\{\}%?)" if word == "N" else re.escape(word) for word in phrase.split()]
    return re.compile(r"\s+".join(words), re.IGNORECASE)


@pytest.fixture(scope="module")
def shown() -> list[tuple[str, str]]:
    return list(texts())


@pytest.mark.parametrize("phrase", REPLACED)
def test_a_replaced_phrase_is_not_shown_to_users(phrase: str, shown: list[tuple[str, str]]) -> None:
    replaced = pattern(phrase)
    assert not [place for place, text in shown if replaced.search(text)]


def test_a_phrase_is_found_with_any_number_in_docstrings_and_in_interpolated_text() -> None:
    replaced = pattern("N more time")
    module = 'def plan():\n    """At most 10% more\n    time."""\n    return f"{overhead:.1%} more time"\n'
    found = [place for place, text in strings("plan.py", ast.parse(module)) if replaced.search(text)]
    assert found == ["plan.py:2", "plan.py:4"]
    assert not replaced.search("a looser budget never takes more time")
