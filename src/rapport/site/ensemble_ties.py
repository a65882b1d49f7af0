"""How a site ties components to the rest: their knowledge and readings as events of sources,
channels that feed their fields, context in and out. [EN-14, UX-2]
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from rapport.core.context_record import EntityRef
from rapport.core.errors import InvalidInput
from rapport.core.knowledge import Knowledge
from rapport.kernel.config_fields import Fields, suggest

_CHOOSING = ("role", "component")
_READINGS = (*_CHOOSING, "source")
_CARRIED = ("component", "source")
_FEEDS = ("channel", "type", "subject", "component", "field", "value", "by_subject")
_TELLS = (*_CHOOSING, "entity", "scope", "values", "valid")
_READS = ("component", "field", "entity", "scope", "value", "every", "within")
_PLACE = re.compile(r"\{([^{}]*)\}")
NOT_THERE: Any = object()


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """Which components are meant: by a role, and by a pattern of ids such as `car-*`."""

    role: str = ""
    component: str = "*"

    def fits(self, knowledge: Knowledge) -> bool:
        """Whether it is one of them."""
        return (not self.role or self.role in knowledge.roles) and fnmatchcase(
            knowledge.component, self.component
        )


class ReadingsTie(msgspec.Struct, frozen=True, kw_only=True):
    """Each version of their knowledge is a reading of a source."""

    of: Chosen
    source: str


class CarriedTie(msgspec.Struct, frozen=True, kw_only=True):
    """What they carry are readings of a source."""

    of: Chosen
    source: str


class FeedTie(msgspec.Struct, frozen=True, kw_only=True):
    """Events of a channel become a field's value."""

    channel: str
    type: str
    subject: str
    """A pattern."""
    component: str
    field: str
    value: tuple[str, ...]
    """The way to the value in the payload; empty: all of it."""
    by_subject: bool
    """The field is a dictionary, and each subject has its own value."""


class ContextTold(msgspec.Struct, frozen=True, kw_only=True):
    """Knowledge that becomes a context record."""

    of: Chosen
    entity: str
    """With `{id}`, `{node}` and fields as places."""
    scope: str
    values: dict[str, tuple[str, ...]]
    """By name the way to the value in the knowledge."""
    valid_ms: int

    def entity_of(self, knowledge: Knowledge) -> EntityRef:
        """The entity that the knowledge is about; raises InvalidInput."""
        known = {"id": knowledge.component, "node": knowledge.node}

        def fill(match: re.Match[str]) -> str:
            name = match[1]
            found = known[name] if name in known else at(knowledge.values, name.split("."))
            if not isinstance(found, str | int | float) or isinstance(found, bool):
                raise InvalidInput(
                    f"{knowledge.component} has no text or number {name!r}",
                    code="ensemble.no_such_value",
                    hint=f"it is needed in the entity {self.entity!r}",
                )
            return str(found)

        return EntityRef.parse(_PLACE.sub(fill, self.entity))


class ContextRead(msgspec.Struct, frozen=True, kw_only=True):
    """A context record that becomes a field's value; nothing known: None."""

    component: str
    field: str
    entity: EntityRef
    scope: str
    value: tuple[str, ...]
    every_ms: int
    within_ms: int


class Ties(msgspec.Struct, frozen=True, kw_only=True):
    """All of them."""

    readings: tuple[ReadingsTie, ...] = ()
    carried: tuple[CarriedTie, ...] = ()
    feeds: tuple[FeedTie, ...] = ()
    told: tuple[ContextTold, ...] = ()
    read: tuple[ContextRead, ...] = ()

    @property
    def needs_context(self) -> bool:
        """Whether they need a broker."""
        return bool(self.told or self.read)

    def fed(self) -> list[str]:
        """The components of this node that are named."""
        return [*(one.component for one in self.feeds), *(one.component for one in self.read)]


def at(values: Any, path: Sequence[str]) -> Any:
    """The value at the end of a way, NOT_THERE when the way breaks off.

    >>> at({"a": {"b": 1}}, ["a", "b"])
    1
    """
    for step in path:
        if not isinstance(values, Mapping) or step not in values:
            return NOT_THERE
        values = values[step]
    return values


def read_ties(fields: Fields, sources: Collection[str]) -> Ties:
    """The lists of `[ensemble]`; faults are in the fields' problems."""
    told, read = _context(fields)
    return Ties(
        readings=tuple(
            ReadingsTie(of=_chosen(one), source=_source(one, sources))
            for one in fields.entries("readings", _READINGS, '[{ role = "Car", source = "cars" }]')
        ),
        carried=tuple(
            CarriedTie(of=_chosen(one), source=_source(one, sources))
            for one in fields.entries(
                "carried", _CARRIED, '[{ component = "reader-*", source = "readers" }]'
            )
        ),
        feeds=tuple(_feed(one) for one in fields.entries("feeds", _FEEDS, "[{ ... }]")),
        told=told,
        read=read,
    )


def _chosen(fields: Fields) -> Chosen:
    role = fields.filled_text("role", "", example='"Car"')
    if not role and not fields.has("component"):
        message = "which components are meant?"
        fields.fault(
            "", "site.missing_key", message, hint='add role = "Car" or component = "car-*"'
        )
    return Chosen(role=role, component=fields.filled_text("component", "*", example='"car-*"'))


def _source(fields: Fields, sources: Collection[str]) -> str:
    name = fields.filled_text("source", example='"cars"')
    if name and name not in sources:
        hint = suggest(name, sources) or f"add [sources.{name}]"
        fields.fault("source", "ensemble.unknown_source", f"there is no source {name!r}", hint=hint)
    return name


def _feed(fields: Fields) -> FeedTie:
    return FeedTie(
        channel=fields.filled_text("channel", "events", example='"events"'),
        type=fields.text("type", "", example='"person.position"'),
        subject=fields.filled_text("subject", "*", example='"person/*"'),
        component=fields.filled_text("component", example='"hall"'),
        field=fields.filled_text("field", example='"seen"'),
        value=fields.names("value", example='"x"') if fields.has("value") else (),
        by_subject=fields.flag("by_subject"),
    )


def _context(fields: Fields) -> tuple[tuple[ContextTold, ...], tuple[ContextRead, ...]]:
    told: list[ContextTold] = []
    read: list[ContextRead] = []
    for one in fields.entries("context", {*_TELLS, *_READS}, "[{ ... }]"):
        if one.has("field"):
            found = _read(one)
            read += [found] if found is not None else []
        else:
            told.append(_told(one))
    return tuple(told), tuple(read)


def _told(fields: Fields) -> ContextTold:
    _only(fields, _TELLS)
    entity = fields.filled_text("entity", example='"car/{id}"')
    if entity and "/" not in entity.split("{")[0] and not re.match(r"[^/]+/.", entity):
        fields.wrong("entity", "type/id", 'entity = "car/{id}"')
    return ContextTold(
        of=_chosen(fields),
        entity=entity,
        scope=fields.filled_text("scope", example='"place"'),
        values=_values(fields),
        valid_ms=fields.duration_ms("valid", 30_000, least=1),
    )


def _read(fields: Fields) -> ContextRead | None:
    _only(fields, _READS)
    text = fields.filled_text("entity", example='"room/r3"')
    try:
        entity = EntityRef.parse(text) if text else None
    except InvalidInput as error:
        fields.report("entity", error)
        entity = None
    component = fields.filled_text("component", example='"hall"')
    scope = fields.filled_text("scope", example='"status"')
    if entity is None:
        return None
    return ContextRead(
        component=component,
        field=fields.filled_text("field", example='"status"'),
        entity=entity,
        scope=scope,
        value=fields.names("value", example='"status"') if fields.has("value") else (),
        every_ms=fields.duration_ms("every", 5_000, least=1),
        within_ms=fields.duration_ms("within", 2_000, least=1),
    )


def _values(fields: Fields) -> dict[str, tuple[str, ...]]:
    """`["seats"]`, or by another name and from deeper `{ x = "position.x" }`."""
    given: Any = fields.section.values.get("values")
    named = {one: one for one in given} if _is_texts(given) else given
    if isinstance(named, dict) and named and _is_texts(list(named.values())):
        return {name: tuple(path.split(".")) for name, path in named.items()}
    fields.wrong("values", "a list of fields, or a table of ways to them", 'values = ["seats"]')
    return {}


def _is_texts(given: Any) -> bool:
    return isinstance(given, list) and all(isinstance(one, str) and one for one in given)


def _only(fields: Fields, known: Collection[str]) -> None:
    """An entry with `field` reads context, one without tells it: keys of the other mean nothing."""
    for key in fields.section.values:
        if key not in known:
            message = f"the key {key!r} has no meaning here"
            hint = "with `field` context is read into a field, without it is told from `values`"
            fields.fault(key, "site.unknown_key", message, hint=hint)
