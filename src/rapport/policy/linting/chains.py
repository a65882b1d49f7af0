"""Policies that set each other off: what actions do that policies read, and the circles in it.
[PO-12]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from rapport.policy.compiler.reads import table_attributes
from rapport.policy.ontology import Ontology
from rapport.policy.plan import Plan

RAW = "raw."
Leads = Mapping[str, Iterable[str]]
"""From each policy to those that read what it does."""


class Effect(NamedTuple):
    """What carrying out an action changes that policies can read, as `concept.attribute`."""

    phrase: str
    gives: frozenset[str]


def effect_of(phrase: str, said: Mapping[str, Any], ontology: Ontology) -> Effect:
    """What the site says of an action (`append`, `set`), as far as policies read it: appending to
    `raw.NAME` gives what the source NAME gives.
    """
    gives: set[str] = set()
    channel, attribute = said.get("append"), said.get("set")
    if isinstance(channel, str) and channel.startswith(RAW):
        source = ontology.sources.get(channel.removeprefix(RAW))
        gives |= source.streams if source is not None else set()
    if isinstance(attribute, str):
        gives.add(attribute)
    return Effect(phrase, frozenset(gives))


def reads_of(plan: Plan) -> frozenset[str]:
    """Every `concept.attribute` that a plan reads, from events or tables."""
    found = set(plan.streams())
    for term in plan.terms:
        found |= {f"{side.concept}.{attribute}" for side, attribute in table_attributes(term)}
        for side in (term.first, term.second):
            found |= {f"{side.concept}.{one.attribute}" for one in side.constraints}
    return frozenset(found)


def policy_graph(
    plans: Mapping[str, Plan], effects: Mapping[str, list[Effect]]
) -> dict[str, set[str]]:
    """Which policies read what each of them does."""
    readers: dict[str, set[str]] = {}
    for name, plan in plans.items():
        for attribute in reads_of(plan):
            readers.setdefault(attribute, set()).add(name)
    return {
        name: {
            reader
            for effect in effects.get(name, ())
            for attribute in effect.gives
            for reader in readers.get(attribute, ())
        }
        for name in plans
    }


def shortest_cycle(start: str, leads: Leads) -> tuple[str, ...]:
    """The shortest way from a policy back to itself, both ends included; empty when there is none.

    >>> shortest_cycle("a", {"a": ["b"], "b": ["a", "b"]})
    ('a', 'b', 'a')
    """
    came: dict[str, str] = {}
    waiting = deque((start,))
    while waiting:
        here = waiting.popleft()
        for there in sorted(leads.get(here, ())):
            if there == start:
                return (*_back(start, here, came), start)
            if there not in came:
                came[there] = here
                waiting.append(there)
    return ()


def _back(start: str, here: str, came: Mapping[str, str]) -> tuple[str, ...]:
    way = [here]
    while way[-1] != start:
        way.append(came[way[-1]])
    return tuple(reversed(way))
