"""The moments at which the state of a binding may change, binding by binding, and the stretches of
them in which it is true. [PO-3, PO-6]
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rapport.policy.runners.operators.table import Rows

_CODES = 31
"""Bits of a code in the key of a pair."""


def keys_of(own: Rows, partner: Rows, *, paired: bool) -> Rows:
    """Who moments and stretches belong to: pairs, or the identities that have readings."""
    return (own << _CODES) | partner if paired else own


def pairs_of(keys: Rows) -> tuple[Rows, Rows]:
    """Both codes of the keys of pairs."""
    return keys >> _CODES, keys & ((1 << _CODES) - 1)


class Moments:
    """Steps sorted by who they belong to, then in order; equal keys make a group."""

    def __init__(
        self, own: Rows, partner: Rows, order: Rows, times: Rows, *, paired: bool = False
    ) -> None:
        self.own, self.partner, self.order, self.times = own, partner, order, times
        keys = keys_of(own, partner, paired=paired)
        begins = np.ones(len(keys), np.bool_)
        begins[1:] = keys[1:] != keys[:-1]
        self.starts = np.flatnonzero(begins)
        self.ends = np.append(self.starts[1:], len(keys))
        self.keys = keys[self.starts]
        self.groups = np.cumsum(begins) - 1


NOT_ENDED = 2**62


class Runs(NamedTuple):
    """Stretches of truth within a portion."""

    begins: Rows
    """What each began with: the number of an open stretch, or, after these, of a true row."""
    ended: Rows
    """The time at which it ended; NOT_ENDED while it goes on."""
    opened: int
    """How many open stretches there were before."""

    def ends_of_opened(self) -> tuple[Rows, Rows]:
        """Numbers of the open stretches that ended, and when."""
        chosen = (self.begins < self.opened) & (self.ended < NOT_ENDED)
        return self.begins[chosen], self.ended[chosen]

    def begun(self) -> tuple[Rows, Rows]:
        """Numbers of the true rows with which something began, and when it ended."""
        chosen = self.begins >= self.opened
        return self.begins[chosen] - self.opened, self.ended[chosen]


class TrueRows(NamedTuple):
    """Where a state is true: at which moment, with whom."""

    moments: Rows
    partners: Rows


def find_runs(moments: Moments, true: TrueRows, open_groups: Rows, open_partners: Rows) -> Runs:
    """Joins what is true at one moment after the other, and what was true before the first.

    A run goes on as long as every moment of its group says so, thus it ends with the first that
    does not.
    """
    groups = np.concatenate((open_groups, moments.groups[true.moments]))
    partners = np.concatenate((open_partners, true.partners))
    # Each group has a place before its moments for what was open, and one after them that stays
    # empty, so that runs of different groups never touch.
    places = np.concatenate(
        (
            moments.starts[open_groups] + 2 * open_groups,
            true.moments + 2 * groups[len(open_groups) :] + 1,
        )
    )
    sorting = np.lexsort((places, partners, groups))
    places, partners, groups = places[sorting], partners[sorting], groups[sorting]
    begins = np.ones(len(places), np.bool_)
    begins[1:] = (places[1:] != places[:-1] + 1) | (partners[1:] != partners[:-1])
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(places)) - 1 if len(first) else first
    following = places[last] - 2 * groups[last]
    ended = np.full(len(first), NOT_ENDED)
    over = following < moments.ends[groups[last]]
    ended[over] = moments.times[following[over]]
    return Runs(sorting[first], ended, len(open_groups))
