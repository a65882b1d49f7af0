"""What conversions remember from event to event: JSON that is saved and given back. [ME-4]"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from rapport.core.errors import Corrupt
from rapport.mediation.model.conversions import Conversion, Stateful
from rapport.mediation.model.remembered import Remembered

Function = Callable[..., Any]
Functions = Mapping[str, Function]
"""The site's functions by the names that `Call` and `Stateful` use."""


def name_of_state(conversion: Conversion) -> str:
    """What a state is kept under: the conversion's name, and what it learns from, so that another
    kind under the same name does not take it for its own.

    >>> name_of_state(Conversion("count", ("text",), ("number",), Stateful("count_texts")))
    'count'
    """
    from rapport.mediation.model.feeding import fed_by

    if isinstance(conversion.how, Stateful):
        return conversion.name
    kind = type(conversion.how).__name__
    return "\x1f".join((conversion.name, kind, *(feed for feed, _ in fed_by(conversion))))


class Memory:
    """The states of conversions by name; JSON, so it can be saved and given back.

    What conversions of ours learn is kept key by key; the state of a function of the site is its
    own matter and assigned whole.
    """

    def __init__(self, states: Mapping[str, Any] | None = None) -> None:
        self.states = states if isinstance(states, Remembered) else Remembered(states)
        self._names: dict[int, tuple[Conversion, str]] = {}
        """By the conversion's identity, since it is asked for with every event."""

    def state_of(self, conversion: Conversion) -> Any:
        """The present state, at first the initial one: empty, or what a function of the site
        declares.
        """
        name = self._name(conversion)
        if name not in self.states:
            self.states[name] = self._first(conversion)
        return self.states[name]

    def _name(self, conversion: Conversion) -> str:
        known = self._names.get(id(conversion))
        if known is None or known[0] is not conversion:
            known = self._names[id(conversion)] = conversion, name_of_state(conversion)
        return known[1]

    def _first(self, conversion: Conversion) -> Any:
        how = conversion.how
        if isinstance(how, Stateful):
            return msgspec.json.decode(how.initial)
        # Earlier versions kept what ours learned under the bare name.
        before = self.states.get(conversion.name)
        return self.states.pop(conversion.name) if isinstance(before, Remembered) else Remembered()

    def feed(self, conversion: Conversion, event: Any, functions: Functions | None = None) -> bool:
        """Takes in an event of the type that the conversion is fed by.

        False: it says nothing about the matter, or is older than what is known. Raises Rejected
        for one that cannot be used; the state is then as it was.
        """
        from rapport.mediation.model.feeding import next_state

        found = next_state(conversion, self.state_of(conversion), event, functions or {})
        if found is None:
            return False
        name = self._name(conversion)
        if found[0] is not self.states[name] or isinstance(conversion.how, Stateful):
            self.states[name] = found[0]
        return True

    def to_json(self) -> bytes:
        """All states."""
        return msgspec.json.encode(self.states)

    @staticmethod
    def from_json(saved: bytes) -> Memory:
        """What `to_json` gave; raises Corrupt."""
        try:
            return Memory(msgspec.json.decode(saved, type=dict[str, Any]))
        except msgspec.MsgspecError as error:
            message = f"what conversions remembered cannot be read: {error}"
            raise Corrupt(message, code="mediation.bad_memory") from None
