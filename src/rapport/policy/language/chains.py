"""Chains of FOLLOWED-BY and the windows of their links. [PO-3]

A window stands behind its link and is also that of the links before it that have none; a link in
parentheses is left alone.
"""

from __future__ import annotations

from typing import NamedTuple

from rapport.core.times import format_duration
from rapport.policy.language.cursor import SyntaxFault
from rapport.policy.language.tree import Expression, FollowedBy, SourceSpan


class ChainLink(NamedTuple):
    """What follows in a chain, where its FOLLOWED-BY stands, and its window."""

    second: Expression
    place: SourceSpan
    window_ms: int | None


def make_chain(first: Expression, links: list[ChainLink]) -> Expression:
    """The links one after the other, leaning to the left; `first` alone when there is none."""
    expression = first
    for second, place, window_ms in links:
        expression = FollowedBy(expression, second, place, window_ms)
    return expression


def set_chain_window(chain: FollowedBy, window_ms: int, place: SourceSpan) -> Expression:
    """The chain with this window in its last link and those before it that have none; raises
    SyntaxFault when the last has one."""
    if chain.window_ms is not None:
        message = f"its window is already {format_duration(chain.window_ms)}"
        raise SyntaxFault("policy.repeated_window", message, place, "leave one of them out")
    links: list[ChainLink] = []
    first: Expression = chain
    while isinstance(first, FollowedBy) and first.window_ms is None:
        links.append(ChainLink(first.second, first.place, window_ms))
        first = first.first
    return make_chain(first, links[::-1])


def inherit_windows(links: list[ChainLink]) -> list[ChainLink]:
    """The links, each without a window with that of the next one that has one."""
    window_ms = None
    found: list[ChainLink] = []
    for link in reversed(links):
        window_ms = link.window_ms if link.window_ms is not None else window_ms
        found.append(link._replace(window_ms=window_ms))
    return found[::-1]
