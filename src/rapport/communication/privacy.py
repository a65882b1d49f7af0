"""Privacy rules of a person: hours, conditions, verdicts, and functions that decide.
[CO-9, UX-9]

Rules are data: they stand in the site file and in the directory, and go over the wire. The first
rule that applies decides. All but functions is pure, with the time as an argument, so that a
verdict is the same after a restart. Local clock time decides, so that a night is an hour shorter or
longer when the clock changes. Functions run in a worker process with a deadline; one that is
missing, raises, hangs or gives no valid answer refuses: privacy fails closed.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any, Literal, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from rapport.communication.texts import EPOCH, clean, local_time
from rapport.core.errors import InvalidInput
from rapport.core.message import Identifier
from rapport.core.times import format_duration
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger
from rapport.kernel.worker import WorkerReply
from rapport.kernel.worker_client import PAUSE_MS, CallFailed, WorkerFunctions

DAY_MINUTES = 1440
_MINUTE = timedelta(minutes=1)
_HOURS = re.compile(r"\s*(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})\s*\Z")
_CLOCK = re.compile(r"\s*(\d{1,2}):(\d{2})\s*\Z")

_MOST_SPANS = 1_000
"""Most adjacent spans that count as one; more is as good as never."""

RuleAction = Literal["allow", "hold", "refuse"]
RecentSends = Callable[[int], Sequence[int]]
"""A count to the times (ms UTC) of the last messages to the person, newest first."""
DEADLINE_MS = 500
"""Deadline of a function."""
_LONGEST_HOLD_MS = 366 * 86_400_000
_LONGEST_REASON = 200
_UNWANTED = "the receiver does not want it"
_log = get_logger(__name__)
PrivacyFunction = Callable[[dict[str, Any]], Any]
"""Facts about a message (`shown_facts`) to None: the next rule decides; True: it may go out; False
or a text: it may not, for that reason; a number: hold until then (ms UTC).
"""


class DaySpan(msgspec.Struct, frozen=True, array_like=True):
    """From `start` up to but not including `end`, minutes after local midnight; `start > end`
    reaches across midnight and belongs to the day it begins on."""

    start: int
    end: int

    def __str__(self) -> str:
        """As a site file writes it."""
        return "-".join(f"{end // 60:02}:{end % 60:02}" for end in (self.start, self.end))


class DateSpan(msgspec.Struct, frozen=True, array_like=True):
    """Both days included: `2026-08-01` to `2026-08-14`, or `12-24` to `01-06` in every year."""

    first: str
    last: str

    def has(self, day: date) -> bool:
        shown = day.isoformat()
        shown = shown[-len(self.first) :] if len(self.first) < len(shown) else shown
        if self.first <= self.last:
            return self.first <= shown <= self.last
        return shown >= self.first or shown <= self.last


class LocalTimes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Hours on `days` (0 = Monday) and `dates`; an empty condition always holds."""

    hours: tuple[DaySpan, ...] = ()
    days: tuple[int, ...] = ()
    dates: tuple[DateSpan, ...] = ()

    def has_day(self, day: date) -> bool:
        """Whether hours that begin on this day belong to it."""
        fits = not self.days or day.weekday() in self.days
        return fits and (not self.dates or any(span.has(day) for span in self.dates))

    def never_end(self) -> bool:
        """Whether every minute of every day is in it."""
        if (self.days and len(set(self.days)) < 7) or self.dates:
            return False
        covered = {minute for span in self.hours for minute in _minutes(span)}
        return not self.hours or len(covered) == DAY_MINUTES


_WHOLE_DAY = (DaySpan(0, DAY_MINUTES),)


def parse_hours(text: str) -> DaySpan:
    """A span of the day; raises InvalidInput.

    >>> parse_hours("22:00-07:00"), parse_hours("18:00-24:00")
    (DaySpan(start=1320, end=420), DaySpan(start=1080, end=1440))
    """
    found = _HOURS.match(text)
    numbers = [int(part) for part in found.groups()] if found else []
    start = numbers[0] * 60 + numbers[1] if numbers else 0
    end = numbers[2] * 60 + numbers[3] if numbers else 0
    wrong = not numbers or numbers[1] > 59 or numbers[3] > 59
    if wrong or start >= DAY_MINUTES or end > DAY_MINUTES:
        raise InvalidInput(
            f"{text[:40]!r} is not a span of the day",
            code="peer.bad_quiet",
            hint="write local times from 00:00 to 24:00, such as 22:00-07:00",
        )
    if start == end:
        raise InvalidInput(
            f"{text[:40]!r} begins when it ends, which may mean all day or never",
            code="peer.bad_quiet",
            hint="leave it out to be reachable always",
        )
    return DaySpan(start, end)


def parse_clock(text: str) -> int:
    """A time of the day in minutes after midnight; raises InvalidInput.

    >>> parse_clock("08:30")
    510
    """
    found = _CLOCK.match(text)
    hour, minute = (int(found[1]), int(found[2])) if found else (24, 0)
    if hour > 23 or minute > 59:
        raise InvalidInput(
            f"{text[:40]!r} is not a time of the day",
            code="privacy.bad_clock",
            hint="write a local time from 00:00 to 23:59, such as 08:00",
        )
    return hour * 60 + minute


def is_zone(name: str) -> bool:
    """Whether the name is a time zone.

    >>> is_zone("Europe/Vienna"), is_zone("Europe/Atlantis"), is_zone("../etc")
    (True, False, False)
    """
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def end_of(times: LocalTimes, zone: str, now_ms: int) -> int | None:
    """When the span that contains `now_ms` ends; None when there is none.

    An end that the clock skips comes at the change of the clock; one that occurs twice counts the
    first time. Adjacent spans count as one.
    """
    found, moment = None, now_ms
    for _ in range(_MOST_SPANS):
        end = _first_end(times, zone, moment)
        if end is None:
            break
        found = moment = end
    return found


def next_clock(minute: int, zone: str, after_ms: int) -> int:
    """The first moment after `after_ms` with this local minute of the day."""
    day = local_time(after_ms, zone).date()
    return _next_moment(day, minute, zone, after_ms)


def _first_end(times: LocalTimes, zone: str, moment_ms: int) -> int | None:
    local = local_time(moment_ms, zone)
    ends = []
    for span in times.hours or _WHOLE_DAY:
        last = _last_day(times, span, local)
        if last is not None:
            ends.append(_next_moment(last, span.end, zone, moment_ms))
    return max(ends, default=None)


def start_days(times: LocalTimes, local: datetime) -> list[date]:
    """The days on which the spans that contain this local time began."""
    found = []
    for span in times.hours or _WHOLE_DAY:
        last = _last_day(times, span, local)
        if last is not None:
            found.append(last if span.start < span.end else last - timedelta(days=1))
    return found


def _last_day(times: LocalTimes, span: DaySpan, local: datetime) -> date | None:
    """The day on which the span that contains `local` ends; None when `local` lies outside."""
    today, minute = local.date(), local.hour * 60 + local.minute
    if span.start < span.end:
        inside = span.start <= minute < span.end
        return today if inside and times.has_day(today) else None
    if minute >= span.start and times.has_day(today):
        return today + timedelta(days=1)
    if minute < span.end and times.has_day(today - timedelta(days=1)):
        return today
    return None


def _next_moment(day: date, minute: int, zone: str, after_ms: int) -> int:
    """The first moment after `after_ms` with this local minute, on `day` or later."""
    for days in range(3):
        for fold in (0, 1):
            moment = moment_of(day + timedelta(days=days), minute, zone, fold)
            if moment > after_ms:
                return moment
    raise AssertionError("a day has an end")  # pragma: no cover - both of tomorrow's are later


def moment_of(day: date, minute: int, zone: str, fold: int) -> int:
    """The minute of a day in ms UTC; the change of the clock where it is skipped."""
    info, days = ZoneInfo(zone), minute // DAY_MINUTES
    day, minute = day + timedelta(days=days), minute % DAY_MINUTES
    wall = datetime(day.year, day.month, day.day, minute // 60, minute % 60, tzinfo=info, fold=fold)
    moment = wall.astimezone(UTC)
    back = moment.astimezone(info)
    if back.replace(tzinfo=None) != wall.replace(tzinfo=None):
        # Skipped: the clock jumped over the end, which is then where the two offsets meet.
        before = wall.replace(fold=0).utcoffset() or timedelta()
        after = wall.replace(fold=1).utcoffset() or timedelta()
        width = abs(after - before)
        moment = clock_change(moment - width, moment + width, info) or moment
    return (moment - EPOCH) // timedelta(milliseconds=1)


def clock_change(low: datetime, high: datetime, zone: ZoneInfo) -> datetime | None:
    """The minute at which the clock changes between two moments; None when it does not."""
    before = low.astimezone(zone).utcoffset()
    minutes = range((high - low) // _MINUTE + 1)
    found = bisect_left(
        minutes, True, key=lambda at: (low + at * _MINUTE).astimezone(zone).utcoffset() != before
    )
    return low + found * _MINUTE if found < len(minutes) else None


def _minutes(span: DaySpan) -> set[int]:
    end = span.end if span.start < span.end else span.end + DAY_MINUTES
    return {minute % DAY_MINUTES for minute in range(span.start, end)}


class PrivacyRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Applies to a message for which all of its conditions hold; empty = any.

    Texts are patterns in which `*` stands for anything; one of several has to match.
    """

    then: RuleAction = "refuse"
    types: tuple[str, ...] = ()
    subtypes: tuple[str, ...] = ()
    senders: tuple[str, ...] = ()
    """Identifiers: `component:policy`, `peer:*`."""
    urgent: bool | None = None
    """True = only urgent messages, False = only others, None = both."""
    when: LocalTimes | None = None
    at_most: int = 0
    """Holds while so many messages went out within `per_ms`; 0 = no limit."""
    per_ms: int = 0
    until: int | None = None
    """A hold ends at this local minute of the day after the message was sent."""
    hold_ms: int = 0
    """A hold lasts so long after the message was sent."""
    zone: str = "UTC"
    """Time zone of `when` and `until`."""
    ask: str = ""
    """The function that decides instead of `then`: `module:function` or a plug-in's name."""
    reason: str = ""
    """Reason for the sender of a refused message; empty = derived from the rule."""


class PrivacyFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a verdict depends on besides the rules."""

    type: str
    subtype: str
    sender: Identifier | str
    urgent: bool
    now_ms: int
    peer: str = ""
    sent_ms: int = 0
    """When the sender sent it; 0 = now."""
    recent: RecentSends | None = None
    """None = not counted, and a rule that needs it refuses."""


class AllowedDelivery(msgspec.Struct, frozen=True, tag="allowed"):
    """Send it now."""


class Hold(msgspec.Struct, frozen=True, tag="hold"):
    """Hold it and check again at `until` (ms UTC)."""

    until: int
    reason: str = "quiet hours"


class Refuse(msgspec.Struct, frozen=True, tag="refuse"):
    """Do not send it; the sender is notified."""

    reason: str


Verdict = AllowedDelivery | Hold | Refuse


def fits_pattern(pattern: str, text: str) -> bool:
    """Whether the text matches the pattern, in which `*` stands for anything; in linear time.

    >>> fits_pattern("component:ads-*", "component:ads-7"), fits_pattern("TASK", "TASKS")
    (True, False)
    """
    first, *others = pattern.split("*")
    if not others:
        return pattern == text
    if not text.startswith(first):
        return False
    position = len(first)
    for part in others[:-1]:
        position = text.find(part, position)
        if position < 0:
            return False
        position += len(part)
    return len(text) - position >= len(others[-1]) and text.endswith(others[-1])


class PrivacyFunctions(Protocol):
    """Finds the function that a rule names; a dict will do."""

    def get(self, name: str, /) -> PrivacyFunction | None:
        """The function, or None."""


NO_FUNCTIONS: PrivacyFunctions = {}


def ask_function(
    rule: PrivacyRule, facts: PrivacyFacts, functions: PrivacyFunctions
) -> Verdict | None:
    """The verdict of the function that the rule names, or None; never raises."""
    function = functions.get(rule.ask)
    if function is None:
        return _failed(rule, facts, "it is not there")
    try:
        answer = function(shown_facts(rule, facts))
    except Exception as error:
        return _failed(rule, facts, repr(error))
    match answer:
        case None:
            return None
        case True:
            return AllowedDelivery()
        case False:
            return Refuse(rule.reason or _UNWANTED)
        case str():
            return Refuse(clean(answer).strip()[:_LONGEST_REASON] or rule.reason or _UNWANTED)
        case int() if facts.now_ms < answer <= facts.now_ms + _LONGEST_HOLD_MS:
            return Hold(answer, rule.reason or "until it suits the receiver")
        case int():
            return _failed(rule, facts, f"{answer} is no moment within the next year, in ms UTC")
        case _:
            return _failed(rule, facts, f"it gave a {type(answer).__name__}")


def shown_facts(rule: PrivacyRule, facts: PrivacyFacts) -> dict[str, Any]:
    """The facts for a function; without the content of the message."""
    local = local_time(facts.now_ms, rule.zone)
    return {
        "peer": facts.peer,
        "type": facts.type,
        "subtype": facts.subtype,
        "sender": str(facts.sender),
        "urgent": facts.urgent,
        "now_ms": facts.now_ms,
        "sent_ms": facts.sent_ms or facts.now_ms,
        "zone": rule.zone,
        "local": local.isoformat(timespec="minutes"),
        "weekday": local.weekday(),
    }


class WorkerPrivacyFunctions:
    """Functions by name, in one worker process that is started at the first call.

    Names are `module:function`, found in `import_paths` first, or those of plug-ins. For worker
    threads: a call blocks up to the deadline, the first one also while Python starts. A function
    that hung or died is not called again for 30 s.
    """

    def __init__(
        self, clock: Clock, import_paths: tuple[str, ...] = (), *, deadline_ms: int = DEADLINE_MS
    ) -> None:
        self._clock, self._deadline_ms = clock, deadline_ms
        self._worker = WorkerFunctions(
            clock,
            import_paths,
            group="privacy",
            what="privacy function",
            codes="privacy",
            failure=CallFailed,
        )
        self._paused: dict[str, int] = {}

    def get(self, name: str, /) -> PrivacyFunction | None:
        """A function that calls the worker; a missing one raises when it is called."""
        return partial(self._call, name)

    def fault_of(self, name: str) -> str:
        """Why the function cannot be loaded; empty = it can. Takes up to 20 s."""
        return self._worker.fault_of(name)

    def close(self) -> None:
        """Ends the worker; later calls fail, so that verdicts that need them refuse."""
        self._worker.close()

    def _call(self, name: str, facts: dict[str, Any]) -> Any:
        now_ms = self._clock.steady_ns() // 1_000_000
        if self._paused.get(name, now_ms) > now_ms:
            raise CallFailed("privacy.paused", "it failed a moment ago and is not asked for 30 s")
        packed = self._worker.packed([facts], name)
        (outcome,) = self._worker.call_many(name, [packed], self._deadline_ms)
        if isinstance(outcome, WorkerReply):
            return outcome.results[0]
        if outcome.code in ("privacy.timeout", "privacy.died"):
            self._paused[name] = now_ms + PAUSE_MS
        raise outcome


def _failed(rule: PrivacyRule, facts: PrivacyFacts, why: str) -> Refuse:
    _log.warning("privacy function failed", function=rule.ask, peer=facts.peer, why=why)
    # The sender learns that it failed; the details are for the site alone.
    return Refuse(f"the privacy function {rule.ask!r} failed")


def verdict(
    rules: Sequence[PrivacyRule],
    facts: PrivacyFacts,
    functions: PrivacyFunctions = NO_FUNCTIONS,
) -> Verdict:
    """Whether the message may go out now; it may where no rule applies.

    Fails closed: a missing or failing function, or a missing count, refuses. Never raises. Costs
    some microseconds a rule, more for a function.
    """
    for rule in rules:
        found = _apply_rule(rule, facts, functions)
        if found is not None:
            return found
    return AllowedDelivery()


def quiet_rule(
    hours: Sequence[DaySpan], zone: str = "UTC", then: RuleAction = "hold"
) -> PrivacyRule:
    """The rule of quiet hours, in which only urgent messages go out."""
    return PrivacyRule(then=then, when=LocalTimes(hours=tuple(hours)), urgent=False, zone=zone)


def quiet_hours(rules: Sequence[PrivacyRule]) -> list[str]:
    """The hours of the rule of quiet hours, which is the last one, as a site file writes them."""
    rule = rules[-1] if rules else None
    if rule is None or rule.when is None:
        return []
    hours = rule.when.hours
    if rule != quiet_rule(hours, rule.zone, rule.then):
        return []
    return list(map(str, hours))


def most_counted(rules: Sequence[PrivacyRule]) -> int:
    """How many of the last messages to a person the rules look at; 0 = no counting."""
    return max((rule.at_most for rule in rules), default=0)


def _apply_rule(
    rule: PrivacyRule, facts: PrivacyFacts, functions: PrivacyFunctions
) -> Verdict | None:
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
            return Refuse("messages are not counted, but a rule limits them")
        over = _limit_end(rule, facts.recent(rule.at_most), facts.now_ms)
        if over is None:
            return None
        ends.append(over)
    return _decided(rule, facts, functions, ends)


def _decided(
    rule: PrivacyRule, facts: PrivacyFacts, functions: PrivacyFunctions, ends: Sequence[int]
) -> Verdict | None:
    """The verdict of a rule whose conditions hold until the first of `ends`."""
    if rule.ask:
        return ask_function(rule, facts, functions)
    match rule.then:
        case "allow":
            return AllowedDelivery()
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
    """When the count falls below the limit; None when it is below."""
    newest = sorted(times, reverse=True)[: rule.at_most]
    if len(newest) < rule.at_most:
        return None
    end = newest[-1] + rule.per_ms
    return end if end > now_ms else None


def _hold_end(rule: PrivacyRule, facts: PrivacyFacts, ends: Sequence[int]) -> int:
    """The end of a hold: as the rule sets it, else the end of its conditions."""
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
