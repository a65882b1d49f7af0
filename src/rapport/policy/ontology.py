"""What a site speaks of: concepts, their attributes, relationships, and which attributes come as
events. [PO-1, PO-2]
"""

from __future__ import annotations

import msgspec

from rapport.core.schema import AttributeType


class Relationship(msgspec.Struct, frozen=True):
    """`inside` between `person.position` and `room.area`, decided by `function`."""

    name: str
    first: tuple[str, str]
    second: tuple[str, str]
    function: str


class PushSource(msgspec.Struct, frozen=True, kw_only=True):
    """A source of events that give one attribute of a concept; names their fields."""

    name: str
    concept: str
    attribute: str
    id: str = "id"
    time: str = "time"
    key: str
    value: tuple[str, ...]
    events: str = ""
    """Recorded events for replay, relative to the site."""
    interpretation: str = ""
    """Empty: the source speaks root units."""
    period_ms: int = 0
    """The source promises some event at least this often; 0: it promises nothing."""

    @property
    def stream(self) -> str:
        """`concept.attribute`, the type of its mediated events."""
        return f"{self.concept}.{self.attribute}"


class Ontology(msgspec.Struct, frozen=True, kw_only=True):
    """Concepts with typed attributes, relationships, and push sources; checked when loaded."""

    concepts: dict[str, dict[str, AttributeType]]
    relationships: dict[str, Relationship]
    sources: dict[str, PushSource]

    def streams(self) -> dict[str, AttributeType]:
        """Every `concept.attribute` that some push source gives, with its type."""
        return {
            source.stream: self.concepts[source.concept][source.attribute]
            for source in self.sources.values()
        }
