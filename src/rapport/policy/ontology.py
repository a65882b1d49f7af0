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


class PairTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table of the site with one or two key columns and a number: `[functions.X] table = ...`."""

    table: str
    keys: tuple[str, ...]
    value: str
    symmetric: bool = False
    """True: (a, b) also stands for (b, a)."""


class SiteFunction(msgspec.Struct, frozen=True, kw_only=True):
    """`distance` of `substance.position` and `substance.position`: gives a number in `unit`."""

    name: str
    of: tuple[tuple[str, str], ...]
    """One or two (concept, attribute); the attribute `id` is the identity."""
    measure: str = ""
    """Name of a measuring function (`policy/measures.py`); empty: it is looked up."""
    lookup: PairTable | None = None
    unit: str = ""


class PushSource(msgspec.Struct, frozen=True, kw_only=True):
    """A source of events that give attributes of a concept; names their fields."""

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
    stale_after_ms: int = 0
    """Its last value is unknown so long after it was given; 0: it holds until the next."""
    uncertainty_ms: int = 0
    """How far its clock may be wrong, either way."""
    further: tuple[str, ...] = ()
    """More attributes that it gives; only through a typed interpretation."""
    speaks: str = ""
    """The type of its events in a typed interpretation; empty: that of the envelope."""

    @property
    def stream(self) -> str:
        """`concept.attribute`, the type of its mediated events; of the first attribute."""
        return f"{self.concept}.{self.attribute}"

    @property
    def attributes(self) -> tuple[str, ...]:
        """All that it gives."""
        return (self.attribute, *self.further)

    @property
    def streams(self) -> frozenset[str]:
        """One per attribute."""
        return frozenset(f"{self.concept}.{attribute}" for attribute in self.attributes)


class Ontology(msgspec.Struct, frozen=True, kw_only=True):
    """Concepts with typed attributes, relationships, and push sources; checked when loaded."""

    concepts: dict[str, dict[str, AttributeType]]
    relationships: dict[str, Relationship]
    sources: dict[str, PushSource]
    units: dict[str, dict[str, str]] = {}
    """Units of number attributes in root, by concept, where the site says them."""
    functions: dict[str, SiteFunction] = {}
    """What comparisons may call."""

    def streams(self) -> dict[str, AttributeType]:
        """Every `concept.attribute` that some push source gives, with its type."""
        return {
            f"{source.concept}.{attribute}": self.concepts[source.concept][attribute]
            for source in self.sources.values()
            for attribute in source.attributes
        }
