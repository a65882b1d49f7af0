"""`no X of S for D`, one silence at a time, those that were broken too. [PO-6, PO-11]"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from rapport.policy.explaining.stretch import StateSpan, occurrence
from rapport.policy.explaining.world import Evidence, Reading
from rapport.policy.plan import SilentTerm


def silences(world: Evidence, term: SilentTerm, bound: Mapping[str, str]) -> Iterator[StateSpan]:
    """Every silence of whoever the alias may be, however short; in order of time per identity."""
    if world.began is None:
        return
    known = set(world.instances(term.first))
    for identity in _identities(world, term, bound, known):
        heard = sorted(
            (reading for stream in term.streams for reading in world.of(stream, identity)),
            key=lambda one: (one.time, one.id, one.stream, one.key),
        )
        moments: list[Reading | None] = [*heard, None]
        if identity in known:
            yield _silence(world, term, identity, None, moments[0])
        for last, following in pairwise(moments):
            yield _silence(world, term, identity, last, following)


def _identities(
    world: Evidence, term: SilentTerm, bound: Mapping[str, str], known: set[str]
) -> list[str]:
    alias = term.first.alias
    heard = [key for stream in term.streams for key in world.keys(stream)]
    candidates = [bound[alias]] if alias in bound else dict.fromkeys([*sorted(known), *heard])
    return [
        one
        for one in candidates
        if world.allows(term.first, one) and (one in known or one in heard)
    ]


def _silence(
    world: Evidence,
    term: SilentTerm,
    identity: str,
    last: Reading | None,
    following: Reading | None,
) -> StateSpan:
    assert world.began is not None
    since = world.began if last is None else last.time
    events = () if last is None else (last,)
    bindings = {term.first.alias: identity}
    found = occurrence(world, bindings, events, since + term.duration_ms, since=since)
    return StateSpan(found, None if following is None else following.time, following)
