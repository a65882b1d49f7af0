"""What a regular expression is made of, and whether trying all its ways can take very long. Pure.
[CO-14]

Python tries one way after the other: `^(a+)+$` takes twice as long for each letter more. Texts come
from outside, so an expression with very many ways is matched in another manner (`all_ways.py`).
"""

from __future__ import annotations

import re

import msgspec

_COUNTS = re.compile(r"\{(\d*)(?:(,)(\d*))?\}")
_LOOKS = ("(?=", "(?!", "(?<=", "(?<!")
_LONG_ESCAPES = {"x": 4, "u": 6, "U": 10}
_DEEPEST = 50
_MOST_LOOPS = 2
"""One after the other, the search for where a match begins included: with two a text of four
thousand characters takes some millions of steps."""
_MANY_TIMES = 10
_MOST_FORKS = 12
"""Each of them may double the ways."""


class Atom(msgspec.Struct, frozen=True):
    """One character: a letter, an escape or a set, as Python writes it."""

    text: str


class Edge(msgspec.Struct, frozen=True):
    """A place between two characters: `^`, `\\Z`, `\\A`, `\\b` or `\\B`."""

    text: str


class Row(msgspec.Struct, frozen=True):
    """One after the other."""

    parts: tuple[Node, ...]


class Choice(msgspec.Struct, frozen=True):
    """One of several."""

    parts: tuple[Node, ...]


class Repeat(msgspec.Struct, frozen=True):
    """The same several times; `most` is None without an end."""

    part: Node
    least: int
    most: int | None


class Opaque(msgspec.Struct, frozen=True):
    """What only Python can match: it looks ahead or behind, or back at a group."""

    part: Node


Node = Atom | Edge | Row | Choice | Repeat | Opaque


class NotUnderstood(Exception):
    """Something that regular expressions of JSON Schema do not have."""


def parts_of(pattern: str) -> Node:
    """The parts of an expression that Python has compiled; raises NotUnderstood."""
    reader = _Reader(pattern)
    found = reader.choice(0)
    if reader.at < len(pattern):
        raise NotUnderstood(pattern)
    return found


def has_many_ways(node: Node) -> bool:
    """Whether trying one way after the other may take very long for some text."""
    begins = 0 if _is_anchored(node) else 1
    return _is_tangled(node) or _loops(node) + begins > _MOST_LOOPS or _forks(node) > _MOST_FORKS


# --- reading ---


class _Reader:
    """Reads an expression from left to right."""

    def __init__(self, pattern: str) -> None:
        self._pattern, self.at = pattern, 0

    def choice(self, depth: int) -> Node:
        """Up to the end of the group or of the expression."""
        if depth > _DEEPEST:
            raise NotUnderstood(self._pattern)
        rows = [self._row(depth)]
        while self._next() == "|":
            self.at += 1
            rows.append(self._row(depth))
        return rows[0] if len(rows) == 1 else Choice(tuple(rows))

    def _row(self, depth: int) -> Node:
        parts: list[Node] = []
        while self._next() not in ("", "|", ")"):
            parts.append(self._counted(self._one(depth)))
        return parts[0] if len(parts) == 1 else Row(tuple(parts))

    def _next(self) -> str:
        return self._pattern[self.at : self.at + 1]

    def _one(self, depth: int) -> Node:
        letter = self._next()
        if letter == "(":
            return self._group(depth)
        if letter == "\\":
            return self._escape()
        end = self._end_of_set() if letter == "[" else self.at + 1
        text, self.at = self._pattern[self.at : end], end
        if letter == "^":
            return Edge(text)
        return Atom("\\{" if letter == "{" else text)

    def _group(self, depth: int) -> Node:
        opening = next((each for each in _LOOKS if self._is_here(each)), "")
        is_opaque = bool(opening)
        if not opening:
            opening = "(?:" if self._is_here("(?:") else "("
        self.at += len(opening)
        if self._next() == "?":
            raise NotUnderstood(self._pattern)
        inner = self.choice(depth + 1)
        if self._next() != ")":
            raise NotUnderstood(self._pattern)
        self.at += 1
        return Opaque(inner) if is_opaque else inner

    def _is_here(self, text: str) -> bool:
        return self._pattern.startswith(text, self.at)

    def _escape(self) -> Node:
        letter = self._pattern[self.at + 1 : self.at + 2]
        end = self.at + _LONG_ESCAPES.get(letter, 2)
        text, self.at = self._pattern[self.at : end], end
        if letter in ("b", "B", "A", "Z"):
            return Edge(text)
        if letter.isdigit() and letter != "0":
            return Opaque(Row(()))
        if letter in ("0", "N", ""):
            raise NotUnderstood(self._pattern)
        return Atom(text)

    def _end_of_set(self) -> int:
        at = self.at + 1
        at += self._pattern[at : at + 1] == "^"
        at += self._pattern[at : at + 1] == "]"  # stands for itself there
        while self._pattern[at : at + 1] != "]":
            if at >= len(self._pattern):
                raise NotUnderstood(self._pattern)
            at += 2 if self._pattern[at] == "\\" else 1
        return at + 1

    def _counted(self, part: Node) -> Node:
        counts = self._counts()
        if counts is None:
            return part
        if self._next() == "?":
            self.at += 1  # which way is tried first does not matter
        if self._next() == "+":
            raise NotUnderstood(self._pattern)
        return Repeat(part, *counts)

    def _counts(self) -> tuple[int, int | None] | None:
        letter = self._next()
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if letter in simple:
            self.at += 1
            return simple[letter]
        found = _COUNTS.match(self._pattern, self.at)
        if found is None or found[0] == "{}":
            return None
        self.at = found.end()
        least, most = int(found[1] or 0), found[3] if found[2] else found[1]
        return least, int(most) if most else None


# --- ways ---


def _below(node: Node) -> tuple[Node, ...]:
    match node:
        case Row(parts) | Choice(parts):
            return parts
        case Repeat(part) | Opaque(part):
            return (part,)
    return ()


def _is_anchored(node: Node) -> bool:
    match node:
        case Edge(text):
            return text in ("^", "\\A")
        case Row(parts):
            return bool(parts) and _is_anchored(parts[0])
        case Choice(parts):
            return all(map(_is_anchored, parts))
    return False


def _is_tangled(node: Node) -> bool:
    """Whether something that can be done in several ways is repeated."""
    if isinstance(node, Repeat) and node.most not in (0, 1) and _has_ways(node.part):
        return True
    return any(map(_is_tangled, _below(node)))


def _has_ways(node: Node) -> bool:
    if isinstance(node, Choice) or (isinstance(node, Repeat) and node.least != node.most):
        return True
    return any(map(_has_ways, _below(node)))


def _loops(node: Node) -> int:
    """How many repetitions there are one after the other."""
    match node:
        case Row(parts):
            ahead = [_loops(part) for part in parts if isinstance(part, Opaque)]
            others = [_loops(part) for part in parts if not isinstance(part, Opaque)]
            return max(sum(others), *ahead, 0)
        case Repeat(part, least, most):
            is_loop = most is None or (most >= _MANY_TIMES and least != most)
            return is_loop + _loops(part)
    return max(map(_loops, _below(node)), default=0)


def _forks(node: Node) -> int:
    is_fork = isinstance(node, Choice) or (isinstance(node, Repeat) and node.least != node.most)
    return is_fork + sum(map(_forks, _below(node)))
