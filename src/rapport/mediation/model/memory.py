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


class Memory:
    """The states of conversions by name; JSON, so it can be saved and given back.

    What conversions of ours learn is kept key by key; the state of a function of the site is its
    own matter and assigned whole.
    """

    def __init__(self, states: Mapping[str, Any] | None = None) -> None:
        self.states = states if isinstance(states, Remembered) else Remembered(states)

    def state_of(self, conversion: Conversion) -> Any:
        """The present state, at first the initial one: empty, or what a function of the site
        declares.
        """
        if conversion.name not in self.states:
            how = conversion.how
            first = msgspec.json.decode(how.initial) if isinstance(how, Stateful) else Remembered()
            self.states[conversion.name] = first
        return self.states[conversion.name]

    def feed(self, conversion: Conversion, event: Any, functions: Functions | None = None) -> bool:
        """Takes in an event of the type that the conversion is fed by.

        False: it says nothing about the matter, or is older than what is known. Raises Rejected
        for one that cannot be used; the state is then as it was.
        """
        from rapport.mediation.model.feeding import next_state

        found = next_state(conversion, self.state_of(conversion), event, functions or {})
        if found is None:
            return False
        if found[0] is not self.states[conversion.name] or isinstance(conversion.how, Stateful):
            self.states[conversion.name] = found[0]
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
