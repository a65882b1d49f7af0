"""Choosing the fewest tables that together give every attribute. [PO-2]"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

_EXACT_UP_TO = 16


def smallest_cover(
    offers: Mapping[str, frozenset[str]], wanted: frozenset[str] | None = None
) -> list[str]:
    """The fewest names whose offers contain all that is wanted and that any offers (by default
    everything); of equal ones the first in order.

    Exact up to 16 candidates (the problem is NP-hard: 65,536 sets are some 20 ms), greedy above
    and then without any name that could be left out; the same result every time.

    >>> smallest_cover({"a": frozenset("xy"), "b": frozenset("yz"), "c": frozenset("xyz")})
    ['c']
    >>> smallest_cover({"a": frozenset("xy"), "c": frozenset("xyz")}, frozenset("x"))
    ['a']
    """
    offered = frozenset().union(*offers.values()) if offers else frozenset()
    bits = {item: 1 << place for place, item in enumerate(sorted(offered, key=repr))}
    needed = offered if wanted is None else offered & wanted
    target = sum(bits[item] for item in needed)
    masks = {name: sum(bits[item] for item in items) & target for name, items in offers.items()}
    useful = {name: mask for name, mask in masks.items() if mask}
    chosen = _exact(useful, target) if len(useful) <= _EXACT_UP_TO else _greedy(useful, target)
    return [name for name in offers if name in chosen]


def _exact(masks: Mapping[str, int], target: int) -> set[str]:
    for size in range(len(masks) + 1):
        for chosen in combinations(masks, size):
            if _union(masks, chosen) == target:
                return set(chosen)
    raise AssertionError("all offers together cover what they offer")


def _greedy(masks: Mapping[str, int], target: int) -> set[str]:
    chosen: list[str] = []
    left = target
    while left:
        best = max(masks, key=lambda name: (masks[name] & left).bit_count())
        chosen.append(best)
        left &= ~masks[best]
    for name in reversed(chosen.copy()):
        others = [other for other in chosen if other != name]
        if _union(masks, others) == target:
            chosen = others
    return set(chosen)


def _union(masks: Mapping[str, int], names: list[str] | tuple[str, ...]) -> int:
    union = 0
    for name in names:
        union |= masks[name]
    return union
