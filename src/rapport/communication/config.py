"""Reads the tables of a site file that concern communication, faults in place: `[adapters]`,
`[inputs]`, `[sessions]`, `[arriving]`, `[engines]`; people and actions are read by `people_config`
and `action_config`. [CO-3, CO-11, CO-14, CO-17, UX-2]

```toml
[sessions]
lifetime = "8 hours"        # of a token
longest = "30 days"         # of a session with all its renewals
rotate = "7 days"           # how long a key signs
memory_kib = 65536          # of one password hash (argon2id); also passes, lanes

[arriving]
most_bytes = 1000000        # largest content
rate = 1000                 # messages a second per sender and adapter; 0 = any
burst = 10000               # at once
unproven = "inward"         # or "accept", "refuse"
on_expired = "refuse"       # or "hold"
hold = "1 hour"
most_held = 100             # per peer
most_held_bytes = 4000000
answer_links = "30 days"    # validity of answer links after their message was closed
declines = ["no", "cannot"] # an answer with one of these as its first line declines

[engines]
several = true              # other processes may work on the same channels and records
lease = "6 s"               # a process that was silent for so long is replaced
shares = 16                 # number of parts of the work; never to be changed
```
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rapport.channel.config import ChannelsConfig, channels_from_site
from rapport.communication.action_config import ACTION_KEYS, read_action
from rapport.communication.actions import Action
from rapport.communication.adapters.adapter_config import (
    BUILT_IN,
    InputConfig,
    check_places,
    read_inputs,
    read_media,
    read_sending,
)
from rapport.communication.adapters.dispatch import DispatchSettings
from rapport.communication.arrival_checks import ArrivalSettings
from rapport.communication.cluster_leases import LEASE_MS, SHARES, ShareSettings
from rapport.communication.content_rules import ContentFault, ContentRules
from rapport.communication.detection_actions import message_saying
from rapport.communication.message_info import Kind, MessageInformation, info_from_site
from rapport.communication.peers import Collective, Peer, adapter_of
from rapport.communication.people_config import (
    COLLECTIVE_KEYS,
    PEER_KEYS,
    gap_warning,
    read_collective,
    read_language,
    read_peer,
)
from rapport.communication.privacy import is_zone
from rapport.communication.routing import RoutingRule, routing_from_site
from rapport.communication.sessions.passwords import PasswordSettings
from rapport.communication.sessions.sessions import SessionSettings
from rapport.communication.texts import (
    ALWAYS_KNOWN,
    constant_text,
    named_in_texts,
    same_phrase,
    template_fields,
)
from rapport.core.detection import ACT_WITHIN_MS, phrase_key
from rapport.core.errors import InvalidInput, Problem
from rapport.core.urls import address_parts, is_loopback
from rapport.kernel.config_fields import Fields, keys_of
from rapport.kernel.toml import Section, TomlFile

_SESSION_KEYS = ("lifetime", "longest", "rotate", *keys_of(PasswordSettings))
_MINUTE_MS = 60_000
_KEYS = ("several", "lease", "shares")
_CHANNELS = ("input", "control", "detections", "handed", "log", "output.x")
_SHARED = ("nats", "postgres")
_LEAST_LEASE_MS = 1_000
_MOST_SHARES = 256


class CommunicationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of communication."""

    peers: dict[str, Peer]
    collectives: dict[str, Collective]
    actions: dict[str, Action]
    zone: str = "UTC"
    """Time zone of the site, for people without one of their own."""
    language: str = "en"
    """Language of times and values in texts, for people without one of their own."""
    media: dict[str, Any] = {}
    """Settings of the built-in adapters, by name."""
    inputs: tuple[InputConfig, ...] = ()
    sending: dict[str, DispatchSettings] = {}
    """Limits of dispatches by adapter, where they are set."""
    plugin_settings: dict[str, dict[str, Any]] = {}
    """The `[adapters.NAME]` tables of plug-ins, unread."""
    wanted: tuple[str, ...] = ()
    """Adapters to start though no peer of the site uses them."""
    registered_later: tuple[str, ...] = ()
    """Adapters that peers use and the application registers at run time."""
    act_within_ms: int = ACT_WITHIN_MS
    """Actions of older detections are recorded and not carried out."""

    def adapters(self) -> tuple[str, ...]:
        """The adapters that the peers' addresses and the actions need, sorted."""
        used = {adapter_of(entry) for peer in self.peers.values() for entry in peer.addresses}
        used |= {*self.wanted} | self._kinds() - {"append"}
        return tuple(sorted(used - {*self.registered_later}))

    def linked_outside(self) -> dict[str, str]:
        """Peers that get links by a medium that leaves this machine, each with its address."""
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
                return not is_loopback(self.media["mail"].host)
            case "webhook":
                return not is_loopback(address_parts(target).hostname or "")
            case "apprise":
                service = self.media["apprise"].targets.get(target, target)
                return not is_loopback(address_parts(service).hostname or "")
            case _:
                return False  # no links, or they stay on this machine

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
) -> tuple[CommunicationConfig, list[Problem]]:
    """Reads `[peers]`, `[collectives]`, `[actions]`, `[adapters]` and `[inputs]`, with all their
    problems.

    `directory`: where secret files and privacy functions lie; `adapters`: the installed ones;
    `named`: the names that the texts of an action can use, by `same_phrase`, where the policies are
    known. Never raises for a wrong site: a configuration with errors must not be used.
    """
    problems: list[Problem] = []
    zone = _zone(file, problems)
    peers = {
        name: read_peer(
            name, Fields(section, problems, known=PEER_KEYS, strict=True), adapters, directory
        )
        for name, section in _tables(file, "peers", problems)
    }
    collectives: dict[str, Collective] = {}
    for name, section in _tables(file, "collectives", problems):
        table = Fields(section, problems, known=COLLECTIVE_KEYS, strict=True)
        collectives[name] = read_collective(name, table, peers, zone)
        if gap := gap_warning(collectives[name]):
            table.fault("roster", gap.code, gap.message, hint=gap.hint, severity="warning")
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
    media = read_media(file, directory, adapters, problems)
    declared = CommunicationConfig(
        peers=peers,
        collectives=collectives,
        actions=actions,
        zone=zone,
        language=read_language(Fields(file.section("site"), problems), "en"),
        media=media,
        inputs=read_inputs(file, directory, problems),
        sending=read_sending(file, problems),
        plugin_settings={
            name: section.values
            for name, section in file.section("adapters").sections()
            if name not in BUILT_IN
        },
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
    declared: CommunicationConfig,
    phrases: Mapping[str, Collection[str]],
    aliases: Mapping[str, Collection[str]],
) -> list[Problem]:
    """Faults that need the policies: a text with an alias that its policy lacks, two phrases that
    call the same address.

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
    """Two calls of one detection to one address have the same idempotency key."""
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
        fields = [(key, field) for key, text in action.texts() for field in template_fields(text)]
    except InvalidInput:
        return []  # reported with the declaration
    return [
        file.problem(
            ("actions", action.phrase, key),
            "action.unknown_field",
            f"the text asks for {{{field}}}, which policy {policy!r} does not have",
            hint=named_in_texts(known, field),
        )
        for key, field in fields
        if phrase_key(field) not in known
    ]


# --- the rest of the file ---


def _warn_of_defaults(
    file: TomlFile, declared: CommunicationConfig, problems: list[Problem]
) -> None:
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
                    hint="blanks and letter case do not make phrases differ",
                )
            )


def _zone(file: TomlFile, problems: list[Problem]) -> str:
    """The time zone of the site, `[site] zone`."""
    table = Fields(file.section("site"), problems)
    zone = table.text("zone", "UTC")
    if is_zone(zone):
        return zone
    message = f"{zone[:40]!r} is not a time zone"
    table.fault("zone", "site.bad_zone", message, hint='such as zone = "Europe/Vienna"')
    return "UTC"


def _tables(file: TomlFile, name: str, problems: list[Problem]) -> list[tuple[str, Section]]:
    """The tables below `[name.*]`; any other value is a fault."""
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


class ArrivalConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of sessions, passwords and arriving messages."""

    sessions: SessionSettings = SessionSettings()
    passwords: PasswordSettings = PasswordSettings()
    arriving: ArrivalSettings = ArrivalSettings()


def arrivals_from_site(file: TomlFile) -> tuple[ArrivalConfig, list[Problem]]:
    """Reads `[sessions]` and `[arriving]`, with all problems; never raises for a wrong site."""
    problems: list[Problem] = []
    about = Fields(file.section("sessions"), problems, known=_SESSION_KEYS, strict=True)
    arriving = Fields(
        file.section("arriving"), problems, known=keys_of(ArrivalSettings), strict=True
    )
    entrance = ArrivalConfig(
        sessions=_sessions(about),
        passwords=about.settings(PasswordSettings()),
        arriving=arriving.settings(ArrivalSettings()),
    )
    return entrance, problems


def _sessions(table: Fields) -> SessionSettings:
    default = SessionSettings()
    lifetime_ms = table.duration_ms("lifetime", default.lifetime_ms, least=_MINUTE_MS)
    longest_ms = table.duration_ms("longest", max(default.longest_ms, lifetime_ms), least=1)
    if longest_ms < lifetime_ms:
        table.fault(
            "longest",
            "sessions.shorter_than_a_token",
            "a session cannot be shorter than its first token",
            hint="make longest at least as long as lifetime",
        )
        longest_ms = lifetime_ms
    return SessionSettings(
        lifetime_ms=lifetime_ms,
        longest_ms=longest_ms,
        rotate_ms=table.duration_ms("rotate", default.rotate_ms, least=_MINUTE_MS),
    )


def engines_from_site(file: TomlFile) -> tuple[ShareSettings | None, list[Problem]]:
    """Reads `[engines]`, None for a single engine; and all problems."""
    problems: list[Problem] = []
    table = Fields(file.section("engines"), problems, known=_KEYS, strict=True)
    several = table.flag("several")
    settings = ShareSettings(
        count=table.number("shares", SHARES, low=1, high=_MOST_SHARES),
        lease_ms=table.duration_ms("lease", LEASE_MS, least=_LEAST_LEASE_MS),
    )
    if not several:
        return None, problems
    _check_stores(table, channels_from_site(file)[0])
    return settings, problems


def _check_stores(table: Fields, channels: ChannelsConfig) -> None:
    if channels.records != "postgres":
        table.fault(
            "several",
            "engines.records_not_shared",
            "several engines need records that they share",
            hint='add records = "postgres" to [channels]',
        )
    alone = [name for name in _CHANNELS if channels.rules_for(name).log not in _SHARED]
    if alone:
        named = ", ".join(name.replace(".x", ".*") for name in alone)
        table.fault(
            "several",
            "engines.channels_not_shared",
            f"several engines need channels that they share; these are not: {named}",
            hint='add log = "nats" or log = "postgres" to [channels]',
        )


def constant_misfit(action: Action, rules: ContentRules) -> ContentFault | None:
    """Why an action is always refused; None when that is not known beforehand."""
    if action.effect is not None:
        return None
    try:
        text = constant_text(action.text)
    except InvalidInput:
        return None  # reported with the declaration
    return None if not text else rules.fault(message_saying(action, text))


def check_constant_texts(
    file: TomlFile, actions: Mapping[str, Action], rules: ContentRules
) -> list[Problem]:
    """The texts of `[actions]` that never fit the schema of their type."""
    found = [(phrase, constant_misfit(action, rules)) for phrase, action in actions.items()]
    return [
        file.problem(("actions", phrase, "text"), fault.code, fault.message, hint=fault.hint)
        for phrase, fault in found
        if fault is not None
    ]


class ServicesConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of `[[routing]]` and `[messages]`."""

    rules: tuple[RoutingRule, ...] = ()
    information: dict[Kind, MessageInformation] = {}


def services_from_site(
    file: TomlFile, directory: Path, *, peers: Collection[str], collectives: Collection[str]
) -> tuple[ServicesConfig, list[Problem]]:
    """Reads `[[routing]]` and `[messages]`, with all problems."""
    rules, wrong_rules = routing_from_site(file, peers=peers, collectives=collectives)
    information, wrong_information = info_from_site(file, directory)
    declared = ServicesConfig(rules=rules, information=information)
    return declared, [*wrong_rules, *wrong_information]
