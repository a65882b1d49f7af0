"""Whose readings an absence rests on. [PO-11]"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rapport.policy.explaining.holding import event_places, sides_of
from rapport.policy.explaining.world import Evidence
from rapport.policy.plan import LastingTerm, Side, SilentTerm, StateTerm, state_atoms

_MOST_NAMED = 5


def observed_readings(
    world: Evidence, terms: Iterable[int], bindings: Mapping[str, str], start: int, end: int
) -> str:
    """Whose readings in [start, end) could have spoken against an absence."""
    counts: dict[str, int] = {}
    seen: set[tuple[str, str, str]] = set()
    for side in _sides(world, terms):
        assert side.stream is not None
        keys = [bindings[side.alias]] if side.alias in bindings else _allowed(world, side)
        for key in keys:
            if (side.alias, side.stream, key) not in seen:
                seen.add((side.alias, side.stream, key))
                found = len(world.between(side.stream, key, start, end - 1))
                shown = f"{side.alias} = {key}"
                counts[shown] = counts.get(shown, 0) + found
    named = sorted((name for name, count in counts.items() if count), key=lambda n: -counts[n])
    if not named:
        return "nobody was heard of meanwhile who could have spoken against it"
    said = ", ".join(f"{name} ({counts[name]})" for name in named[:_MOST_NAMED])
    more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    return f"looked at the readings of {said}{more}"


def _sides(world: Evidence, terms: Iterable[int]) -> Iterable[Side]:
    for number in terms:
        term = world.plan.terms[number]
        if isinstance(term, LastingTerm):
            states: list[StateTerm] = [atom.term for atom in state_atoms(term.state)]
        elif isinstance(term, SilentTerm):
            yield term.first
            continue
        else:
            states = [term]
        for state in states:
            yield from (sides_of(state)[place] for place in event_places(state))


def _allowed(world: Evidence, side: Side) -> list[str]:
    assert side.stream is not None
    return [key for key in world.keys(side.stream) if world.allows(side, key)]
