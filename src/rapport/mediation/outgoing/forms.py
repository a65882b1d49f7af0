"""What the types of events of root look like to a consumer: the terms its conditions are about.
[ME-9]
"""

from __future__ import annotations

from rapport.core.errors import InterpretationError
from rapport.core.terms import Term
from rapport.mediation.concepts import Concepts
from rapport.mediation.model.interpretation import ROOT
from rapport.mediation.model.interpretations import Interpretations
from rapport.mediation.outgoing.terms import reading_term, terms_of


def forms_of(interpretations: Interpretations, name: str, concepts: Concepts) -> dict[str, Term]:
    """By type of event; raises UnknownName for an interpretation that is not there.

    Types that cannot be passed to it are left out. Takes some milliseconds per type: keep it for as
    long as the interpretations are in force.
    """
    interpretations.named(name)
    of_events = {*_event_types(interpretations, name), *_event_types(interpretations, ROOT)}
    forms: dict[str, Term] = {}
    for type_name in (each.name for each in interpretations.root.types if each.name in of_events):
        try:
            forms |= _forms(interpretations, name, type_name, concepts)
        except InterpretationError:
            continue  # no mapping: nothing of this type is ever seen
    return forms


def _event_types(interpretations: Interpretations, name: str) -> tuple[str, ...]:
    return interpretations.checked(name).event_types()


def _forms(
    interpretations: Interpretations, name: str, type_name: str, concepts: Concepts
) -> dict[str, Term]:
    """By type of event: one per attribute of a concept, else the type itself."""
    if type_name not in concepts:
        return {type_name: terms_of(interpretations, name, type_name).whole}
    return {
        f"{type_name}.{attribute}": terms_of(
            interpretations, name, type_name, given=reading_term(attribute, declared.type)
        ).whole
        for attribute, declared in concepts[type_name].items()
    }
