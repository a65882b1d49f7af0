"""Searches a text by a regular expression, all ways at once: takes no longer than the text times
the expression. Pure. [CO-14]
"""

from __future__ import annotations

import re

import msgspec

from rapport.communication.contents.expressions import (
    Atom,
    Choice,
    Edge,
    Node,
    NotUnderstood,
    Opaque,
    Repeat,
    Row,
)

MOST_STEPS = 500
"""Of an expression, its repetitions written out."""


class _Step(msgspec.Struct):
    """One step of an expression: a character, a place between two, or only a way on."""

    following: list[int]
    is_fitting: re.Pattern[str] | None = None
    is_edge: bool = False

    def is_passed(self, text: str, at: int) -> bool:
        """Whether one gets on from here without a character."""
        if self.is_fitting is None:
            return True
        return self.is_edge and self.is_fitting.match(text, at) is not None


class EveryWay:
    """An expression that is searched for; see `re.Pattern`. A hundred times slower than Python's
    own where that is fast.
    """

    def __init__(self, node: Node) -> None:
        """Raises NotUnderstood for what only Python can match, or what is too large."""
        self._steps: list[_Step] = []
        end = self._add([])
        self._end, self._start = end, self._compiled(node, end)
        self._known: dict[tuple[int, str], bool] = {}

    def search(self, text: str) -> bool:
        """Whether the expression is found somewhere in a text."""
        here: set[int] = set()
        for at in range(len(text) + 1):
            here.add(self._start)
            reached = self._reached(here, text, at)
            if self._end in reached:
                return True
            if at == len(text):
                break
            here = {
                following
                for number in reached
                if self._takes(number, text[at])
                for following in self._steps[number].following
            }
        return False

    def _reached(self, here: set[int], text: str, at: int) -> set[int]:
        """Where one can be without a further character."""
        found, open = set(here), list(here)
        while open:
            step = self._steps[open.pop()]
            if not step.is_passed(text, at):
                continue
            fresh = [number for number in step.following if number not in found]
            found.update(fresh)
            open += fresh
        return found

    def _takes(self, number: int, letter: str) -> bool:
        step = self._steps[number]
        if step.is_fitting is None or step.is_edge:
            return False
        known = self._known.get((number, letter))
        if known is None:
            if len(self._known) > MOST_STEPS:
                self._known.clear()
            known = step.is_fitting.fullmatch(letter) is not None
            self._known[number, letter] = known
        return known

    # --- writing it out, from the end to the beginning ---

    def _add(
        self, following: list[int], fitting: re.Pattern[str] | None = None, *, is_edge: bool = False
    ) -> int:
        if len(self._steps) >= MOST_STEPS:
            raise NotUnderstood("too large")
        self._steps.append(_Step(following, fitting, is_edge))
        return len(self._steps) - 1

    def _compiled(self, node: Node, then: int) -> int:
        """The first step of a node after which `then` comes."""
        match node:
            case Atom(text):
                return self._add([then], re.compile(text))
            case Edge(text):
                return self._add([then], re.compile(text), is_edge=True)
            case Row(parts):
                for part in reversed(parts):
                    then = self._compiled(part, then)
                return then
            case Choice(parts):
                return self._add([self._compiled(part, then) for part in parts])
            case Repeat(part, least, most):
                return self._repeated(part, least, most, then)
            case Opaque():
                raise NotUnderstood("only Python can match it")

    def _repeated(self, part: Node, least: int, most: int | None, then: int) -> int:
        if most is None:
            again = self._add([then])
            self._steps[again].following.append(self._compiled(part, again))
            then = again
        else:
            out = then
            for _ in range(most - least):
                then = self._add([self._compiled(part, then), out])
        for _ in range(least):
            then = self._compiled(part, then)
        return then
