"""What lasts and what is silent: `C for 2 hours`, `no temperature of S for 3 hours`. [PO-3]"""

from __future__ import annotations

from rapport.core.times import format_duration
from rapport.policy.compiler.scope import IDENTITY, Scope, aliases_of, event_names
from rapport.policy.language.faults import Diagnostics, did_you_mean
from rapport.policy.language.tree import DurationCondition, SilenceCondition

_MOST_ALIASES = 2


def check_duration(lasting: DurationCondition, scope: Scope, faults: Diagnostics) -> None:
    """Notes a state of too many aliases, and one that no event ever begins; its parts are sound."""
    aliases = aliases_of(lasting.inner)
    if len(aliases) > _MOST_ALIASES:
        faults.add(
            "policy.for_too_many_aliases",
            f"'for' is about one or two aliases, but this names {', '.join(aliases)}",
            lasting.place,
            hint="put what is about the others on lines of their own",
        )
        return
    if not all(alias in scope.concepts for alias in aliases):
        return  # the definition was faulted already
    if not any(end.from_events for end in scope.ends(lasting)):
        duration = format_duration(lasting.duration_ms)
        faults.add(
            "policy.for_without_events",
            f"only tables decide this, so no event begins its {duration}",
            lasting.place,
            hint="leave 'for' out, or put a condition beside it on what comes as events: "
            f"{event_names(scope.ontology)}",
        )


def check_silence(silent: SilenceCondition, scope: Scope, faults: Diagnostics) -> SilenceCondition:
    """Notes an attribute that is not there or that no source gives; the node stays as it is."""
    if silent.alias not in scope.concepts:
        return silent  # faulted already
    given = scope.event_attributes(silent.alias)
    concept, attribute = scope.concepts[silent.alias], silent.attribute
    known = scope.attributes_of(silent.alias)
    if not given:
        faults.add(
            "policy.silence_without_events",
            f"nothing about a {concept} comes as events, so it is always silent",
            silent.place,
            hint=f"add [sources.NAME] with concept = {concept!r} to the site",
        )
    elif attribute and attribute not in (*known, IDENTITY):
        message = f"the concept {concept!r} has no attribute {attribute!r}"
        hint = did_you_mean(attribute, given)
        faults.add("policy.unknown_attribute", message, silent.place, hint=hint)
    elif attribute and attribute not in given:
        faults.add(
            "policy.silence_without_events",
            f"no source gives {attribute!r} of {concept!r}, so it is always silent",
            silent.place,
            hint=f"what comes as events: {', '.join(given)}",
        )
    return silent
