"""The knowledge of an ensemble component at one time, and its event. [EN-1, EN-14]"""

from __future__ import annotations

from typing import Any

import msgspec

from rapport.core.event import Event, content_id

KNOWLEDGE = "rapport.ensemble.knowledge"
_NO_VALUES: dict[str, Any] = {}


class Knowledge(msgspec.Struct, frozen=True, gc=False):
    """The knowledge of a component, as its node published it.

    Identified by (component, version); a later version replaces an earlier one wherever it
    arrives. Its values are a hierarchy of texts, numbers, booleans, lists and dictionaries.
    """

    component: str
    """The component's id, the same for all its versions; no two components share one."""
    node: str
    """The node it lives on."""
    roles: tuple[str, ...]
    version: int
    """Grows with every publication: the wall clock of its node in ms, or the last version plus one
    if that clock stands still or goes back.
    """
    created_ms: int
    """The wall clock of its node when it was published."""
    values: dict[str, Any] = _NO_VALUES

    def to_event(self, *, source: str, headers: dict[str, str] | None = None) -> Event:
        """The knowledge as an event; the same version has the same id on every node."""
        return Event(
            source=source,
            id=content_id(KNOWLEDGE, self.component, str(self.version)),
            type=KNOWLEDGE,
            subject=self.component,
            time=self.created_ms,
            data=msgspec.json.encode(self),
            headers=headers or {},
        )

    @staticmethod
    def from_event(event: Event) -> Knowledge:
        """Decodes the event of `to_event`; raises InvalidInput."""
        read: Knowledge = event.payload_as(Knowledge)
        return read
