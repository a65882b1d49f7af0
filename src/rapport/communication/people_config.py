"""Reads `[peers.NAME]` and `[collectives.NAME]` of a site file, with quiet hours and privacy
rules. [CO-3, CO-8, CO-9, UX-2]

Every fault is reported at its place. The directory reads entries that were added at run time by the
same rules. A privacy function lies in the site's directory; an entry can name no other module.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping
from datetime import date
from pathlib import Path
from typing import cast

from rapport.communication.delivery_state import CollectiveDelivery, PeerDelivery
from rapport.communication.duty import ALWAYS, Roster, Shift, week_time, weekly_gaps
from rapport.communication.peers import Collective, Peer, address_fault
from rapport.communication.privacy import (
    DateSpan,
    DaySpan,
    LocalTimes,
    PrivacyRule,
    RuleAction,
    is_zone,
    parse_clock,
    parse_hours,
    quiet_rule,
)
from rapport.communication.texts import LANGUAGES
from rapport.core.errors import InvalidInput, Problem, nearest_names
from rapport.kernel.config_fields import Fields, suggest
from rapport.kernel.plugins import Plugins

WHEN_KEYS = ("hours", "days", "dates")
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_SEVERAL_DAYS = {"workdays": tuple(range(5)), "weekend": (5, 6)}
_LEAP_YEAR = 2024

_FUNCTION = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<name>[A-Za-z_]\w*)\Z")
RULE_KEYS = (
    "then",
    "type",
    "subtype",
    "sender",
    "urgent",
    "even_urgent",
    "hours",
    "days",
    "dates",
    "at_most",
    "per",
    "until",
    "for",
    "ask",
    "reason",
)
_ENDS = (*WHEN_KEYS, "at_most", "until", "for")
"""Keys that end a hold."""
_SENDER = re.compile(r"(?:\*|unproven|(?:peer|collective|component|\*):.+)\Z", re.DOTALL)
_MOST_COUNTED = 1_000
_LONGEST_MS = 366 * 86_400_000
PEER_DELIVERIES = ("to-all-channels", "at-least-one", "preferred")
COLLECTIVE_DELIVERIES = ("to-any", "to-all-members", "at-least 3")
"""As written in a site file, with any number in place of the 3."""
PEER_KEYS = (
    "addresses",
    "delivery",
    "fallback",
    "fallback_after",
    "zone",
    "language",
    "quiet",
    "on_quiet",
    "privacy",
)
COLLECTIVE_KEYS = ("members", "delivery", "roster", "zone")
SHIFT_KEYS = ("person", "instead_of", *WHEN_KEYS)
_SHIFT = '[{ person = "ana", days = "mon-fri", hours = "08:00-20:00" }]'
_MOST_SHIFTS = 500
_AT_LEAST = re.compile(r"at-least(?:\s+(\S+))?\s*\Z")


def read_when(table: Fields) -> LocalTimes | None:
    """The hours, days and dates of a rule, or None."""
    if not any(table.has(key) for key in WHEN_KEYS):
        return None
    days = tuple(
        dict.fromkeys(day for text in read_texts("days", table) for day in _days(text, table))
    )
    spans = [_dates(text, table) for text in read_texts("dates", table)]
    return LocalTimes(
        hours=read_hours("hours", table) if table.has("hours") else (),
        days=days,
        dates=tuple(span for span in spans if span is not None),
    )


def read_texts(key: str, table: Fields) -> tuple[str, ...]:
    """The texts at a key, which must not be empty."""
    if table.has(key) and table.section.values[key] in ([], ""):
        table.wrong(key, "one or more texts", f'{key} = ["..."]')
    return tuple(text for text in table.texts(key, ()) if text)


def read_hours(key: str, table: Fields) -> tuple[DaySpan, ...]:
    found = []
    for text in read_texts(key, table):
        try:
            found.append(parse_hours(text))
        except InvalidInput as error:
            table.report(key, error)
    return tuple(found)


def _days(text: str, table: Fields) -> tuple[int, ...]:
    """`sat`, `mon-fri`, `fri-mon`, `workdays`, `weekend`."""
    words = [word.strip() for word in text.lower().split("-")]
    if text.lower() in _SEVERAL_DAYS:
        return _SEVERAL_DAYS[text.lower()]
    numbers = [_day(word) for word in words]
    if len(numbers) > 2 or None in numbers:
        table.fault(
            "days",
            "privacy.bad_days",
            f"{text[:40]!r} is no day of the week",
            hint='write "sat", "mon-fri", "workdays" or "weekend"',
        )
        return ()
    first, last = cast(int, numbers[0]), cast(int, numbers[-1])
    return tuple(number % 7 for number in range(first, last + 1 if last >= first else last + 8))


def _day(word: str) -> int | None:
    fits = [number for number, name in enumerate(_DAYS) if word in (name, name[:3])]
    return fits[0] if fits else None


def _dates(text: str, table: Fields) -> DateSpan | None:
    """`2026-08-01..2026-08-14`, `12-24..01-06`, or one day alone."""
    first, dots, last = (part.strip() for part in text.partition(".."))
    last = last if dots else first
    if not (_is_date(first) and _is_date(last) and len(first) == len(last)):
        table.fault(
            "dates",
            "privacy.bad_dates",
            f"{text[:40]!r} is no date and no span of dates",
            hint='write "2026-08-01..2026-08-14", or "12-24..01-06" for every year',
        )
        return None
    if len(first) > 5 and first > last:
        table.fault(
            "dates",
            "privacy.bad_dates",
            f"{text[:40]!r} ends before it begins",
            hint=f'write "{last}..{first}"',
        )
        return None
    return DateSpan(first, last)


def _is_date(text: str) -> bool:
    whole = f"{_LEAP_YEAR}-{text}" if len(text) == 5 else text
    try:
        return date.fromisoformat(whole).isoformat() == whole
    except ValueError:
        return False


def read_until(table: Fields) -> int | None:
    """The minute of the day at which a hold ends, or None."""
    text = table.text("until", "")
    try:
        return parse_clock(text) if table.has("until") else None
    except InvalidInput as error:
        table.report("until", error)
        return None


def function_fault(name: str, directory: Path) -> InvalidInput | None:
    """The fault of a privacy function's name, or None. Reads its file, runs nothing."""
    if ":" not in name:
        known = Plugins().names("privacy")
        if name in known:
            return None
        hint = suggest(name, known) or 'write "module:function" for a file of the site'
        message = f"there is no privacy plug-in named {name[:40]!r}"
        return InvalidInput(message, code="privacy.unknown_function", hint=hint)
    found = _FUNCTION.match(name)
    if found is None:
        message = f"{name[:40]!r} does not name a module and a function"
        hint = 'write "rules:not_in_a_meeting" for that function in rules.py of the site'
        return InvalidInput(message, code="privacy.bad_function", hint=hint)
    file = directory.joinpath(*found["module"].split(".")).with_suffix(".py")
    return _file_fault(file, found["name"])


def _file_fault(file: Path, function: str) -> InvalidInput | None:
    code = "privacy.unknown_function"
    try:
        tree = ast.parse(file.read_bytes())
    except OSError:
        hint = "functions lie in the site's directory; others are installed as rapport.privacy"
        return InvalidInput(f"the site has no file {file.name!r}", code=code, hint=hint)
    except (SyntaxError, ValueError, RecursionError) as error:
        message = f"{file.name} is not Python: {error}"[:200]
        return InvalidInput(message, code="privacy.bad_function", hint="run it with Python")
    known = [each.name for each in tree.body if isinstance(each, ast.FunctionDef)]
    if function in known:
        return None
    message = f"{file.name} has no function {function[:40]!r}"
    return InvalidInput(message, code=code, hint=suggest(function, known) or "define it with def")


def read_privacy(table: Fields, directory: Path) -> tuple[PrivacyRule, ...]:
    """Reads the rules of one `[peers.NAME]`: its `privacy` tables, then its quiet hours; faults are
    added to the table's problems. `directory`: where the site's functions lie.
    """
    zone = _zone(table)
    rules = [
        _rule(entry, zone, directory)
        for entry in table.entries("privacy", RULE_KEYS, '[{ type = "AD", then = "refuse" }]')
    ]
    _check_reached(table, rules)
    if not table.has("zone") and any(rule.when or rule.until is not None for rule in rules):
        _warn_of_zone("privacy", table)
    quiet = _quiet(table, zone)
    return (*rules, quiet) if quiet is not None else tuple(rules)


def _zone(table: Fields) -> str:
    zone = table.text("zone", "UTC")
    if is_zone(zone):
        return zone
    table.fault(
        "zone",
        "peer.bad_zone",
        f"{zone[:40]!r} is not a time zone",
        hint="write a name of the IANA data base, such as Europe/Vienna",
    )
    return "UTC"


def _quiet(table: Fields, zone: str) -> PrivacyRule | None:
    then = cast(RuleAction, table.choice("on_quiet", ("hold", "refuse"), "hold"))
    if not table.texts("quiet", (), example='"22:00-07:00"') or table.texts("quiet", ()) == ("",):
        return None
    if not table.has("zone"):
        _warn_of_zone("quiet", table)
    hours = read_hours("quiet", table)
    if then == "hold" and hours and LocalTimes(hours=hours).never_end():
        _fault_of_endless("quiet", table)
    return quiet_rule(hours, zone, then) if hours else None


def _warn_of_zone(key: str, table: Fields) -> None:
    table.fault(
        key,
        "peer.quiet_without_zone",
        "hours without a zone are in UTC",
        hint='add zone = "Europe/Vienna"',
        severity="warning",
    )


# --- one rule ---


def _rule(table: Fields, zone: str, directory: Path) -> PrivacyRule:
    before = len(table.problems)
    when = read_when(table)
    at_most = table.number("at_most", 0, low=1, high=_MOST_COUNTED) if table.has("at_most") else 0
    then = cast(RuleAction, table.choice("then", ("allow", "hold", "refuse"), "refuse"))
    breaks_through = then != "allow" and (when is not None or bool(at_most))
    _check_count(table)
    rule = PrivacyRule(
        then=then,
        types=read_texts("type", table),
        subtypes=read_texts("subtype", table),
        senders=_senders(table),
        urgent=_urgent(table, breaks_through=breaks_through),
        when=when,
        at_most=at_most,
        per_ms=_duration("per", 3_600_000, table) if at_most else 0,
        until=read_until(table),
        hold_ms=_duration("for", 0, table),
        zone=zone,
        ask=_ask(table, directory),
        reason=_reason(table),
    )
    if len(table.problems) == before:  # or it may only be the consequence of another fault
        _check_hold(table, rule)
    return rule


def _duration(key: str, default: int, table: Fields) -> int:
    duration_ms = table.duration_ms(key, default, least=1)
    if duration_ms > _LONGEST_MS:
        hint = f'write {key} = "1 hour"'
        table.fault(key, "site.out_of_range", f"{key!r} must be at most a year", hint=hint)
        return default
    return duration_ms


def _senders(table: Fields) -> tuple[str, ...]:
    senders = read_texts("sender", table)
    for sender in senders:
        if not _SENDER.match(sender):
            table.fault(
                "sender",
                "privacy.bad_sender",
                f"{sender[:40]!r} names no sender",
                hint='write "peer:NAME", "component:NAME" (also "component:ads-*") or "unproven"',
            )
    return senders


def _urgent(table: Fields, *, breaks_through: bool) -> bool | None:
    """Urgent messages break through rules about times and numbers by default."""
    even_urgent = table.flag("even_urgent")
    if table.has("urgent"):
        if even_urgent:
            table.fault(
                "even_urgent",
                "privacy.urgent_twice",
                "'urgent' says already which messages the rule is about",
                hint="leave one of them out",
            )
        return table.flag("urgent")
    return False if breaks_through and not even_urgent else None


def _reason(table: Fields) -> str:
    reason = table.text("reason", "")
    if len(reason) > 200 or not reason.isprintable():
        table.wrong("reason", "one line of at most 200 characters", 'reason = "..."')
    return reason


def _ask(table: Fields, directory: Path) -> str:
    name = table.filled_text("ask", "", example='"rules:not_in_a_meeting"')
    if not name:
        return ""
    if table.has("then"):
        table.fault(
            "then",
            "privacy.two_deciders",
            "the function decides, so 'then' means nothing",
            hint="leave 'then' or 'ask' out",
        )
    if fault := function_fault(name, directory):
        table.report("ask", fault)
    return name


# --- consistency ---


def _check_count(table: Fields) -> None:
    if table.has("per") and not table.has("at_most"):
        table.fault(
            "per",
            "privacy.nothing_counted",
            "'per' only means something with 'at_most'",
            hint="add at_most = 5",
        )


def _check_hold(table: Fields, rule: PrivacyRule) -> None:
    if rule.then != "hold" or rule.ask:
        for key in ("until", "for"):
            if table.has(key):
                table.fault(
                    key,
                    "privacy.nothing_held",
                    f"{key!r} says how long to hold, but the rule holds nothing",
                    hint='add then = "hold"',
                )
        return
    own_ends = [key for key in ("until", "for") if table.has(key)]
    if not any(table.has(key) for key in _ENDS):
        table.fault(
            "then",
            "privacy.endless_hold",
            "nothing says how long the rule holds a message",
            hint=f'add until = "08:00" or for = "30 min", or one of {", ".join(_ENDS[:4])}',
        )
    elif len(own_ends) > 1:
        message = "'until' and 'for' both say how long to hold"
        table.fault("for", "privacy.two_ends", message, hint="leave one of them out")
    elif rule.when is not None and rule.when.never_end() and not (own_ends or rule.at_most):
        _fault_of_endless("hours", table)


def _fault_of_endless(key: str, table: Fields) -> None:
    message = "these hours are the whole day, every day: the hold never ends"
    hint = "leave an hour out, or refuse instead"
    table.fault(key, "privacy.endless_hold", message, hint=hint)


def _check_reached(table: Fields, rules: list[PrivacyRule]) -> None:
    """Warns of a rule about every message, behind which other rules never apply."""
    plain = [PrivacyRule(then=rule.then, zone=rule.zone, reason=rule.reason) for rule in rules]
    for number, (rule, bare) in enumerate(zip(rules, plain, strict=True)):
        below = number + 1 < len(rules) or table.has("quiet")
        if rule == bare and below:
            table.fault(
                "privacy",
                "privacy.never_reached",
                f"rule {number + 1} is about every message, so that those below it never apply",
                hint="put it last, or add a condition",
                severity="warning",
            )


def read_peer(name: str, table: Fields, adapters: Collection[str], directory: Path) -> Peer:
    """Reads one `[peers.NAME]`; faults are added to the table's problems."""
    addresses = table.texts("addresses", ())
    if table.is_empty("addresses"):
        table.fault(
            "addresses",
            "peer.no_address",
            f"{name!r} has no address",
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
    fallback_after = table.duration_ms("fallback_after", 0, least=1)
    if fallback_after and not fallback:
        table.fault(
            "fallback_after",
            "peer.fallback_after_without_fallback",
            "fallback_after only means something with fallback = true",
            hint='write delivery = "preferred" and fallback = true, or leave it out',
        )
    return Peer(
        name=name,
        addresses=addresses,
        delivery=cast(PeerDelivery, delivery),
        fallback=fallback,
        fallback_after=fallback_after,
        privacy=read_privacy(table, directory),
        zone=zone if is_zone(zone := table.text("zone", "")) else "",
        language=read_language(table, ""),
    )


def read_language(table: Fields, default: str) -> str:
    """The language of times and values in texts."""
    return table.choice("language", LANGUAGES, default) if table.has("language") else default


def read_collective(
    name: str, table: Fields, peers: Mapping[str, Peer], zone: str = "UTC"
) -> Collective:
    """Reads one `[collectives.NAME]`; faults are added to the table's problems. `zone`: that of a
    roster without its own.
    """
    members = table.texts("members", ())
    if table.is_empty("members"):
        table.fault(
            "members",
            "collective.empty",
            f"{name!r} has no members",
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
    delivery, least = _collective_delivery(table)
    if least > len(set(members)):
        table.fault(
            "delivery",
            "collective.least_too_many",
            f"{name!r} needs {least}, but only {len(set(members))} are in it",
            hint="name more members, or ask for fewer; members may also join at run time",
            severity="warning",
        )
    roster = read_roster(table, zone)
    if roster is not None:
        for fault in roster_faults(roster, members):
            table.report("roster", fault)
    return Collective(name=name, members=members, delivery=delivery, least=least, roster=roster)


def read_roster(table: Fields, zone: str) -> Roster | None:
    """The shifts of a group; None when it has no roster."""
    zone = _zone(table) if table.has("zone") else zone
    entries = table.entries("roster", SHIFT_KEYS, _SHIFT)
    if len(entries) > _MOST_SHIFTS:
        message = f"{len(entries)} shifts; the limit is {_MOST_SHIFTS}"
        table.fault("roster", "collective.too_many_shifts", message)
        return None
    shifts = tuple(
        Shift(
            person=entry.filled_text("person", example='"ana"'),
            when=read_when(entry) or ALWAYS,
            instead_of=entry.text("instead_of", ""),
        )
        for entry in entries
    )
    return Roster(shifts=shifts, zone=zone) if shifts else None


def roster_faults(roster: Roster, members: Collection[str]) -> list[InvalidInput]:
    """Shifts of people who are not in the group, and substitutes who replace nobody."""
    own = {shift.person for shift in roster.shifts if not shift.instead_of}
    faults = [
        InvalidInput(
            f"{name!r} has a shift, but is not in the group",
            code="collective.not_a_member",
            hint=suggest(name, nearest_names(name, members)) or f"add {name!r} to the members",
        )
        for name in sorted(roster.people() - set(members) - {""})
    ]
    for name in sorted({shift.instead_of for shift in roster.shifts} - own - {""}):
        message = f"nobody can stand in for {name!r}, who has no shift"
        faults.append(
            InvalidInput(message, code="collective.nobody_to_replace", hint=suggest(name, own))
        )
    return faults


def gap_warning(group: Collective) -> Problem | None:
    """Warns of times of the week in which too few of a group are on duty."""
    least = max(group.least, 1)
    gaps = weekly_gaps(group.roster, least) if group.roster is not None else []
    if not gaps:
        return None
    spans = ", ".join(f"{week_time(start)} to {week_time(end)}" for start, end in gaps[:3])
    more = f" and {len(gaps) - 3} more times" if len(gaps) > 3 else ""
    few = "nobody is" if least == 1 else f"fewer than {least} are"
    return Problem(
        code="collective.roster_gap",
        message=f"{few} on duty from {spans}{more}",
        hint="all members are notified then; add a shift if that is not wanted",
        severity="warning",
    )


def parse_collective_delivery(text: str) -> tuple[CollectiveDelivery, int]:
    """The delivery policy and its number; raises InvalidInput.

    >>> parse_collective_delivery("at-least 3"), parse_collective_delivery("to-any")
    (('at-least', 3), ('to-any', 0))
    """
    if text in ("to-any", "to-all-members"):
        return cast(CollectiveDelivery, text), 0
    found = _AT_LEAST.match(text)
    number = found[1] if found else None
    if number is not None and number.isascii() and number.isdigit() and 0 < int(number) < 10**6:
        return "at-least", int(number)
    if found:
        raise InvalidInput(
            f"{text[:40]!r} does not say how many",
            code="collective.bad_least",
            hint='write a whole number from 1, such as "at-least 3"',
        )
    raise InvalidInput(
        f"'delivery' cannot be {text[:40]!r}",
        code="site.unknown_choice",
        hint=suggest(text, COLLECTIVE_DELIVERIES),
    )


def _collective_delivery(table: Fields) -> tuple[CollectiveDelivery, int]:
    try:
        return parse_collective_delivery(table.text("delivery", "to-any"))
    except InvalidInput as error:
        table.report("delivery", error)
        return "to-any", 0
