"""Conditions in a consumer's words: how it sees events while they are being looked for. [ME-9]"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rapport.channel.query.query_kinds import InterpretationView
from rapport.core.event import StoredEvent
from rapport.mediation.in_force import InForce
from rapport.mediation.outgoing.forms import forms_of
from rapport.mediation.outgoing.originals import raw_of
from rapport.mediation.outgoing.speech import Said, Speech

_replace = msgspec.structs.replace


def query_view(
    speech: Speech, in_force: InForce, say: Callable[[StoredEvent], Said]
) -> InterpretationView:
    """The terms of the interpretation, and `say` for what root cannot tell: since that is said only
    once, an event that matches costs no second transformation when it is delivered.
    """
    if speech.is_one_way:
        return InterpretationView(speech.stamp, {}, lambda stored: ())

    def see(stored: StoredEvent) -> list[StoredEvent]:
        """With root's envelope and plain data, as conditions have them."""
        said = say(stored)
        data = said.plain or tuple(event.data for event in said.events)
        return [_replace(stored, event=_replace(stored.event, data=each)) for each in data]

    def accepts(stored: StoredEvent) -> bool:
        """What came in these words, or takes a worker to say, is not said just to find out."""
        is_own = raw_of(stored.event, speech.stamp) is not None
        return is_own or speech.may_block or bool(say(stored).events)

    forms = forms_of(in_force.typed, speech.name, in_force.concepts)
    return InterpretationView(speech.stamp, forms, see, accepts, speech.may_block)
