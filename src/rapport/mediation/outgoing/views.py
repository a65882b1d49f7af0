"""How a consumer sees a channel of root: the terms of each type of event, and events transformed.
[ME-9]

What the query kind `own` needs, and whoever hands events to a consumer in its own interpretation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rapport.channel.query.own_terms import View
from rapport.core.errors import InterpretationError, UnknownName
from rapport.core.event import StoredEvent
from rapport.core.terms import Term
from rapport.mediation.concepts import Concepts, value_of
from rapport.mediation.model.interpretation import ROOT
from rapport.mediation.model.interpretations import Interpretations
from rapport.mediation.model.runtime import Functions
from rapport.mediation.model.transformer import Transformer, make_transformer
from rapport.mediation.outgoing.terms import reading_term, terms_of
from rapport.mediation.rejection import Rejected
from rapport.mediation.typed import stamp_of

_replace = msgspec.structs.replace
_UNSEEN = (Rejected, UnknownName, LookupError, TypeError, ValueError, msgspec.DecodeError)
"""What an event raises that is no reading, no value of its type, or of a type nobody knows."""


def view_of(
    interpretations: Interpretations,
    name: str,
    concepts: Concepts,
    functions: Functions | None = None,
) -> View:
    """The view of an interpretation; raises UnknownName.

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
    seeing = Seeing(interpretations, name, concepts, functions)
    return View(stamp_of(interpretations, name), forms, seeing.see)


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


class Seeing:
    """Events of root as one consumer sees them; `transformed` and `rejected` are counted."""

    def __init__(
        self,
        interpretations: Interpretations,
        name: str,
        concepts: Concepts,
        functions: Functions | None = None,
    ) -> None:
        self.transformed = self.rejected = 0
        self._interpretations, self._name = interpretations, name
        self._concepts, self._functions = concepts, functions
        self._transformers: dict[str, Transformer] = {}

    def see(self, stored: StoredEvent) -> Sequence[StoredEvent]:
        """The event with the consumer's value for data; several when it is split, none when it is
        rejected or of a type that the consumer has no words for.
        """
        try:
            type_name, value = self._value(stored)
            transformer = self._transformer(type_name)
            found = transformer(value)
        except _UNSEEN:
            self.rejected += 1
            return ()
        except InterpretationError as error:
            if error.code != "mapping.missing":
                raise  # a function of the site is not there: not the fault of this event
            self.rejected += 1
            return ()
        self.transformed += 1
        values = found if transformer.plan.several else [found]
        return [_with_data(stored, each) for each in values]

    def _value(self, stored: StoredEvent) -> tuple[str, Any]:
        """The type and the value in root; raises LookupError and its like for what is neither a
        reading nor a value.
        """
        event = stored.event
        data = msgspec.json.decode(event.data)
        concept, _, attribute = event.type.partition(".")
        declared = self._concepts.get(concept, {}).get(attribute)
        if declared is None:
            return event.type, data
        return concept, value_of(concept, attribute, declared.type, data, event.time)

    def _transformer(self, type_name: str) -> Transformer:
        if type_name not in self._transformers:
            self._transformers[type_name] = make_transformer(
                self._interpretations, self._name, type_name, "out", self._functions
            )
        return self._transformers[type_name]


def _with_data(stored: StoredEvent, value: Any) -> StoredEvent:
    return _replace(stored, event=_replace(stored.event, data=msgspec.json.encode(value)))
