"""Events of root as a consumer sees them, each transformed on its own: judges conditions in own
terms. [ME-9]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rapport.channel.query.query_kinds import InterpretationView
from rapport.core.errors import InterpretationError, UnknownName
from rapport.core.event import StoredEvent
from rapport.mediation.codegen.transformer import Transformer, make_transformer
from rapport.mediation.concepts import Concepts, canonical_value
from rapport.mediation.interpretations.registry import InterpretationRegistry
from rapport.mediation.interpretations.repository import stamp_of
from rapport.mediation.memory import Functions
from rapport.mediation.outgoing.terms import consumer_terms
from rapport.mediation.rejections import RejectedValue

_replace = msgspec.structs.replace
_UNSEEN = (RejectedValue, UnknownName, LookupError, TypeError, ValueError, msgspec.DecodeError)
"""What an event raises that is no reading, no value of its type, or of a type nobody knows."""


def view_of(
    interpretations: InterpretationRegistry, name: str, concepts: Concepts
) -> InterpretationView:
    """The view of an interpretation without originals and cache; raises UnknownName."""
    forms = consumer_terms(interpretations, name, concepts)
    seeing = Seeing(interpretations, name, concepts)
    return InterpretationView(stamp_of(interpretations, name), forms, seeing.see)


class Seeing:
    """Events of root as one consumer sees them; `transformed` and `rejected` are counted."""

    def __init__(
        self,
        interpretations: InterpretationRegistry,
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
        return concept, canonical_value(attribute, declared.type, data, event.time)

    def _transformer(self, type_name: str) -> Transformer:
        if type_name not in self._transformers:
            self._transformers[type_name] = make_transformer(
                self._interpretations, self._name, type_name, "out", self._functions
            )
        return self._transformers[type_name]


def _with_data(stored: StoredEvent, value: Any) -> StoredEvent:
    return _replace(stored, event=_replace(stored.event, data=msgspec.json.encode(value)))
