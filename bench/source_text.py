"""Measures of one source file: lines, functions, classes, words and imports, from its syntax tree and tokens."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Label -> pattern of words that terms of the field replace. Identifiers are split at underscores and capitals first.
#: The first pattern that matches counts, so "made again" counts once. All but the last match in either case.
DIALECT = {
    "made/run again": r"(?:made?|makes|making|r[au]ns?|running) again",
    "again": r"again",
    "way out/back": r"ways? (?:out|back)",
    "told": r"told|tells?|telling|tellers?|retold|untold",
    "said": r"said",
    "asked": r"asked|asks|asking",
    "whoever": r"whoever|nobody|somebody|anybody",
    "twin": r"twins?",
    "besides": r"besides",
    "dearest": r"dearest",
    "posed": r"posed",
    "theirs": r"theirs",
    "moment": r"moments?",
    "raced": r"raced",
    "heed": r"heed(?:s|ed|ing)?",
    "MOST_/LEAST_": r"(?-i:MOST|LEAST)(?=[ _](?-i:[A-Z0-9]))",
}
_DIALECT = re.compile(
    r"(?<![a-z])(?:" + "|".join(f"({pattern})" for pattern in DIALECT.values()) + r")(?![a-z])", re.IGNORECASE
)
_WORD_BREAK = re.compile(r"_+|(?<=[a-z0-9])(?=[A-Z])")
#: Comments that direct a tool and so give no reason.
_DIRECTIVE = re.compile(r"#\s*(?:noqa|type:|fmt:|pragma|mypy:)[^#]*")
#: Starts the comment that gives the reason of all imports inside functions of a module.
MODULE_REASON = "# Imports inside functions: "
_LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT, tokenize.ENDMARKER}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DOCUMENTED = (ast.Module, ast.ClassDef, *_FUNCTIONS)
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Function:
    """One function or method; nested ones are listed too."""

    place: str  # "path:line name"
    lines: int  # from `def` to the last line of the body
    complexity: int  # McCabe's number, `and`, `or`, conditional expressions and comprehensions counted
    c901: int  # McCabe's number over statements alone


@dataclass(frozen=True, slots=True)
class SourceFile:
    """The measures of one file; `path` is relative to the repository."""

    path: str
    line_lengths: tuple[int, ...]  # characters of each line, blank ones as 0
    code_lines: int  # lines with a token other than a comment or a docstring
    functions: tuple[Function, ...]
    public_classes: tuple[str, ...]  # at module level, without a leading underscore
    format_skips: int
    dialect: Counter[str]  # label of DIALECT -> uses in identifiers, comments and docstrings
    imports: tuple[str, ...]  # dotted names, those inside functions included; "a.b.c" for `from a.b import c`
    local_imports: tuple[tuple[str, bool], ...]  # "path:line" and whether a comment gives a reason


def read_source(path: Path, root: Path) -> SourceFile:
    """The measures of the file at `path` in the repository at `root`; raises SyntaxError where it does not parse."""
    text, place = path.read_text(), str(path.relative_to(root))
    tree, tokens = ast.parse(text), list(tokenize.generate_tokens(io.StringIO(text).readline))
    docstrings = [node for node in map(_docstring, ast.walk(tree)) if node is not None]
    comments = {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}
    return SourceFile(
        path=place,
        line_lengths=tuple(len(line) for line in text.splitlines()),
        code_lines=len(_code_lines(tokens, docstrings)),
        functions=tuple(_functions(tree, place)),
        public_classes=tuple(
            node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        ),
        format_skips=sum("fmt: skip" in comment for comment in comments.values()),
        dialect=dialect(_words(tokens, docstrings)),
        imports=tuple(_imports(tree)),
        local_imports=tuple(_local_imports(tree, place, comments)),
    )


def c901(function: FunctionNode) -> int:
    """McCabe's number over statements, as ruff's C901 has it: nested functions count, expressions do not."""
    return 1 + sum(_branches(node) + isinstance(node, _FUNCTIONS) for node in _inside(function))


def complexity(function: FunctionNode) -> int:
    """McCabe's number over statements and expressions: also `and`, `or`, conditional expressions, comprehensions."""
    return 1 + sum(_branches(node) + _choices(node) for node in _inside(function))


def _inside(function: FunctionNode) -> Iterator[ast.AST]:
    return (node for node in ast.walk(function) if node is not function)


def _branches(node: ast.AST) -> int:
    if isinstance(node, (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler)):
        return 1
    if isinstance(node, (ast.Try, ast.TryStar)):
        return int(bool(node.orelse))
    if isinstance(node, ast.Match):
        last = node.cases[-1]
        return len(node.cases) - (last.guard is None and _matches_all(last.pattern))
    return 0


def _choices(node: ast.AST) -> int:
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    if isinstance(node, ast.comprehension):
        return 1 + len(node.ifs)
    return int(isinstance(node, ast.IfExp))


def _matches_all(pattern: ast.pattern) -> bool:
    if isinstance(pattern, ast.MatchOr):
        return any(map(_matches_all, pattern.patterns))
    return isinstance(pattern, ast.MatchAs) and (pattern.pattern is None or _matches_all(pattern.pattern))


def dialect(texts: list[str]) -> Counter[str]:
    """Uses of each label of DIALECT in some texts."""
    labels = list(DIALECT)
    return Counter(labels[(match.lastindex or 1) - 1] for text in texts for match in _DIALECT.finditer(text))


def _words(tokens: list[tokenize.TokenInfo], docstrings: list[ast.Constant]) -> list[str]:
    """Texts to search: identifiers split into words, comments, docstrings."""
    names = [_WORD_BREAK.sub(" ", token.string) for token in tokens if token.type == tokenize.NAME]
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return [*names, *comments, *(" ".join(str(node.value).split()) for node in docstrings)]


def _docstring(node: ast.AST) -> ast.Constant | None:
    if isinstance(node, _DOCUMENTED) and node.body and isinstance(node.body[0], ast.Expr):
        value = node.body[0].value
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return value
    return None


def _code_lines(tokens: list[tokenize.TokenInfo], docstrings: list[ast.Constant]) -> set[int]:
    """Numbers of the lines with code; those inside a string that spans lines are code unless it is a docstring."""
    documented = {(node.lineno, node.col_offset) for node in docstrings}
    lines: set[int] = set()
    for token in tokens:
        if token.type not in _LAYOUT and token.start not in documented:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines


def _functions(tree: ast.Module, place: str) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield Function(f"{place}:{node.lineno} {node.name}", lines, complexity(node), c901(node))


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _local_imports(tree: ast.Module, place: str, comments: dict[int, str]) -> Iterator[tuple[str, bool]]:
    """Every import inside a function, once. A reason is a comment beside it, above its run, or for the module."""
    seen: set[int] = set()
    for function in ast.walk(tree):
        if not isinstance(function, _FUNCTIONS):
            continue
        for node in ast.walk(function):
            if isinstance(node, (ast.Import, ast.ImportFrom)) and node.lineno not in seen:
                seen.add(node.lineno)
    reasons = {line for line, comment in comments.items() if _DIRECTIVE.sub("", comment).strip("# ")}
    for_all = any(comment.startswith(MODULE_REASON) for comment in comments.values())
    for line in sorted(seen):
        first = line
        while first - 1 in seen:
            first -= 1
        yield f"{place}:{line}", for_all or bool({line, first, first - 1} & reasons)
