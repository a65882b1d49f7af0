"""Whether a message may go out to a person now: their rules in order, the first that says something
decides. [CO-9]

Pure but for the functions that a rule asks: the time and all else are arguments, so a verdict is
the same after a restart. Asked before every first sending and again when a hold ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from rapport.communication.privacy.functions import (
    NO_FUNCTIONS,
    PrivacyFunctions,
    ask_function,
)
from rapport.communication.privacy.hours import (
    DaySpan,
    LocalTimes,
    end_of,
    is_zone,
    next_clock,
    parse_hours,
)
from rapport.communication.privacy.rules import (
    Allowed,
    Hold,
    PrivacyFacts,
    PrivacyRule,
    Refuse,
    RuleAction,
    Verdict,
    fits_pattern,
)
from rapport.core.times import format_duration

__all__ = [
    "Allowed",
    "Hold",
    "PrivacyFacts",
    "PrivacyRule",
    "Refuse",
    "Verdict",
    "is_zone",
    "most_counted",
    "parse_hours",
    "quiet_rule",
    "verdict",
]


def verdict(
    rules: Sequence[PrivacyRule],
    facts: PrivacyFacts,
    functions: PrivacyFunctions = NO_FUNCTIONS,
) -> Verdict:
    """Whether the message may go out now; without a rule that says something it may.

    Fails closed: a function that is missing or fails, and a count that nobody gives, refuse. Never
    raises. Costs some microseconds a rule, more where a function is asked.
    """
    for rule in rules:
        said = _said(rule, facts, functions)
        if said is not None:
            return said
    return Allowed()


def quiet_rule(
    hours: Sequence[DaySpan], zone: str = "UTC", then: RuleAction = "hold"
) -> PrivacyRule:
    """Quiet hours: nothing but what is urgent goes out in them."""
    return PrivacyRule(then=then, when=LocalTimes(hours=tuple(hours)), urgent=False, zone=zone)


def most_counted(rules: Sequence[PrivacyRule]) -> int:
    """How many of the last messages to a person the rules look at; 0 = nobody has to count."""
    return max((rule.at_most for rule in rules), default=0)


def _said(rule: PrivacyRule, facts: PrivacyFacts, functions: PrivacyFunctions) -> Verdict | None:
    if not _is_about(rule, facts):
        return None
    ends: list[int] = []
    if rule.when is not None:
        over = end_of(rule.when, rule.zone, facts.now_ms)
        if over is None:
            return None
        ends.append(over)
    if rule.at_most:
        if facts.recent is None:
            return Refuse("nobody counts the messages, but a rule limits them")
        over = _limit_end(rule, facts.recent(rule.at_most), facts.now_ms)
        if over is None:
            return None
        ends.append(over)
    return _decided(rule, facts, functions, ends)


def _decided(
    rule: PrivacyRule, facts: PrivacyFacts, functions: PrivacyFunctions, ends: Sequence[int]
) -> Verdict | None:
    """What a rule says whose conditions hold; the first of `ends` is when they do no more."""
    if rule.ask:
        return ask_function(rule, facts, functions)
    match rule.then:
        case "allow":
            return Allowed()
        case "refuse":
            return Refuse(_reason(rule))
    until = _hold_end(rule, facts, ends)
    return Hold(until, _reason(rule)) if until > facts.now_ms else None


def _is_about(rule: PrivacyRule, facts: PrivacyFacts) -> bool:
    return (
        (rule.urgent is None or rule.urgent == facts.urgent)
        and _fits(rule.types, facts.type)
        and _fits(rule.subtypes, facts.subtype)
        and _fits(rule.senders, str(facts.sender))
    )


def _fits(patterns: Sequence[str], text: str) -> bool:
    return not patterns or any(fits_pattern(pattern, text) for pattern in patterns)


def _limit_end(rule: PrivacyRule, times: Sequence[int], now_ms: int) -> int | None:
    """When fewer than the limit will lie within the span; None when they do already."""
    newest = sorted(times, reverse=True)[: rule.at_most]
    if len(newest) < rule.at_most:
        return None
    end = newest[-1] + rule.per_ms
    return end if end > now_ms else None


def _hold_end(rule: PrivacyRule, facts: PrivacyFacts, ends: Sequence[int]) -> int:
    """What the rule itself says about the end goes before the end of its conditions."""
    sent_ms = facts.sent_ms or facts.now_ms
    if rule.until is not None:
        return next_clock(rule.until, rule.zone, sent_ms)
    if rule.hold_ms:
        return sent_ms + rule.hold_ms
    return min(ends, default=0)


def _reason(rule: PrivacyRule) -> str:
    if rule.reason:
        return rule.reason
    if rule.at_most:
        return f"at most {rule.at_most} messages in {format_duration(rule.per_ms)}"
    return "quiet hours" if rule.when is not None else "the receiver does not want it"
