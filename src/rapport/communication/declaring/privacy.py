"""What the site says about a person's privacy: `quiet` and `[[peers.NAME.privacy]]`, and every
fault in them. [CO-9, UX-2]"""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

from rapport.communication.declaring.functions import function_fault
from rapport.communication.declaring.times import (
    WHEN_KEYS,
    read_hours,
    read_texts,
    read_until,
    read_when,
)
from rapport.communication.privacy.hours import LocalTimes, is_zone
from rapport.communication.privacy.rules import PrivacyRule, RuleAction
from rapport.communication.privacy.verdict import quiet_rule
from rapport.kernel.config_fields import Fields

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
"""Keys that say when a hold ends."""
_SENDER = re.compile(r"(?:\*|unproven|(?:peer|collective|component|\*):.+)\Z", re.DOTALL)
_MOST_COUNTED = 1_000
_LONGEST_MS = 366 * 86_400_000


def read_privacy(table: Fields, directory: Path) -> tuple[PrivacyRule, ...]:
    """The rules of one `[peers.NAME]`: those of its `privacy` tables, then its quiet hours; what is
    wrong is among the table's problems. `directory` is where the site's own functions lie.
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
    if len(table.problems) == before:  # what follows from another fault is none of its own
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
    """Urgent messages break through rules about times and numbers, unless the rule says else."""
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


# --- what does not fit together ---


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
    """A rule about every message, at every time, leaves nothing for those below it."""
    plain = [PrivacyRule(then=rule.then, zone=rule.zone, reason=rule.reason) for rule in rules]
    for number, (rule, bare) in enumerate(zip(rules, plain, strict=True)):
        below = number + 1 < len(rules) or table.has("quiet")
        if rule == bare and below:
            table.fault(
                "privacy",
                "privacy.never_reached",
                f"rule {number + 1} is about every message, so those below it say nothing",
                hint="put it last, or add a condition",
                severity="warning",
            )
