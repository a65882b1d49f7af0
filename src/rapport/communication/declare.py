"""Peers, collectives, actions and adapters from the site file, with every fault at its place.
[CO-3, UX-2]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from rapport.communication.actions import Action, same_phrase
from rapport.communication.adapters.build import BUILT_IN
from rapport.communication.adapters.settings import MailSettings, WebhookSettings
from rapport.communication.addresses import address_fault
from rapport.communication.peers import Collective, Peer, adapter_of
from rapport.communication.privacy import OnQuiet, PrivacyPolicy, is_zone, parse_quiet
from rapport.communication.reading import TableReader, suggest
from rapport.communication.templates import ALWAYS_KNOWN, template_fields
from rapport.communication.tracking import CollectiveDelivery, DoneWhen, PeerDelivery
from rapport.core.errors import InvalidInput, Problem
from rapport.core.message import Identifier
from rapport.kernel.settings import read_secret
from rapport.kernel.toml import Section, TomlFile

PEER_DELIVERIES = ("to-all-channels", "at-least-one", "preferred")
COLLECTIVE_DELIVERIES = ("to-any", "to-all-members")


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
        """The adapters that the peers' addresses need, sorted."""
        used = {adapter_of(entry) for peer in self.peers.values() for entry in peer.addresses}
        return tuple(sorted(used))


def communication_from_site(
    file: TomlFile, directory: Path, *, adapters: Collection[str] = BUILT_IN
) -> tuple[Communication, list[Problem]]:
    """The declarations of `[peers]`, `[collectives]`, `[actions]`, `[adapters]`, and all their
    problems.

    `directory` is where secret files are looked for; `adapters` names all that are installed.
    Never raises for a wrong site: declarations that have errors must not be used.
    """
    problems: list[Problem] = []
    peers = {
        name: _peer(name, TableReader(section, problems), adapters)
        for name, section in _tables(file, "peers", problems)
    }
    collectives = {
        name: _collective(name, TableReader(section, problems), peers)
        for name, section in _tables(file, "collectives", problems)
    }
    actions = {
        phrase: _action(phrase, TableReader(section, problems), peers, collectives)
        for phrase, section in _tables(file, "actions", problems)
    }
    mail, webhook = _adapters(file, directory, adapters, problems)
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
    _warn_of_defaults(file, declared, problems)
    return declared, problems


def check_actions(
    file: TomlFile,
    declared: Communication,
    phrases: Mapping[str, Collection[str]],
    aliases: Mapping[str, Collection[str]],
) -> list[Problem]:
    """Faults that need the policies: a text that asks for an alias which a policy using the action
    lacks.

    `phrases` and `aliases` are by policy name.
    """
    problems = []
    actions = {same_phrase(phrase): action for phrase, action in declared.actions.items()}
    for policy, used in sorted(phrases.items()):
        known = {*aliases.get(policy, ()), *ALWAYS_KNOWN}
        for phrase in used:
            action = actions.get(same_phrase(phrase))
            for field in template_fields(action.text) if action else ():
                if field not in known and action is not None:
                    problems.append(
                        file.problem(
                            ("actions", action.phrase, "text"),
                            "action.unknown_field",
                            f"the text asks for {{{field}}}, which policy {policy!r} does not have",
                            hint=suggest(field, known),
                        )
                    )
    return problems


# --- peers and collectives ---


def _peer(name: str, table: TableReader, adapters: Collection[str]) -> Peer:
    addresses = table.texts("addresses")
    if table.section.values.get("addresses", []) == []:
        table.fault(
            "addresses" if "addresses" in table.section.values else "",
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
    table.finish()
    return peer


def _privacy(table: TableReader) -> PrivacyPolicy | None:
    quiet, zone = table.text("quiet"), table.text("zone", "UTC")
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
    if "zone" not in table.section.values:
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


def _collective(name: str, table: TableReader, peers: Mapping[str, Peer]) -> Collective:
    members = table.texts("members")
    if table.section.values.get("members", []) == []:
        table.fault(
            "members" if "members" in table.section.values else "",
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
    table.finish()
    return Collective(name=name, members=members, delivery=cast(CollectiveDelivery, delivery))


# --- actions ---


def _action(
    phrase: str,
    table: TableReader,
    peers: Mapping[str, Peer],
    collectives: Mapping[str, Collective],
) -> Action:
    table.need(
        "send_to",
        "action.no_receiver",
        f"the action {phrase!r} says nothing about whom to tell",
        hint='write send_to = "collective:NAME" or "peer:NAME"',
    )
    send_to = table.text("send_to")
    receiver = _receiver("send_to", send_to, table, peers, collectives) if send_to else None
    escalate_to = [
        _receiver("escalate_to", entry, table, peers, collectives)
        for entry in table.texts("escalate_to")
    ]
    within = table.duration("answer_within")
    default = "answered" if within or escalate_to else "sent"
    done_when = cast(DoneWhen, table.choice("done_when", ("sent", "answered"), default))
    _check_waiting(table, done_when, within, bool(escalate_to))
    action = Action(
        phrase=phrase,
        send_to=receiver or Identifier("peer", ""),
        text=_text(phrase, table),
        urgent=table.flag("urgent"),
        done_when=done_when,
        answer_within_ms=within,
        escalate_to=tuple(entry for entry in escalate_to if entry is not None),
        ttl_ms=table.duration("ttl"),
    )
    table.finish()
    return action


def _check_waiting(table: TableReader, done_when: str, within: int, escalates: bool) -> None:
    if done_when == "answered" and escalates and not within:
        table.fault(
            "escalate_to",
            "action.no_deadline",
            "nothing says how long to wait for an answer before asking the next",
            hint='add answer_within = "60s"',
        )
    if done_when == "sent" and within:
        table.fault(
            "answer_within",
            "action.answer_not_awaited",
            'with done_when = "sent" nobody waits for an answer',
            hint='leave answer_within out, or write done_when = "answered"',
        )


def _text(phrase: str, table: TableReader) -> str:
    table.need(
        "text",
        "action.no_text",
        f"the action {phrase!r} has no text",
        hint='write text = "Guest {A} alone in {R}"',
    )
    text = table.text("text")
    try:
        template_fields(text)
    except InvalidInput as error:
        table.report("text", error)
    return text


def _receiver(
    key: str,
    text: str,
    table: TableReader,
    peers: Mapping[str, Peer],
    collectives: Mapping[str, Collective],
) -> Identifier | None:
    try:
        receiver = Identifier.parse(text)
    except InvalidInput as error:
        table.report(key, error)
        return None
    known: Mapping[str, object] = peers if receiver.kind == "peer" else collectives
    if receiver.kind == "component":
        table.fault(
            key,
            "action.bad_receiver",
            "an action tells people: a component cannot be its receiver",
            hint="write peer:NAME or collective:NAME",
        )
    elif receiver.name not in known:
        table.fault(
            key,
            "action.unknown_receiver",
            f"there is no {receiver.kind} named {receiver.name!r}",
            hint=suggest(receiver.name, known),
        )
    return receiver


# --- adapters ---


def _adapters(
    file: TomlFile, directory: Path, adapters: Collection[str], problems: list[Problem]
) -> tuple[MailSettings, WebhookSettings]:
    for name, section in _tables(file, "adapters", problems):
        if name not in adapters:
            problems.append(
                section.problem(
                    "",
                    "adapter.unknown",
                    f"there is no adapter named {name!r}",
                    hint=suggest(name, adapters),
                )
            )
    mail = TableReader(file.section("adapters", "mail"), problems)
    webhook = TableReader(file.section("adapters", "webhook"), problems)
    return _mail(mail, directory), _webhook(webhook, directory)


def _mail(table: TableReader, directory: Path) -> MailSettings:
    sender = table.text("sender", MailSettings().sender)
    if fault := address_fault(f"mail:{sender}", ("mail",)):
        table.report("sender", fault)
    settings = MailSettings(
        host=table.text("host", MailSettings().host),
        port=table.number("port", MailSettings().port, low=1, high=65_535),
        sender=sender,
        user=table.text("user"),
        password=_secret("password", table, directory),
        starttls=table.flag("starttls"),
        timeout_ms=table.duration("timeout") or MailSettings().timeout_ms,
    )
    table.finish()
    return settings


def _webhook(table: TableReader, directory: Path) -> WebhookSettings:
    settings = WebhookSettings(
        secret=_secret("secret", table, directory),
        timeout_ms=table.duration("timeout") or WebhookSettings().timeout_ms,
    )
    table.finish()
    return settings


def _secret(key: str, table: TableReader, directory: Path) -> str:
    text = table.text(key)
    if not text:
        return ""
    try:
        return read_secret(text, directory)
    except InvalidInput as error:
        table.report(key, error)
        return ""


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


def _tables(file: TomlFile, name: str, problems: list[Problem]) -> list[tuple[str, Section]]:
    """The tables below `[name.*]`; anything else there is a fault."""
    section = file.section(name)
    for key, value in section.values.items():
        if not isinstance(value, dict):
            problems.append(
                section.problem(
                    key,
                    "site.not_a_table",
                    f"{name}.{key} is not a table",
                    hint=f"write [{name}.{key}]",
                )
            )
    return list(section.sections())
