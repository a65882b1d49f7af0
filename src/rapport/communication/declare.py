"""Peers, collectives, actions and adapters from the site file, faults in place. [CO-3, UX-2]"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from rapport.communication.actions import Action, same_phrase
from rapport.communication.adapters.build import BUILT_IN
from rapport.communication.adapters.declare import read_adapters
from rapport.communication.adapters.settings import MailSettings, WebhookSettings
from rapport.communication.addresses import address_fault
from rapport.communication.declare_actions import ACTION_KEYS, read_action
from rapport.communication.peers import Collective, Peer, adapter_of
from rapport.communication.privacy import OnQuiet, PrivacyPolicy, is_zone, parse_quiet
from rapport.communication.templates import ALWAYS_KNOWN, template_fields
from rapport.communication.tracking import CollectiveDelivery, PeerDelivery
from rapport.core.errors import InvalidInput, Problem
from rapport.kernel.fields import Fields, suggest
from rapport.kernel.toml import Section, TomlFile

PEER_DELIVERIES = ("to-all-channels", "at-least-one", "preferred")
COLLECTIVE_DELIVERIES = ("to-any", "to-all-members")

PEER_KEYS = ("addresses", "delivery", "fallback", "zone", "quiet", "on_quiet")
COLLECTIVE_KEYS = ("members", "delivery")


class Communication(msgspec.Struct, frozen=True, kw_only=True):
    """What a site says about reaching people."""

    peers: dict[str, Peer]
    collectives: dict[str, Collective]
    actions: dict[str, Action]
    mail: MailSettings
    webhook: WebhookSettings
    plugin_settings: dict[str, dict[str, Any]] = {}
    """The `[adapters.NAME]` tables of plug-ins, as they stand."""

    def adapters(self) -> tuple[str, ...]:
        """The adapters that the peers' addresses and the actions need, sorted."""
        used = {adapter_of(entry) for peer in self.peers.values() for entry in peer.addresses}
        return tuple(sorted(used | self._kinds() - {"append"}))

    def appends(self) -> bool:
        """Whether an action appends events."""
        return "append" in self._kinds()

    def _kinds(self) -> set[str]:
        return {action.effect.kind for action in self.actions.values() if action.effect is not None}


def communication_from_site(
    file: TomlFile, directory: Path, *, adapters: Collection[str] = BUILT_IN
) -> tuple[Communication, list[Problem]]:
    """What `[peers]`, `[collectives]`, `[actions]` and `[adapters]` say, and all their problems.

    `directory` is where secret files are looked for; `adapters` names all that are installed.
    Never raises for a wrong site: declarations that have errors must not be used.
    """
    problems: list[Problem] = []
    peers = {
        name: _peer(name, Fields(section, problems, known=PEER_KEYS, strict=True), adapters)
        for name, section in _tables(file, "peers", problems)
    }
    collectives = {
        name: _collective(
            name, Fields(section, problems, known=COLLECTIVE_KEYS, strict=True), peers
        )
        for name, section in _tables(file, "collectives", problems)
    }
    actions = {
        phrase: read_action(
            phrase, Fields(section, problems, known=ACTION_KEYS, strict=True), peers, collectives
        )
        for phrase, section in _tables(file, "actions", problems)
    }
    _tables(file, "adapters", problems)
    mail, webhook = read_adapters(file, directory, adapters, problems)
    declared = Communication(
        peers=peers,
        collectives=collectives,
        actions=actions,
        mail=mail,
        webhook=webhook,
        plugin_settings={
            name: section.values
            for name, section in file.section("adapters").sections()
            if name not in BUILT_IN
        },
    )
    _warn_of_same_phrases(file, actions, problems)
    _warn_of_defaults(file, declared, problems)
    return declared, problems


def check_actions(
    file: TomlFile,
    declared: Communication,
    phrases: Mapping[str, Collection[str]],
    aliases: Mapping[str, Collection[str]],
) -> list[Problem]:
    """Faults that need the policies: a text that asks for an alias which its policy lacks, two
    phrases that call the same address.

    `phrases` and `aliases` are by policy name.
    """
    problems = []
    actions = {same_phrase(phrase): action for phrase, action in declared.actions.items()}
    for policy, used in sorted(phrases.items()):
        known = {*aliases.get(policy, ()), *ALWAYS_KNOWN}
        found = [actions.get(same_phrase(phrase)) for phrase in used]
        own = [action for action in found if action is not None]
        for action in own:
            problems += _unknown_fields(file, action, policy, known)
        problems += _calls_twice(file, own, policy)
    return problems


def _calls_twice(file: TomlFile, actions: Sequence[Action], policy: str) -> list[Problem]:
    """A server that drops what it knows by the key takes one call per detection."""
    problems, seen = [], dict[str, str]()
    for action in actions:
        if action.effect is None or action.effect.kind != "webhook":
            continue
        first = seen.setdefault(action.effect.target, action.phrase)
        if first != action.phrase:
            problems.append(
                file.problem(
                    ("actions", action.phrase, "webhook"),
                    "action.calls_twice",
                    f"{action.phrase!r} and {first!r} of policy {policy!r} call the same address",
                    hint="both calls have the detection's id as their key; use two addresses",
                    severity="warning",
                )
            )
    return problems


def _unknown_fields(
    file: TomlFile, action: Action, policy: str, known: Collection[str]
) -> list[Problem]:
    try:
        asked = [(key, field) for key, text in action.texts() for field in template_fields(text)]
    except InvalidInput:
        return []  # reported with the declaration
    return [
        file.problem(
            ("actions", action.phrase, key),
            "action.unknown_field",
            f"the text asks for {{{field}}}, which policy {policy!r} does not have",
            hint=suggest(field, known),
        )
        for key, field in asked
        if field not in known
    ]


# --- peers and collectives ---


def _peer(name: str, table: Fields, adapters: Collection[str]) -> Peer:
    addresses = table.texts("addresses", ())
    if table.is_empty("addresses"):
        table.fault(
            "addresses",
            "peer.no_address",
            f"nobody can reach {name!r}: it has no address",
            hint='write addresses = ["mail:someone@example.org"] or ["inbox:"]',
        )
    for entry in addresses:
        if fault := address_fault(entry, adapters):
            table.report("addresses", fault)
    if len(set(addresses)) < len(addresses):
        table.fault("addresses", "peer.address_twice", f"{name!r} has the same address twice")
    delivery = table.choice("delivery", PEER_DELIVERIES, "at-least-one")
    fallback = table.flag("fallback")
    if fallback and delivery != "preferred":
        table.fault(
            "fallback",
            "peer.fallback_without_preferred",
            'fallback only means something with delivery = "preferred"',
        )
    peer = Peer(
        name=name,
        addresses=addresses,
        delivery=cast(PeerDelivery, delivery),
        fallback=fallback,
        privacy=_privacy(table),
    )
    return peer


def _privacy(table: Fields) -> PrivacyPolicy | None:
    quiet, zone = table.text("quiet", ""), table.text("zone", "UTC")
    on_quiet = cast(OnQuiet, table.choice("on_quiet", ("hold", "refuse"), "hold"))
    if not is_zone(zone):
        table.fault(
            "zone",
            "peer.bad_zone",
            f"{zone!r} is not a time zone",
            hint="write a name of the IANA data base, such as Europe/Vienna",
        )
        zone = "UTC"
    if not quiet:
        return None
    if not table.has("zone"):
        table.fault(
            "quiet",
            "peer.quiet_without_zone",
            "quiet hours without a zone are in UTC",
            hint='add zone = "Europe/Vienna"',
            severity="warning",
        )
    try:
        start, end = parse_quiet(quiet)
    except InvalidInput as error:
        table.report("quiet", error)
        return None
    return PrivacyPolicy(start, end, zone, on_quiet)


def _collective(name: str, table: Fields, peers: Mapping[str, Peer]) -> Collective:
    members = table.texts("members", ())
    if table.is_empty("members"):
        table.fault(
            "members",
            "collective.empty",
            f"nobody is in {name!r}",
            hint='write members = ["NAME", ...] with names of [peers.NAME]',
        )
    for member in members:
        if member not in peers:
            table.fault(
                "members",
                "collective.unknown_member",
                f"{member!r} is not a peer",
                hint=suggest(member, peers),
            )
    if len(set(members)) < len(members):
        table.fault("members", "collective.member_twice", f"{name!r} names a member twice")
    delivery = table.choice("delivery", COLLECTIVE_DELIVERIES, "to-any")
    return Collective(name=name, members=members, delivery=cast(CollectiveDelivery, delivery))


# --- the rest of the file ---


def _warn_of_defaults(file: TomlFile, declared: Communication, problems: list[Problem]) -> None:
    if "mail" in declared.adapters() and not file.section("adapters", "mail"):
        problems.append(
            file.problem(
                ("peers",),
                "adapter.not_configured",
                "peers are reached by mail, but [adapters.mail] is missing: 127.0.0.1:25 is used",
                hint='add [adapters.mail] with host = "..." and sender = "..."',
                severity="warning",
            )
        )


def _warn_of_same_phrases(
    file: TomlFile, actions: Mapping[str, Action], problems: list[Problem]
) -> None:
    seen: dict[str, str] = {}
    for phrase in actions:
        first = seen.setdefault(same_phrase(phrase), phrase)
        if first != phrase:
            problems.append(
                file.problem(
                    ("actions", phrase),
                    "action.phrase_twice",
                    f"{phrase!r} and {first!r} are the same phrase",
                    hint="blanks and letter case do not tell phrases apart",
                )
            )


def _tables(file: TomlFile, name: str, problems: list[Problem]) -> list[tuple[str, Section]]:
    """The tables below `[name.*]`; anything else there is a fault."""
    section = file.section(name)
    wrong: list[tuple[str, ...]] = [
        (name, key) for key, value in section.values.items() if not isinstance(value, dict)
    ]
    if not isinstance(file.values.get(name, {}), dict):
        wrong.append((name,))
    for path in wrong:
        hint = f"write [{'.'.join((*path, 'NAME')[:2])}]"
        message = f"{'.'.join(path)} is not a table"
        problems.append(file.problem(path, "site.not_a_table", message, hint=hint))
    return list(section.sections())
