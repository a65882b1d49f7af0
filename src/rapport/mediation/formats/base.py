"""What a format is: from one event to the documents it says. Limits that hold for all. [ME-13]"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import msgspec

from rapport.core.errors import InvalidInput
from rapport.core.event import Event
from rapport.core.ids import content_id
from rapport.kernel.config_fields import suggest
from rapport.mediation.rejection import Rejected

MAX_DOCUMENTS = 10_000
"""Most documents of one event."""
MAX_DEPTH = 100
"""Most objects and lists within each other."""
MAX_BYTES = 16 * 1024 * 1024
"""Longest payload that a format looks at."""
MAX_NAMES = 2_000
"""Most names in one object that a format makes: columns, attributes."""

_LONGEST_ID = 100
_NO_UNITS: Mapping[str, str] = MappingProxyType({})

Options = TypeVar("Options", bound=msgspec.Struct)


class Document(msgspec.Struct, frozen=True):
    """One thing said by an event, as a plain value: an object of texts, numbers, truths, lists."""

    value: dict[str, Any]
    type: str = ""
    """What the format knows of its type; empty: the type of the envelope."""
    id: str = ""
    """Tells several documents of one event apart; empty: the only one."""
    time: int | None = None
    """When, in ms UTC, if the format itself says so; None: fields or the envelope say it."""
    units: Mapping[str, str] = _NO_UNITS
    """Units said in the data themselves, by name in `value`; as written there."""


class Format(Protocol):
    """A way to write documents into an event. Formats hold no state: what must be remembered from
    one event to the next is in `memory`.
    """

    name: str

    def read(self, event: Event, memory: dict[str, Any]) -> list[Document]:
        """What the event says; no documents when it is not about readings.

        `memory` is JSON that the caller keeps, one for each source; it may change even when the
        event is refused. What changes is assigned anew, never changed in place; a map of which
        keys are saved one by one is a `Remembered`. Raises Rejected and nothing else.
        """


def read_options(kind: type[Options], name: str, given: Mapping[str, Any]) -> Options:
    """The options of a format; raises InvalidInput `format.unknown_option`, `format.bad_option`."""
    known = kind.__struct_fields__
    for option in given:
        if option not in known:
            raise InvalidInput(
                f"the format {name!r} has no option {str(option)[:40]!r}",
                code="format.unknown_option",
                hint=suggest(str(option), known) or "it takes none",
            )
    try:
        return msgspec.convert(dict(given), kind)
    except msgspec.ValidationError as error:
        raise bad_option(name, str(error)) from None


def bad_option(name: str, message: str, hint: str = "") -> InvalidInput:
    """The fault of an option's value."""
    return InvalidInput(f"the format {name!r}: {message}", code="format.bad_option", hint=hint)


def part_id(name: str) -> str:
    """A name of somebody else's as the id of a document; ids become part of an event's id, so what
    is too long or unprintable for that is told by its hash.
    """
    return name if len(name) <= _LONGEST_ID and name.isprintable() else content_id(name)[:16]


def check_count(count: int) -> None:
    """Raises Rejected when an event says more than one event may."""
    if count > MAX_DOCUMENTS:
        raise Rejected(
            "format.too_many",
            f"one event holds more than {MAX_DOCUMENTS:,} documents",
            "send them in several events; rapport import splits files",
        )


def check_depth(value: Any) -> None:
    """Raises Rejected for a value nested too deeply for those who walk through it later."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH + 1:
            raise Rejected(
                "format.too_deep", f"values are nested more than {MAX_DEPTH} levels deep"
            )
        level = [
            part
            for each in level
            if isinstance(each, (dict, list))
            for part in (each.values() if isinstance(each, dict) else each)
        ]
