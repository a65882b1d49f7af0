"""Which source speaks how: a source, its attribute, its interpretation. [ME-5, design 19]"""

from __future__ import annotations

import msgspec

from rapport.core.schema import PARTS, AttributeType
from rapport.mediation.interpretation import (
    ROOT,
    IdentityRule,
    Interpretation,
    TimeRule,
    ValueRule,
)

RAW_PREFIX = "raw."
"""Channels of what was received are named `raw.<source>`."""


class SourceBinding(msgspec.Struct, frozen=True, kw_only=True):
    """A source, the attributes its events give, and how it speaks.

    Without `interpretation` it speaks root: `time`, `key` and `value` name the fields of its
    payload (the time of the envelope holds when the payload has none). `id` names the field in
    recorded files; events that come in with an envelope keep its id.
    """

    source: str
    concept: str = ""
    """Empty: its events are of a type of root and go into a channel as they are."""
    attribute: str = ""
    type: AttributeType = "number"
    further: tuple[str, ...] = ()
    """More attributes that it gives, through a typed interpretation."""
    interpretation: str = ""
    speaks: str = ""
    """The type of its events in a typed interpretation; empty: that of the envelope."""
    into: str = "events"
    """The channel that takes what was given a meaning."""
    id: str = "id"
    own_id: str = ""
    """The field that names a live event, where the site declares one; empty: each arrival is an
    event of its own.
    """
    zone: str = ""
    """Of local times that say none, by the source or the site; empty: such times are quarantined.
    """
    time: str = "time"
    key: str = "key"
    value: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    """Units of the parts in root, where the site says; points and rectangles are in metres."""

    @property
    def stream(self) -> str:
        """`concept.attribute`, the type of the readings."""
        return f"{self.concept}.{self.attribute}"

    @property
    def attributes(self) -> tuple[str, ...]:
        """All that it gives."""
        return (self.attribute, *self.further)

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the scalars that make one value."""
        return PARTS[self.type]

    @property
    def raw_channel(self) -> str:
        """Where its events wait."""
        return RAW_PREFIX + self.source

    def root_unit(self, part: str) -> str:
        """The unit of a part in root; empty when nobody said."""
        if part in self.parts and self.units:
            return self.units[self.parts.index(part)]
        return "m" if self.type in ("point", "rectangle") else ""


def root_interpretation(binding: SourceBinding) -> Interpretation:
    """What a source means that speaks root: its declared fields, as they are."""
    names = binding.value or binding.parts
    values = tuple(
        ValueRule(
            part, (name,), unit=binding.root_unit(part) or "1", to=binding.root_unit(part) or "1"
        )
        for part, name in zip(binding.parts, names, strict=True)
    )
    if binding.type in ("text", "boolean"):
        values = tuple(msgspec.structs.replace(value, unit="", to="") for value in values)
    return Interpretation(
        name=ROOT,
        time=TimeRule((binding.time,), "root", optional=True),
        identity=IdentityRule((binding.key,)),
        values=values,
    )
