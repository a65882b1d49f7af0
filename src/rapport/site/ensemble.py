"""The `[ensemble]` section of a site: addresses, components, and their ties to sources, channels
and context. [EN-14, UX-2, EN-10]
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from rapport.core.context_record import EntityRef
from rapport.core.errors import InvalidInput, Problem
from rapport.core.knowledge import Knowledge
from rapport.ensemble.gossip.gossip_settings import GossipSettings, advice
from rapport.ensemble.model.work_scheduler import HostSettings
from rapport.ensemble.runtime.node_status import RuntimeSettings, check_sealed
from rapport.kernel.config_fields import Fields, suggest
from rapport.kernel.files import is_file, is_inside
from rapport.kernel.toml import TomlFile
from rapport.overlay.swim_protocol import MAX_NAME, SwimSettings
from rapport.site.context import read_address, read_addresses, read_keys
from rapport.site.interpretations import source_bindings
from rapport.site.parts import SiteParts
from rapport.transport.base import Address
from rapport.transport.udp import MulticastGroup

_CHOOSING = ("role", "component")
_READINGS = (*_CHOOSING, "source")
_CARRIED = ("component", "source")
_FEEDS = ("channel", "type", "subject", "component", "field", "value", "by_subject")
_TELLS = (*_CHOOSING, "entity", "scope", "values", "valid")
_READS = ("component", "field", "entity", "scope", "value", "every", "within")
_PLACE = re.compile(r"\{([^{}]*)\}")
NOT_THERE: Any = object()


class ComponentFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which components are meant: by a role, and by a pattern of ids such as `car-*`."""

    role: str = ""
    component: str = "*"

    def fits(self, knowledge: Knowledge) -> bool:
        return (not self.role or self.role in knowledge.roles) and fnmatchcase(
            knowledge.component, self.component
        )


class SourceTie(msgspec.Struct, frozen=True, kw_only=True):
    """Each version of their knowledge, or what they carry, is a reading of a source."""

    of: ComponentFilter
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


class ContextPublication(msgspec.Struct, frozen=True, kw_only=True):
    """Knowledge that becomes a context record."""

    of: ComponentFilter
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
            found = known[name] if name in known else value_at(knowledge.values, name.split("."))
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

    readings: tuple[SourceTie, ...] = ()
    carried: tuple[SourceTie, ...] = ()
    feeds: tuple[FeedTie, ...] = ()
    published: tuple[ContextPublication, ...] = ()
    read: tuple[ContextRead, ...] = ()

    @property
    def needs_context(self) -> bool:
        return bool(self.published or self.read)

    def fed(self) -> list[str]:
        """The components of this node that are named."""
        return [*(one.component for one in self.feeds), *(one.component for one in self.read)]


def value_at(values: Any, path: Sequence[str]) -> Any:
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
    published, read = _context(fields)
    return Ties(
        readings=tuple(
            SourceTie(of=_chosen(one), source=_source(one, sources))
            for one in fields.entries("readings", _READINGS, '[{ role = "Car", source = "cars" }]')
        ),
        carried=tuple(
            SourceTie(of=_chosen(one), source=_source(one, sources))
            for one in fields.entries(
                "carried", _CARRIED, '[{ component = "reader-*", source = "readers" }]'
            )
        ),
        feeds=tuple(_feed(one) for one in fields.entries("feeds", _FEEDS, "[{ ... }]")),
        published=published,
        read=read,
    )


def _chosen(fields: Fields) -> ComponentFilter:
    role = fields.filled_text("role", "", example='"Car"')
    if not role and not fields.has("component"):
        message = "which components are meant?"
        fields.fault(
            "", "site.missing_key", message, hint='add role = "Car" or component = "car-*"'
        )
    return ComponentFilter(
        role=role, component=fields.filled_text("component", "*", example='"car-*"')
    )


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


def _context(fields: Fields) -> tuple[tuple[ContextPublication, ...], tuple[ContextRead, ...]]:
    published: list[ContextPublication] = []
    read: list[ContextRead] = []
    for one in fields.entries("context", {*_TELLS, *_READS}, "[{ ... }]"):
        if one.has("field"):
            found = _read(one)
            read += [found] if found is not None else []
        else:
            published.append(_publication(one))
    return tuple(published), tuple(read)


def _publication(fields: Fields) -> ContextPublication:
    _only(fields, _TELLS)
    entity = fields.filled_text("entity", example='"car/{id}"')
    if entity and "/" not in entity.split("{")[0] and not re.match(r"[^/]+/.", entity):
        fields.wrong("entity", "type/id", 'entity = "car/{id}"')
    return ContextPublication(
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
    """An entry with `field` reads context, one without provides it; each has its own keys."""
    for key in fields.section.values:
        if key not in known:
            message = f"the key {key!r} has no meaning here"
            hint = "with `field` context is read into a field, without it is updated from `values`"
            fields.fault(key, "site.unknown_key", message, hint=hint)


_SETTINGS: dict[str, type[msgspec.Struct]] = {
    "gossip": GossipSettings,
    "host": HostSettings,
    "membership": SwimSettings,
}
"""Tables of `[ensemble]` whose keys are the fields of these settings."""
_FOLLOWING = ("radio", "ip")
"""Of the gossip settings: they follow from `group` and `join`."""
_TIES = ("readings", "carried", "feeds", "context")
_KEYS = (
    "node",
    "listen",
    "group",
    "interface",
    "join",
    "groupers",
    "grouper",
    "keys",
    "components",
    "record_every",
    "interpretations",
    *_SETTINGS,
    *_TIES,
)
_EXAMPLE = '"127.0.0.1:7511"'


class SharingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How interpretations are shared by gossip."""

    share: bool = True
    """Others may have this node's."""
    accept: tuple[str, ...] = ()
    """Nodes whose interpretations are taken."""


class EnsembleDeclared(msgspec.Struct, frozen=True, kw_only=True):
    """The ensemble node that runs in the node."""

    node: str
    listen: Address
    group: MulticastGroup | None = None
    join: tuple[Address, ...] = ()
    groupers: tuple[Address, ...] = ()
    is_grouper: bool = False
    keys: Path | None = None
    components: tuple[Path, ...] = ()
    record_ms: int = 0
    """Of each component at most one event in `knowledge` within this time; 0: each version."""
    settings: RuntimeSettings = RuntimeSettings()
    meanings: SharingSettings | None = None
    ties: Ties = Ties()

    @property
    def has_ip(self) -> bool:
        return self.group is None or bool(self.join) or bool(self.groupers) or self.is_grouper


def ensemble_from_site(
    file: TomlFile, directory: Path, sources: Collection[str], site_name: str
) -> tuple[EnsembleDeclared | None, list[Problem]]:
    """The ensemble node of a site, None where there is none or its place is not known; and
    everything wrong with it.
    """
    problems: list[Problem] = []
    if "ensemble" not in file.values:
        return None, problems
    fields = Fields(file.section("ensemble"), problems, known=_KEYS, strict=True)
    listen = read_address(fields, "listen", fields.filled_text("listen", example=_EXAMPLE))
    declared = EnsembleDeclared(
        node=_node_name(fields, site_name),
        listen=listen or ("127.0.0.1", 0),
        group=_group(fields),
        join=read_addresses(fields, "join"),
        groupers=read_addresses(fields, "groupers"),
        is_grouper=fields.flag("grouper"),
        keys=read_keys(fields, directory, "ensemble"),
        components=_components(fields, directory),
        record_ms=fields.duration_ms("record_every", 0),
        meanings=_meanings(fields),
        ties=read_ties(fields, sources),
    )
    declared = msgspec.structs.replace(declared, settings=_settings(fields, declared))
    if listen is None:
        return None, problems
    _check_sealed(fields, declared)
    return declared, problems


def check_ensemble(parts: SiteParts) -> list[Problem]:
    """`[ensemble]`, and what its ties need."""
    sources = source_bindings(parts.ontology, parts.file)
    name = parts.file.section("site").values.get("name", "site")
    declared, problems = ensemble_from_site(parts.file, parts.directory, sources, str(name))
    if declared is not None and declared.ties.needs_context and "context" not in parts.file.values:
        message = "components are tied to context, and the site has no broker"
        hint = 'add [context] with listen = "127.0.0.1:7411"'
        place = parts.file.section("ensemble")
        problems.append(place.problem("context", "context.no_broker_here", message, hint=hint))
    return problems


def _node_name(fields: Fields, site_name: str) -> str:
    name = fields.filled_text("node", site_name, example='"hall"')
    if len(name) > MAX_NAME or not name.isprintable():
        fields.wrong("node", f"at most {MAX_NAME} printable characters", 'node = "hall"')
    return name


def _group(fields: Fields) -> MulticastGroup | None:
    found = read_address(fields, "group", fields.text("group", "", example='"239.7.4.1:7512"'))
    interface = fields.text("interface", "", example='"eth0"')
    return MulticastGroup(*found, interface=interface) if found is not None else None


def _components(fields: Fields, directory: Path) -> tuple[Path, ...]:
    """The files, which are read here but not run: they are the site's own code."""
    found = []
    for text in fields.texts("components", (), example='["cars.py"]'):
        path = directory / text
        if not is_inside(path, directory):
            message = f"{text!r} leads out of the site directory"
            fields.fault("components", "site.outside", message, hint="put it into the site")
        elif not is_file(path) or path.suffix != ".py":
            message = f"there is no Python file {text!r}"
            fields.fault("components", "site.no_file", message, hint='such as ["cars.py"]')
        else:
            _check_syntax(fields, text, path)
            found.append(path)
    return tuple(found)


def _check_syntax(fields: Fields, name: str, path: Path) -> None:
    try:
        ast.parse(path.read_bytes(), filename=name)
    except (SyntaxError, ValueError, OSError) as error:
        line = getattr(error, "lineno", None) or 0
        fields.problems.append(
            Problem(
                file=name,
                line=line,
                code="ensemble.bad_program",
                message=f"this is no Python: {getattr(error, 'msg', None) or error}",
            )
        )


def _meanings(fields: Fields) -> SharingSettings | None:
    inner = fields.table("interpretations", ("share", "accept"), '{ accept = ["node-a"] }')
    if inner is None:
        return None
    return SharingSettings(
        share=inner.flag("share", True), accept=inner.texts("accept", (), example='["node-a"]')
    )


def _settings(fields: Fields, declared: EnsembleDeclared) -> RuntimeSettings:
    """How the node gossips, what it allows, how it watches others; advice as warnings."""
    given: dict[str, Any] = {}
    for name, kind in _SETTINGS.items():
        known = [one.name for one in msgspec.structs.fields(kind) if one.name not in _FOLLOWING]
        inner = fields.table(name, known, "{ ... }")
        values = dict(inner.section.values) if inner is not None else {}
        if kind is GossipSettings:
            values |= {"radio": declared.group is not None, "ip": declared.has_ip}
        try:
            given[name] = msgspec.convert(values, kind)
        except InvalidInput as error:
            fields.report(name, error)
        except msgspec.ValidationError as error:
            why, _, path = str(error).partition(" - at `$.")
            place = inner if inner is not None and path else fields
            place.fault(
                path.rstrip("`") or name, "ensemble.bad_settings", f"[ensemble.{name}]: {why}"
            )
    gossip: GossipSettings = given.get("gossip", GossipSettings())
    for published in advice(gossip):
        fields.fault(
            "gossip", published.code, published.message, hint=published.hint, severity="warning"
        )
    return RuntimeSettings(
        gossip=gossip,
        host=given.get("host", HostSettings()),
        swim=given.get("membership", SwimSettings()),
    )


def _check_sealed(fields: Fields, declared: EnsembleDeclared) -> None:
    places = {"listen": (declared.listen,), "join": declared.join, "groupers": declared.groupers}
    for key, addresses in places.items():
        try:
            check_sealed(addresses, has_keys=declared.keys is not None)
        except InvalidInput as error:
            fields.report(key, error)
            return
