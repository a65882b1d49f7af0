"""Peers, collectives, actions and adapters from the site file, faults in place. [CO-3, UX-2]"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rapport.communication.actions import Action, same_phrase
from rapport.communication.adapters.adapter_config import (
    BUILT_IN,
    InputConfig,
    check_places,
    read_adapters,
    read_inputs,
    read_media,
    read_sending,
)
from rapport.communication.adapters.dispatch import DispatchSettings
from rapport.communication.adapters.mail import MailSettings
from rapport.communication.adapters.webhook import WebhookSettings
from rapport.communication.declaring.actions import ACTION_KEYS, read_action
from rapport.communication.declaring.people import (
    COLLECTIVE_KEYS,
    PEER_KEYS,
    read_collective,
    read_peer,
)
from rapport.communication.peers import Collective, Peer, adapter_of
from rapport.communication.privacy.hours import is_zone
from rapport.communication.templates import ALWAYS_KNOWN, named_in_texts, template_fields
from rapport.core.detection import ACT_WITHIN_MS
from rapport.core.errors import InvalidInput, Problem
from rapport.core.urls import address_parts, is_loopback
from rapport.kernel.config_fields import Fields
from rapport.kernel.toml import Section, TomlFile


class Communication(msgspec.Struct, frozen=True, kw_only=True):
    """What a site says about reaching people."""

    peers: dict[str, Peer]
    collectives: dict[str, Collective]
    actions: dict[str, Action]
    mail: MailSettings
    webhook: WebhookSettings
    zone: str = "UTC"
    """Of the site: times are shown on its clock to people without a zone of their own."""
    media: dict[str, Any] = {}
    """Settings of the other built-in adapters, by name."""
    inputs: tuple[InputConfig, ...] = ()
    sending: dict[str, DispatchSettings] = {}
    """By adapter how much it does at a time, where that is said."""
    plugin_settings: dict[str, dict[str, Any]] = {}
    """The `[adapters.NAME]` tables of plug-ins, as they stand."""
    wanted: tuple[str, ...] = ()
    """Adapters to be there though no peer of the site uses them."""
    registered_later: tuple[str, ...] = ()
    """Adapters that peers use and the application registers at run time."""
    act_within_ms: int = ACT_WITHIN_MS
    """Actions of detections that are older are recorded, not carried out."""

    def adapters(self) -> tuple[str, ...]:
        """The adapters that the peers' addresses and the actions need, sorted."""
        used = {adapter_of(entry) for peer in self.peers.values() for entry in peer.addresses}
        used |= {*self.wanted} | self._kinds() - {"append"}
        return tuple(sorted(used - {*self.registered_later}))

    def linked_outside(self) -> dict[str, str]:
        """Peers who get links by a medium that leaves this machine, each with its address."""
        found = {}
        for name, peer in self.peers.items():
            outside = (entry for entry in peer.addresses if self._leaves_machine(entry))
            if address := next(outside, ""):
                found[name] = address
        return found

    def _leaves_machine(self, address: str) -> bool:
        medium, _, target = address.partition(":")
        match medium:
            case "mail":
                return not is_loopback(self.mail.host)
            case "webhook":
                return not is_loopback(address_parts(target).hostname or "")
            case "apprise":
                service = self.media["apprise"].targets.get(target, target)
                return not is_loopback(address_parts(service).hostname or "")
            case _:
                return False  # no links, or who reads them is here

    def appends(self) -> bool:
        """Whether an action appends events."""
        return "append" in self._kinds()

    def _kinds(self) -> set[str]:
        return {action.effect.kind for action in self.actions.values() if action.effect is not None}


def communication_from_site(
    file: TomlFile,
    directory: Path,
    *,
    adapters: Collection[str] = BUILT_IN,
    named: Mapping[str, Collection[str]] | None = None,
) -> tuple[Communication, list[Problem]]:
    """What `[peers]`, `[collectives]`, `[actions]`, `[adapters]` and `[inputs]` say, and all their
    problems.

    `directory` is where secret files and privacy functions are looked for; `adapters` names all
    that are installed; `named` is what the texts of an action can name, by `same_phrase`, where the
    policies are known. Never raises for a wrong site: declarations that have errors must not be
    used.
    """
    problems: list[Problem] = []
    peers = {
        name: read_peer(
            name, Fields(section, problems, known=PEER_KEYS, strict=True), adapters, directory
        )
        for name, section in _tables(file, "peers", problems)
    }
    collectives = {
        name: read_collective(
            name, Fields(section, problems, known=COLLECTIVE_KEYS, strict=True), peers
        )
        for name, section in _tables(file, "collectives", problems)
    }
    actions = {
        phrase: read_action(
            phrase,
            Fields(section, problems, known=ACTION_KEYS, strict=True),
            peers,
            collectives,
            (named or {}).get(same_phrase(phrase), ()),
        )
        for phrase, section in _tables(file, "actions", problems)
    }
    _tables(file, "adapters", problems)
    _tables(file, "inputs", problems)
    mail, webhook = read_adapters(file, directory, adapters, problems)
    declared = Communication(
        peers=peers,
        collectives=collectives,
        actions=actions,
        mail=mail,
        webhook=webhook,
        zone=_zone(file, problems),
        media=read_media(file, directory, problems),
        inputs=read_inputs(file, directory, problems),
        sending=read_sending(file, problems),
        plugin_settings={
            name: section.values
            for name, section in file.section("adapters").sections()
            if name not in BUILT_IN
        },
        # People may be added while the node runs. An inbox needs nothing to be declared.
        act_within_ms=Fields(file.section("site"), problems).duration_ms(
            "act_within", ACT_WITHIN_MS, least=1
        ),
        wanted=("inbox", *(name for name in file.section("adapters").values if name in adapters)),
    )
    check_places(file, peers, declared.media, problems)
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
            hint=named_in_texts(known, field),
        )
        for key, field in asked
        if field not in known
    ]


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


def _zone(file: TomlFile, problems: list[Problem]) -> str:
    """The site's zone, `[site] zone`."""
    table = Fields(file.section("site"), problems)
    zone = table.text("zone", "UTC")
    if is_zone(zone):
        return zone
    message = f"{zone[:40]!r} is not a time zone"
    table.fault("zone", "site.bad_zone", message, hint='such as zone = "Europe/Vienna"')
    return "UTC"


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
