"""Contrary actions on one target: `open door` of one policy, `close the door` of another. [PO-12]

What an action does to the world nobody tells us; words that are contrary to each other are a table,
and the site can add its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rapport.policy.linting.comparisons import comparisons_of
from rapport.policy.linting.requirements import compatible
from rapport.policy.plan import Plan

Pair = tuple[str, str]

CONTRARY: tuple[Pair, ...] = (
    ("open", "close"),
    ("open", "shut"),
    ("lock", "unlock"),
    ("on", "off"),
    ("start", "stop"),
    ("raise", "lower"),
    ("up", "down"),
    ("increase", "decrease"),
    ("enable", "disable"),
    ("activate", "deactivate"),
    ("arm", "disarm"),
    ("allow", "forbid"),
    ("allow", "deny"),
    ("admit", "refuse"),
    ("block", "unblock"),
    ("heat", "cool"),
    ("fill", "empty"),
    ("connect", "disconnect"),
    ("show", "hide"),
    ("mute", "unmute"),
    ("pause", "resume"),
)
"""Words that are contrary on the same target; either way round."""
_LEFT_OUT = frozenset(("the", "a", "an", "please", "switch", "turn", "set", "put", "of", "in"))


class ActionStatement(NamedTuple):
    """One word (0 or 1) of a pair, said of a target."""

    pair: int
    side: int
    target: str


def contrary_target(one: str, other: str, pairs: Iterable[Pair] = CONTRARY) -> str | None:
    """What both phrases are about when they say contrary things of it; None otherwise.

    >>> contrary_target("Open the main door", "close main door")
    'main door'
    >>> contrary_target("turn the light on", "switch off light")
    'light'
    >>> contrary_target("open door", "close window") is None
    True
    """
    known = list(pairs)
    theirs = {contrary_to(saying) for saying in action_statements(other, known)}
    return next((one.target for one in action_statements(one, known) if one in theirs), None)


def action_statements(phrase: str, pairs: Iterable[Pair]) -> list[ActionStatement]:
    """What a phrase says by the words that have a contrary; two phrases are contrary when one says
    what is `contrary_to` something that the other does.
    """
    words = _words(phrase)
    found: list[ActionStatement] = []
    for place, pair in enumerate(pairs):
        for side, word in enumerate(pair):
            target = _without(words, _words(word))
            if target is not None:
                found.append(ActionStatement(place, side, " ".join(target)))
    return found


def contrary_to(saying: ActionStatement) -> ActionStatement:
    """The other word of the pair, of the same target."""
    return saying._replace(side=1 - saying.side)


def exclude_each_other(one: Plan, other: Plan) -> str:
    """The concept of which no instance can satisfy both policies at one reading; empty when one
    may. Different instances may all the same.
    """
    theirs = comparisons_of(other)
    for (concept, attribute), requirements in comparisons_of(one).items():
        if not compatible((*requirements, *theirs.get((concept, attribute), ()))):
            return concept
    return ""


def _words(phrase: str) -> tuple[str, ...]:
    found = phrase.casefold().replace("-", " ").split()
    return tuple(word for word in found if word not in _LEFT_OUT)


def _without(words: Sequence[str], part: Sequence[str]) -> tuple[str, ...] | None:
    """The words without the first place where `part` stands; None when it does not."""
    if not part:
        return None
    for place in range(len(words) - len(part) + 1):
        if tuple(words[place : place + len(part)]) == tuple(part):
            return (*words[:place], *words[place + len(part) :])
    return None
