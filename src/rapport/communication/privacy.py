"""When a person may be reached: quiet hours in their own zone; urgent breaks through. [CO-9]

Pure: the time is an argument. `delivery.py` asks before every first sending and again when a hold
ends.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from rapport.core.errors import InvalidInput

OnQuiet = Literal["hold", "refuse"]

_QUIET = re.compile(r"\s*(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})\s*\Z")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class PrivacyPolicy(msgspec.Struct, frozen=True):
    """Quiet from `start` up to but not including `end`, minutes after local midnight in `zone`.

    `start > end` reaches across midnight. `on_quiet` says what happens to a message in that time.
    """

    start: int
    end: int
    zone: str = "UTC"
    on_quiet: OnQuiet = "hold"


class Allowed(msgspec.Struct, frozen=True, tag="allowed"):
    """Send it now."""


class Hold(msgspec.Struct, frozen=True, tag="hold"):
    """Keep it, and ask again at `until` (ms UTC)."""

    until: int


class Refuse(msgspec.Struct, frozen=True, tag="refuse"):
    """Do not send it; the sender is told."""

    reason: str


Verdict = Allowed | Hold | Refuse


def parse_quiet(text: str) -> tuple[int, int]:
    """Start and end of quiet hours in minutes after midnight; raises InvalidInput.

    >>> parse_quiet("22:00-07:00")
    (1320, 420)
    """
    found = _QUIET.match(text)
    numbers = [int(part) for part in found.groups()] if found else []
    if not numbers or numbers[0] > 23 or numbers[2] > 23 or numbers[1] > 59 or numbers[3] > 59:
        raise InvalidInput(
            f"{text!r} is not a span of the day",
            code="peer.bad_quiet",
            hint="write local times from 00:00 to 23:59, such as 22:00-07:00",
        )
    start, end = numbers[0] * 60 + numbers[1], numbers[2] * 60 + numbers[3]
    if start == end:
        raise InvalidInput(
            f"{text!r} begins when it ends, so nobody knows whether it is all day or never",
            code="peer.bad_quiet",
            hint="leave quiet out to be reachable always",
        )
    return start, end


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


def may_receive(policy: PrivacyPolicy | None, *, urgent: bool, now_ms: int) -> Verdict:
    """Whether a message may go out now; no policy and urgent messages are always allowed."""
    until = None if policy is None or urgent else quiet_until(policy, now_ms)
    if policy is None or until is None:
        return Allowed()
    if policy.on_quiet == "refuse":
        return Refuse("quiet hours")
    return Hold(until)


def quiet_until(policy: PrivacyPolicy, now_ms: int) -> int | None:
    """When the quiet hours that `now_ms` lies in end; None when it lies in none.

    Local clock time decides, so a night is an hour shorter or longer when the clock changes. An
    end that the clock skips comes at the moment of the change; one that comes twice counts the
    first time.
    """
    local = (_EPOCH + timedelta(milliseconds=now_ms)).astimezone(ZoneInfo(policy.zone))
    if not _is_quiet(policy, local.hour * 60 + local.minute):
        return None
    for days in (0, 1):
        day = local.date() + timedelta(days=days)
        for fold in (0, 1):
            end = _moment(day.year, day.month, day.day, policy, fold)
            if end > now_ms:
                return end
    raise AssertionError("a day has an end")  # pragma: no cover - both of tomorrow's are later


def _is_quiet(policy: PrivacyPolicy, minute: int) -> bool:
    if policy.start < policy.end:
        return policy.start <= minute < policy.end
    return minute >= policy.start or minute < policy.end


def _moment(year: int, month: int, day: int, policy: PrivacyPolicy, fold: int) -> int:
    """The end of quiet on that day, in ms UTC; the change of the clock when it skips the end."""
    zone = ZoneInfo(policy.zone)
    wall = datetime(year, month, day, policy.end // 60, policy.end % 60, tzinfo=zone, fold=fold)
    moment = wall.astimezone(UTC)
    back = moment.astimezone(zone)
    if back.replace(tzinfo=None) != wall.replace(tzinfo=None):
        # Skipped: both readings of the wall time miss it. The clock jumped over the end, so it is
        # quiet no more from the jump on, which is where the two offsets meet.
        before = wall.replace(fold=0).utcoffset() or timedelta()
        after = wall.replace(fold=1).utcoffset() or timedelta()
        moment = _first_after_gap(moment, zone, abs(after - before))
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _first_after_gap(moment: datetime, zone: ZoneInfo, width: timedelta) -> datetime:
    """The change of the clock near `moment`: offsets change on whole minutes nowadays."""
    at = moment.replace(second=0, microsecond=0) - width
    offset = at.astimezone(zone).utcoffset()
    while at.astimezone(zone).utcoffset() == offset:
        at += timedelta(minutes=1)
    return at
