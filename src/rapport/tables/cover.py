"""Choosing the fewest tables that together give every attribute. [PO-2]"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

_EXACT_UP_TO = 12


def smallest_cover(offers: Mapping[str, frozenset[str]]) -> list[str]:
    """The fewest names whose offers contain all that any offers; of equal ones the first in order.

    Exact up to 12 candidates (the problem is NP-hard), greedy above; the same result every time.

    >>> smallest_cover({"a": frozenset("xy"), "b": frozenset("yz"), "c": frozenset("xyz")})
    ['c']
    """
    wanted = frozenset().union(*offers.values()) if offers else frozenset()
    if len(offers) > _EXACT_UP_TO:
        return _greedy(offers, wanted)
    for size in range(len(offers) + 1):
        for chosen in combinations(offers, size):
            if frozenset().union(*(offers[name] for name in chosen)) == wanted:
                return list(chosen)
    raise AssertionError("all offers together cover what they offer")


def _greedy(offers: Mapping[str, frozenset[str]], wanted: frozenset[str]) -> list[str]:
    chosen: list[str] = []
    while wanted:
        best = max(offers, key=lambda name: len(offers[name] & wanted))
        chosen.append(best)
        wanted -= offers[best]
    return [name for name in offers if name in chosen]
