"""HTML parsed for tests: elements with attributes and text, in document order."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "input", "br", "img", "hr"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    inside: list[Element | str] = field(default_factory=list)
    parent: Element | None = None

    @property
    def text(self) -> str:
        """Text without what narrow screens show in place of other columns."""
        if "narrow" in self.attributes.get("class", "").split():
            return ""
        return " ".join("".join(one if isinstance(one, str) else f" {one.text} " for one in self.inside).split())

    def all(self, tag: str = "", **attributes: str) -> list[Element]:
        """Descendants with the tag and attributes."""
        found: list[Element] = []
        for one in self.inside:
            if isinstance(one, Element):
                wanted = all(one.attributes.get(name.rstrip("_")) == value for name, value in attributes.items())
                if (not tag or one.tag == tag) and wanted:
                    found.append(one)
                found += one.all(tag, **attributes)
        return found

    def above(self, tag: str) -> bool:
        return self.parent is not None and (self.parent.tag == tag or self.parent.above(tag))


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = self.at = Element("", {})

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        one = Element(tag, {name: value or "" for name, value in attrs}, parent=self.at)
        self.at.inside.append(one)
        if tag not in VOID:
            self.at = one

    def handle_endtag(self, tag: str) -> None:
        assert self.at.tag == tag, f"</{tag}> ends <{self.at.tag}>"
        assert self.at.parent is not None
        self.at = self.at.parent

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_data(self, data: str) -> None:
        self.at.inside.append(data)


def parsed(text: str) -> Element:
    """The document; asserts that every element is closed."""
    parser = _Parser()
    parser.feed(text)
    parser.close()
    assert parser.at is parser.root, f"<{parser.at.tag}> is left open"
    return parser.root
