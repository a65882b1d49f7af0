"""Expected results of a search by random walk, for comparison with measurements. [CX-12]

They hold for a walk that meets every broker with the same probability: exactly in a mesh, about in
a random graph of some degree, not at all in a ring.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def expected_hops(brokers: int, copies: int) -> float:
    """Hops of a walk that avoids where it was and has no limit, from a broker chosen by chance: the
    place of the first of r among n in random order, about n/(r+1).

    >>> expected_hops(100, 1), expected_hops(100, 9)
    (49.5, 9.1)
    """
    return (brokers - copies) / (copies + 1)


def expected_success(brokers: int, copies: int, hops: float) -> float:
    """The share of walks that meet a copy within so many hops, 1-(1-r/n)^t.

    >>> round(expected_success(100, 5, 20), 3)
    0.642
    """
    return float(1.0 - (1.0 - min(copies / brokers, 1.0)) ** hops)


def expected_coverage(degree: float, depth: int) -> float:
    """New brokers that one hop learns of with look-ahead: those so far away, in all directions but
    the one it came from.

    >>> expected_coverage(4, 0), expected_coverage(4, 1), expected_coverage(4, 2)
    (1.0, 3.0, 9.0)
    """
    return float(max(degree - 1, 1) ** depth)


def slope(rates: Sequence[float], copies: Sequence[float]) -> float:
    """The exponent with which copies follow the rate of requests: a straight line through the
    logarithms. A half is the square root, which needs the fewest messages in all.

    >>> round(slope([1, 10, 100], [3, 30, 300]), 3)
    1.0
    """
    return float(np.polyfit(np.log(rates), np.log(copies), 1)[0])
