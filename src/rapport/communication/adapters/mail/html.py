"""The readable text of an HTML mail: lines where a reader sees lines, quotations marked with `>`.
[CO-16]

Tags are found by one pattern that never looks back: the standard library's parser takes minutes for
a small mail that was made for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape

_TAG = re.compile(r"<(/?)([A-Za-z][A-Za-z0-9]{0,20})((?:[\s/][^<>]{0,4000})?)>|<[!?][^<>]{0,4000}>")
_CLASS = re.compile(r"class\s*=\s*[\"']?([^\"'<>]{0,200})", re.IGNORECASE)
_UNSEEN = frozenset(("script", "style", "head", "title", "template", "noscript"))
_LINES = frozenset(
    ("p", "div", "br", "li", "ul", "ol", "tr", "table", "h1", "h2", "h3", "h4", "hr", "pre")
)
_QUOTING_CLASSES = ("gmail_quote", "moz-cite-prefix", "yahoo_quoted", "protonmail_quote")
_VOID = frozenset(("br", "hr", "img", "input", "meta", "link", "area", "col", "wbr"))
_MOST_OPEN = 1_000
_LOOKED_BACK = 20
"""A closing tag closes one of the innermost open ones; others were never opened, or long ago."""


def text_of_html(html: str) -> str:
    """The text, whatever the HTML is like; the time is linear in its length."""
    reader = _Reader()
    place = 0
    whole = "".join(_without_comments(html))
    for tag in _TAG.finditer(whole):
        reader.take_text(whole[place : tag.start()])
        place = tag.end()
        if tag[2]:
            reader.take_tag(tag[2].lower(), tag[3] or "", closing=bool(tag[1]))
    reader.take_text(whole[place:])
    return reader.text()


def _without_comments(html: str) -> Iterator[str]:
    place = 0
    while (begin := html.find("<!--", place)) >= 0:
        yield html[place:begin]
        end = html.find("-->", begin + 4)
        if end < 0:
            return
        place = end + 3
    yield html[place:]


class _Reader:
    """Collects text; knows only whether it is within something unseen or quoted."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._line: list[str] = []
        self._open: list[tuple[str, bool]] = []
        self._quoted = self._unseen = 0

    def text(self) -> str:
        """What a reader sees."""
        self._end_line()
        return "\n".join(self._lines).strip("\n")

    def take_text(self, text: str) -> None:
        """What stands between two tags."""
        if text and not self._unseen:
            self._line.append(unescape(text))

    def take_tag(self, name: str, attributes: str, *, closing: bool) -> None:
        """One tag."""
        if name in _LINES or name == "blockquote":
            self._end_line()
        if closing:
            self._close(name)
        elif name not in _VOID and len(self._open) < _MOST_OPEN:
            quoting = name == "blockquote" or _is_quoting(attributes)
            self._open.append((name, quoting))
            self._quoted += quoting
            self._unseen += name in _UNSEEN

    def _close(self, wanted: str) -> None:
        if not any(name == wanted for name, _quoting in self._open[-_LOOKED_BACK:]):
            return
        while self._open:
            name, quoting = self._open.pop()
            self._quoted -= quoting
            self._unseen -= name in _UNSEEN
            if name == wanted:
                return

    def _end_line(self) -> None:
        words = " ".join("".join(self._line).split())
        self._line.clear()
        if words or (self._lines and self._lines[-1]):
            self._lines.append(f"> {words}" if self._quoted else words)


def _is_quoting(attributes: str) -> bool:
    found = _CLASS.search(attributes)
    return found is not None and any(word in found[1] for word in _QUOTING_CLASSES)
