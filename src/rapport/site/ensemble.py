"""What a site says of its part in an ensemble: `[ensemble]`, where its node listens, whom it joins,
which components live on it, and how they are tied to the rest. [EN-10, EN-14, UX-2]
"""

from __future__ import annotations

import ast
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec

from rapport.core.errors import InvalidInput, Problem
from rapport.ensemble.gossip.gossip_settings import GossipSettings, advice
from rapport.ensemble.model.work_scheduler import HostSettings
from rapport.ensemble.runtime.node_status import RuntimeSettings, check_sealed
from rapport.kernel.config_fields import Fields
from rapport.kernel.files import is_file, is_inside
from rapport.kernel.toml import TomlFile
from rapport.overlay.swim_protocol import MAX_NAME, SwimSettings
from rapport.site.bindings import source_bindings
from rapport.site.datagram_fields import read_address, read_addresses, read_keys
from rapport.site.ensemble_ties import Ties, read_ties
from rapport.site.parts import SiteParts
from rapport.transport.base import Address
from rapport.transport.udp import MulticastGroup

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


class SharedMeanings(msgspec.Struct, frozen=True, kw_only=True):
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
    meanings: SharedMeanings | None = None
    ties: Ties = Ties()

    @property
    def has_ip(self) -> bool:
        """Whether it talks to addresses."""
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


def _meanings(fields: Fields) -> SharedMeanings | None:
    inner = fields.table("interpretations", ("share", "accept"), '{ accept = ["node-a"] }')
    if inner is None:
        return None
    return SharedMeanings(
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
    for told in advice(gossip):
        fields.fault("gossip", told.code, told.message, hint=told.hint, severity="warning")
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
