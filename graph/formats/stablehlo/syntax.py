"""Statements of MLIR text, in the forms in which StableHLO and its functions are printed.

A statement in its generic form (`"stablehlo.sort"(%0) ({ ... }) : ...`) and in the short form of its op are read
by one rule: names after `%` are operands unless `=` or `:` follows, braces are regions if a statement or a block begins
in them, and what follows the first colon outside brackets are the types.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from graph.formats.stablehlo.lexer import END, Lexer, Token

#: Words that go on with a statement on a line of their own.
_GO_ON = frozenset({"cond", "do", "else", "reducer", "attributes"})
_OPENING, _CLOSING = frozenset("([<"), frozenset(")]>")


class Declared(NamedTuple):
    """An argument or a result of a function or block."""

    name: str  # "" for a result
    type: str
    attributes: str = ""  # text of its dictionary
    location: str = ""


@dataclass(slots=True)
class Region:
    """Statements of one block, and its arguments."""

    arguments: list[Declared] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)


@dataclass(slots=True)
class Statement:
    """One op as written."""

    op: str
    results: list[tuple[str, int]]  # name, count
    start: int  # in the text
    operands: list[str] = field(default_factory=list)
    bound: list[str] = field(default_factory=list)  # by regions for the operands, in the short `while`
    callee: str = ""  # the first symbol
    types: list[str] = field(default_factory=list)  # of the results
    regions: list[Region] = field(default_factory=list)
    text: str = ""
    location: str = ""

    @property
    def outputs(self) -> list[str]:
        """Names of the results: `%0`, or `%0#0` and `%0#1`."""
        return [f"{name}#{i}" if count > 1 else name for name, count in self.results for i in range(count)]


@dataclass(slots=True)
class Parsed:
    """A module as written."""

    name: str
    functions: dict[str, Region]
    locations: dict[str, str]  # `#loc7` -> what it stands for


def parse(text: str, depth: int) -> Parsed:
    """The module of a text, its regions at most `depth` deep. Raises BadGraph with the line of the first fault."""
    return _Parser(Lexer(text), depth).module()


class _Parser:
    def __init__(self, lexer: Lexer, depth: int):
        self.lexer, self.depth_left = lexer, depth
        self.parsed = Parsed("", {}, {})

    def module(self) -> Parsed:
        while (token := self.lexer.peek()) is not END:
            if token.text == "module":
                self.lexer.take()
                if self.lexer.peek().text.startswith("@"):
                    self.parsed.name = self.lexer.take().text[1:].strip('"')
                if self.lexer.peek().text == "attributes":
                    self.lexer.take()
                    self.lexer.skip_balanced()
                self.lexer.expect("{")
            elif token.text == "func.func":
                self._function()
            elif token.text.startswith("#"):
                self._alias()
            elif token.text == "}":
                self.lexer.take()
                self._location()
            else:
                self._skip_statement()
        return self.parsed

    def _alias(self) -> None:
        """`#loc7 = loc("jit(f)/mul"(#loc3))`."""
        name = self.lexer.take().text
        self.lexer.expect("=")
        if self.lexer.peek().text == "loc":
            self.parsed.locations[name] = self._location()
        else:
            self._skip_statement()

    def _skip_statement(self) -> None:
        """Skip to the next line outside brackets."""
        while True:
            if self.lexer.peek().text in ("(", "[", "{", "<"):
                self.lexer.skip_balanced()
            else:
                self.lexer.take()
            if self.lexer.peek().begins_line:
                return

    def _location(self) -> str:
        """Text in the brackets of a location that follows; "" if none does."""
        if self.lexer.peek().text != "loc" or self.lexer.peek(1).text != "(":
            return ""
        self.lexer.take()
        start = self.lexer.peek().start + 1
        self.lexer.skip_balanced()
        following = self.lexer.peek()
        end = len(self.lexer.text) if following is END else following.start
        return self.lexer.text[start:end].rstrip().removesuffix(")")

    def _function(self) -> None:
        self.lexer.take()
        if self.lexer.peek().text in ("public", "private", "nested"):
            self.lexer.take()
        name = self.lexer.take()
        if not name.text.startswith("@"):
            raise self.lexer.fault(name, "the name of a function")
        arguments = self._declared_list()
        if self.lexer.peek().text == "->":
            self.lexer.take()
            self._type_list()
        if self.lexer.peek().text == "attributes":
            self.lexer.take()
            self.lexer.skip_balanced()
        if self.lexer.peek().text != "{":
            raise self.lexer.fault(self.lexer.peek(), "the body of the function")
        body = self._region()
        body.arguments = arguments
        self._location()
        self.parsed.functions[name.text[1:].strip('"')] = body

    def _declared_list(self) -> list[Declared]:
        """`(%arg0: tensor<4xf32> {jax.buffer_donor = true} loc("x"), ...)`; types without names in lists of results."""
        self.lexer.expect("(")
        declared = []
        while self.lexer.peek().text != ")":
            name = ""
            if self.lexer.peek().text.startswith("%"):
                name = self.lexer.take().text
                self.lexer.expect(":")
            type = self._type()
            attributes = ""
            if self.lexer.peek().text == "{":
                start = self.lexer.peek().start
                self.lexer.skip_balanced()
                attributes = self.lexer.text[start : self.lexer.peek().start]
            declared.append(Declared(name, type, attributes, self._location()))
            if self.lexer.peek().text != ")":
                self.lexer.expect(",")
        self.lexer.take()
        return declared

    def _type(self) -> str:
        token = self.lexer.take()
        if not (token.text[:1].isalpha() or token.text.startswith("!")):
            raise self.lexer.fault(token, "a type")
        return token.text

    def _region(self) -> Region:
        opening = self.lexer.expect("{")
        if not self.depth_left:
            raise self.lexer.fault(opening, "regions that are nested less deep")
        self.depth_left -= 1
        region = Region()
        if self.lexer.peek().text.startswith("^"):
            self.lexer.take()
            if self.lexer.peek().text == "(":
                region.arguments = self._declared_list()
            self.lexer.expect(":")
        while self.lexer.peek().text != "}":
            if self.lexer.peek().text.startswith("^"):
                raise self.lexer.fault(self.lexer.peek(), "a region of one block, as StableHLO has them")
            region.statements.append(self._statement())
        self.lexer.take()
        self.depth_left += 1
        return region

    def _begins_region(self) -> bool:
        """Whether the brace that follows opens a region, not a dictionary of attributes."""
        first, second = self.lexer.peek(1), self.lexer.peek(2)
        if first.text[:1] in ("%", "^"):
            return True
        return first.text != "}" and second.text not in ("=", ",", "}")

    def _statement(self) -> Statement:
        results: list[tuple[str, int]] = []
        start = self.lexer.peek()
        while self.lexer.peek().text.startswith("%"):
            name, count = self.lexer.take().text, 1
            if self.lexer.peek().text == ":":
                self.lexer.take()
                count = self._count(self.lexer.take())
            results.append((name, count))
            if self.lexer.peek().text != ",":
                self.lexer.expect("=")
                break
            self.lexer.take()
        op = self.lexer.take()
        if not re.fullmatch(r'"?[A-Za-z_][\w$.]*"?', op.text):
            raise self.lexer.fault(op, "the name of an op")
        statement = Statement(op.text.strip('"'), results, start.start)
        self._rest(statement)
        if sum(count for _, count in results) > len(statement.types):
            raise self.lexer.fault(op, "an op with the type of each result")
        return statement

    def _count(self, token: Token) -> int:
        if not re.fullmatch(r"[0-9]{1,6}", token.text):
            raise self.lexer.fault(token, "a number of results")
        return int(token.text)

    def _rest(self, statement: Statement) -> None:
        """Operands, types, regions and location up to the end of the statement."""
        depth, block, end = 0, list[Declared](), 0
        while (token := self.lexer.peek()) is not END:
            text = token.text
            if depth == 0 and (text == "}" or (token.begins_line and text not in _GO_ON)):
                break
            if text == "{":
                if self._begins_region():
                    end = end or token.start
                    region = self._region()
                    region.arguments = region.arguments or block
                    statement.regions.append(region)
                else:
                    self.lexer.skip_balanced()
            elif text == "reducer":
                self.lexer.take()
                while self.lexer.peek().text == "(":  # one list for each operand
                    block += self._declared_list()
            elif text == ":" and depth == 0 and not statement.types:
                end = end or token.start
                self.lexer.take()
                statement.types = self._types_of_results(sum(count for _, count in statement.results))
            elif text == "loc" and self.lexer.peek(1).text == "(":
                end = end or token.start
                statement.location = self._location()
            else:
                self._plain(statement)
                depth += (text in _OPENING) - (text in _CLOSING)
        following = self.lexer.peek()
        end = end or (len(self.lexer.text) if following is END else following.start)
        statement.text = " ".join(self.lexer.text[statement.start : end].split())

    def _plain(self, statement: Statement) -> None:
        """An operand, a symbol, or what belongs to attributes."""
        text = self.lexer.take().text
        if text.startswith("%"):
            (statement.bound if self.lexer.peek().text == "=" else statement.operands).append(text)
        elif text.startswith("@") and not statement.callee:
            statement.callee = text[1:].strip('"')

    def _types_of_results(self, results: int) -> list[str]:
        """`(operands) -> results`, or one list: of the results, or of operands that ends with the result's."""
        types = self._type_list()
        if self.lexer.peek().text == "->":
            self.lexer.take()
            types = self._type_list()
        return types[len(types) - results :] if len(types) >= results else types

    def _type_list(self) -> list[str]:
        if self.lexer.peek().text == "(":
            return [declared.type for declared in self._declared_list()]
        types = [self._type()]
        while self.lexer.peek().text == ",":
            self.lexer.take()
            types.append(self._type())
        return types
