"""The `[context]` section of a site: the broker's addresses, keys and rights; and addresses and
keys as other datagram sections read them. [CX-9, EN-10, UX-2, CX-4]
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import msgspec

from rapport.communication.adapters.adapter_config import adapter_names
from rapport.communication.config import communication_from_site
from rapport.context.broker.broker_settings import (
    BrokerSettings,
    ReplicationSettings,
    SearchSettings,
    check_on_sockets,
)
from rapport.context.connections import check_sealed
from rapport.context.rights import ContextGrant, ContextRights, split_pattern
from rapport.context.v0.v0_state import LOOPBACK, V0Settings
from rapport.core.context_record import CONTEXT_UPDATES
from rapport.core.errors import InvalidInput, Problem
from rapport.kernel.config_fields import Fields
from rapport.kernel.files import is_file, is_inside
from rapport.kernel.plugins import Plugins
from rapport.kernel.toml import TomlFile
from rapport.overlay.membership_steps import MembershipSettings
from rapport.policy.engine.spark_policies import SparkPolicies
from rapport.policy.plan import PolicyPlan
from rapport.policy.table_history import check_context_on_record, read_from_tables
from rapport.site.parts import SiteParts
from rapport.site.policies import on_spark_of
from rapport.tables.tables import Tables
from rapport.transport.addresses import parse_address
from rapport.transport.base import Address


def read_address(fields: Fields, key: str, text: str) -> Address | None:
    """The address; none for an empty text and, with a problem, for one that is no address."""
    if not text:
        return None
    try:
        return parse_address(text)
    except InvalidInput as error:
        fields.report(key, error)
        return None


def read_addresses(fields: Fields, key: str) -> tuple[Address, ...]:
    """The addresses of a list; those that are none are problems."""
    found = [read_address(fields, key, text) for text in fields.texts(key, ())]
    return tuple(one for one in found if one is not None)


def read_keys(fields: Fields, directory: Path, section: str) -> Path | None:
    """The file of datagram keys; one that is not there yet is a warning only. `section` is the
    name of the section and of its commands.
    """
    text = fields.text("keys", "", example=f'"{section}-keys.toml"')
    if not text:
        return None
    path = directory / text
    if not is_inside(path, directory) and not Path(text).is_absolute():
        message = f"{text!r} leads out of the site directory"
        fields.fault("keys", "site.outside", message, hint="write an absolute path if it is meant")
    elif not is_file(path):
        # Secrets are often put in place later.
        hint = f"make it with `rapport {section} keys make`"
        message = f"there is no file {text!r}"
        fields.fault("keys", "site.no_file", message, hint=hint, severity="warning")
    return path


_SETTINGS: dict[str, type[msgspec.Struct]] = {
    "search": SearchSettings,
    "replication": ReplicationSettings,
    "membership": MembershipSettings,
}
"""Tables of `[context]` whose keys are the fields of these settings."""
_KEYS = ("listen", "join", "keys", "v0", "v0_clients", "rights", *_SETTINGS)
_RIGHTS = ("read", "write", "take_over", "control")
_EXAMPLE = '"127.0.0.1:7411"'


class ContextDeclared(msgspec.Struct, frozen=True, kw_only=True):
    """The broker that runs in the node."""

    listen: Address
    join: tuple[Address, ...] = ()
    keys: Path | None = None
    v0: Address | None = None
    """Address of the v0 endpoint; None: there is none."""
    v0_settings: V0Settings = msgspec.field(default_factory=V0Settings)
    rights: dict[str, ContextGrant] | None = None
    """By the owner of a key; None: every key reads and writes."""
    broker: BrokerSettings = msgspec.field(default_factory=BrokerSettings)

    def own_rights(self) -> ContextRights | None:
        """The rights that the broker checks; None: the default."""
        return None if self.rights is None else ContextRights(self.rights)


def context_from_site(
    file: TomlFile, directory: Path
) -> tuple[ContextDeclared | None, list[Problem]]:
    """The broker of a site, None where there is none or its place is not known; and everything
    wrong with it.
    """
    problems: list[Problem] = []
    section = file.section("context")
    if "context" not in file.values:
        return None, problems
    fields = Fields(section, problems, known=_KEYS, strict=True)
    listen = read_address(fields, "listen", fields.filled_text("listen", example=_EXAMPLE))
    v0 = read_address(fields, "v0", fields.text("v0", "", example='"127.0.0.1:7410"'))
    keys = read_keys(fields, directory, "context")
    rights = _rights(fields)
    declared = ContextDeclared(
        listen=listen or ("127.0.0.1", 0),
        join=read_addresses(fields, "join"),
        keys=keys,
        v0=v0,
        v0_settings=_v0_settings(fields),
        rights=rights,
        broker=_settings(fields),
    )
    if listen is None:
        return None, problems
    _check_sealed(fields, declared)
    return declared, problems


def check_context(parts: SiteParts) -> list[Problem]:
    """`[context]`, what needs it, and policies on Spark, where no broker can be asked."""
    declared, problems = context_from_site(parts.file, parts.directory)
    problems += _on_spark(parts)
    if declared is None and not problems:
        problems += [*_tables_without(parts), *_actions_without(parts)]
    return problems


def check_without_context(tables: Tables, plans: Iterable[PolicyPlan], what: str) -> None:
    """Raises Unsupported for a plan that reads context, where no broker can be asked and nothing is
    on record: it would find nothing, without a reason.
    """
    check_context_on_record(tables, plans, (), what)


def _v0_settings(fields: Fields) -> V0Settings:
    """Clients of v0: this machine, and those that the site trusts."""
    named = fields.texts("v0_clients", (), example='["10.1.0.0/16"]')
    for text in named:
        try:
            ip_network(text)
        except ValueError:
            fields.wrong(
                "v0_clients", "a list of addresses or networks", 'v0_clients = ["10.1.0.7"]'
            )
            return V0Settings()
    if named:
        message = "the protocol v0 proves nobody: an address of these can be forged"
        hint = "let it listen behind a firewall, or use keys and the protocol of `listen`"
        fields.fault("v0_clients", "context.open_door", message, hint=hint, severity="warning")
    return V0Settings(clients=(*LOOPBACK, *named))


def _rights(fields: Fields) -> dict[str, ContextGrant] | None:
    given = fields.table("rights", None, '{ guard = { read = ["room/* status"] } }')
    if given is None:
        return None
    found: dict[str, ContextGrant] = {}
    for name in given.section.values:
        one = given.table(name, _RIGHTS, '{ read = ["room/* status"] }')
        if one is not None:
            found[name] = ContextGrant(
                read=_patterns(one, "read"),
                write=_patterns(one, "write"),
                take_over=_patterns(one, "take_over"),
                control=one.flag("control"),
            )
    return found


def _settings(fields: Fields) -> BrokerSettings:
    """Settings for search, replication and membership, with their defaults."""
    given: dict[str, Any] = {}
    for name, kind in _SETTINGS.items():
        known = [one.name for one in msgspec.structs.fields(kind)]
        inner = fields.table(name, known, "{ hop_limit = 64 }")
        if inner is None:
            continue
        try:
            given[name] = msgspec.convert(inner.section.values, kind)
        except (msgspec.ValidationError, InvalidInput) as error:
            fields.fault(name, "context.bad_settings", f"[context.{name}]: {error}")
    try:
        settings = BrokerSettings(**given)
        check_on_sockets(settings)
        return settings
    except InvalidInput as error:
        fields.fault("", error.code, error.message, hint=error.hint)
        return BrokerSettings()


def _patterns(fields: Fields, key: str) -> tuple[str, ...]:
    found = []
    for text in fields.texts(key, ()):
        try:
            split_pattern(text)
        except InvalidInput as error:
            fields.report(key, error)
        else:
            found.append(text)
    return tuple(found)


def _check_sealed(fields: Fields, declared: ContextDeclared) -> None:
    for key, addresses in (("listen", [declared.listen]), ("join", declared.join)):
        try:
            check_sealed(addresses, has_keys=declared.keys is not None)
        except InvalidInput as error:
            fields.report(key, error)
            return


def _tables_without(parts: SiteParts) -> Iterable[Problem]:
    whole = parts.file.section("tables")
    for name, section in whole.sections():
        if "context" in section.values:
            yield section.problem(
                "context",
                "context.no_broker_here",
                f"the table {name!r} asks a context broker, and the site has none",
                hint='add [context] with listen = "127.0.0.1:7411"',
            )


def _actions_without(parts: SiteParts) -> Iterable[Problem]:
    people, _problems = communication_from_site(
        parts.file, parts.directory, adapters=adapter_names(Plugins())
    )
    whole = parts.file.section("actions")
    for phrase, action in people.actions.items():
        if action.effect is not None and action.effect.target == CONTEXT_UPDATES:
            key = "context" if "context" in whole.section(phrase).values else "set"
            yield whole.section(phrase).problem(
                key,
                "context.no_broker_here",
                f"the action {phrase!r} updates a context broker, and the site has none",
                hint='add [context] with listen = "127.0.0.1:7411"',
            )


def _on_spark(parts: SiteParts) -> list[Problem]:
    """Policies on Spark look at tables as they are when they start: context would never be new."""
    problems: list[Problem] = []
    known = parts.tables.context_attributes() if parts.tables is not None else set()
    chosen = SparkPolicies(on_spark_of(parts.file))
    fields = Fields(parts.file.section("policies"), problems)
    for name, compiled in parts.policies.items():
        attributes = sorted(read_from_tables(compiled.plan) & known) if name in chosen else []
        if attributes:
            message = f"policy {name!r} reads {'.'.join(attributes[0])}, which comes from context"
            hint = f"let it run in the node: name those on Spark one by one, without {name!r}"
            fields.fault("on_spark", "policy.not_on_spark", message, hint=hint)
    return problems
