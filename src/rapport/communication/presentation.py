"""Messages as people read them: sender, kind, local time, and delivery reports. Pure; mail,
inbox and answer page show the same. [CO-10, CO-16]
"""

from __future__ import annotations

from rapport.communication.privacy import local_time
from rapport.core.message import AUTH, CONTROL, MESSAGEINFO

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_REPORTS = {
    "ACK": "Your message was delivered",
    "ERROR": "There is a problem with your message",
    "COMERROR": "Your message could not be delivered",
    "TIMEOUT": "Nobody answered your message in time",
}
_KINDS = {CONTROL: "Delivery report", AUTH: "Login", MESSAGEINFO: "About messages"}
_NOT_ANSWERED = (CONTROL, AUTH)


def shown_time(time_ms: int, zone: str = "UTC") -> str:
    """A moment in a time zone, with its name.

    >>> shown_time(1_763_445_840_000, "Europe/Vienna")
    '18 Nov 2025, 07:04 CET'
    """
    local = local_time(time_ms, zone)
    day = f"{local.day} {_MONTHS[local.month - 1]} {local.year}"
    return f"{day}, {local:%H:%M} {local.tzname()}"


def shown_sender(sender: str, policy: str = "") -> str:
    """The sender: a person or application by name, a policy as such.

    >>> shown_sender("peer:ana"), shown_sender("component:policy", "alone"), shown_sender("")
    ('ana', 'policy alone', '')
    """
    kind, _, name = sender.partition(":")
    if policy and kind != "peer":
        return f"policy {policy}"
    return name or kind


def shown_kind(type: str, subtype: str = "") -> str:
    """The kind of a message.

    >>> shown_kind("TASK", "REQUEST"), shown_kind("NOTIFICATION", "raise alarm")
    ('Task: request', 'Notification: raise alarm')
    """
    if type == CONTROL:
        return _KINDS[CONTROL]
    kind = _KINDS.get(type) or _words(type)
    detail = _words(subtype) if subtype.isupper() else subtype
    if not kind or not detail:
        return kind or detail
    return f"{kind}: {detail[:1].lower()}{detail[1:]}"


def shown_text(type: str, subtype: str, text: str) -> str:
    """The text of a message; a delivery report is a sentence, also where it has no text.

    >>> shown_text("CONTROL", "ACK", ""), shown_text("CONTROL", "COMERROR", "no address")
    ('Your message was delivered.', 'Your message could not be delivered: no address')
    """
    report = _REPORTS.get(subtype, "") if type == CONTROL else ""
    if not report:
        return text
    return f"{report}: {text}" if text else f"{report}."


def is_answerable(type: str) -> bool:
    """Whether a person may answer it: delivery reports and logins want no answer."""
    return type not in _NOT_ANSWERED


def _words(name: str) -> str:
    """The name of a type in words: `FIRE_DRILL` is `Fire drill`."""
    plain = name.replace("_", " ").replace("-", " ").strip()
    return f"{plain[:1].upper()}{plain[1:].lower()}" if plain.isupper() else plain
