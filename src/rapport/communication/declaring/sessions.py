"""What the site says about logins and about what arrives: `[sessions]` and `[arriving]`. [CO-11,
UX-2]

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
answer_links = "30 days"    # links to answer are good so long after their message was closed
declines = ["no", "cannot"] # an answer that says this, and nothing else in its first line, is a no
```
"""

from __future__ import annotations

from typing import cast

import msgspec

from rapport.communication.arriving.limits import ArrivalSettings, OnExpired, Unproven
from rapport.communication.sessions.passwords import PasswordSettings
from rapport.communication.sessions.sessions import SessionSettings
from rapport.core.errors import Problem
from rapport.kernel.config_fields import Fields
from rapport.kernel.toml import TomlFile

_SESSION_KEYS = ("lifetime", "longest", "rotate", "memory_kib", "passes", "lanes")
_ARRIVING_KEYS = (
    *("most_bytes", "rate", "burst", "unproven", "on_expired"),
    *("hold", "most_held", "most_held_bytes", "answer_links", "declines"),
)
_MINUTE_MS = 60_000
_MOST_CONTENT = 1_000_000


class Entrance(msgspec.Struct, frozen=True, kw_only=True):
    """How peers come in, and what may."""

    sessions: SessionSettings = SessionSettings()
    passwords: PasswordSettings = PasswordSettings()
    arriving: ArrivalSettings = ArrivalSettings()


def entrance_from_site(file: TomlFile) -> tuple[Entrance, list[Problem]]:
    """What the two tables say, and all their problems; never raises for a wrong site."""
    problems: list[Problem] = []
    about = Fields(file.section("sessions"), problems, known=_SESSION_KEYS, strict=True)
    arriving = Fields(file.section("arriving"), problems, known=_ARRIVING_KEYS, strict=True)
    entrance = Entrance(
        sessions=_sessions(about), passwords=_passwords(about), arriving=_arriving(arriving)
    )
    return entrance, problems


def _sessions(table: Fields) -> SessionSettings:
    usual = SessionSettings()
    lifetime_ms = table.duration_ms("lifetime", usual.lifetime_ms, least=_MINUTE_MS)
    longest_ms = table.duration_ms("longest", max(usual.longest_ms, lifetime_ms), least=1)
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
        rotate_ms=table.duration_ms("rotate", usual.rotate_ms, least=_MINUTE_MS),
    )


def _passwords(table: Fields) -> PasswordSettings:
    usual = PasswordSettings()
    # The lower bounds are those below which a stolen hash is guessed too fast (OWASP).
    return PasswordSettings(
        memory_kib=table.number("memory_kib", usual.memory_kib, low=19_456, high=4_194_304),
        passes=table.number("passes", usual.passes, low=2, high=100),
        lanes=table.number("lanes", usual.lanes, low=1, high=64),
    )


def _arriving(table: Fields) -> ArrivalSettings:
    usual = ArrivalSettings()
    return ArrivalSettings(
        most_bytes=table.number("most_bytes", usual.most_bytes, low=1, high=_MOST_CONTENT),
        rate=table.number("rate", usual.rate, low=0, high=10_000_000),
        burst=table.number("burst", usual.burst, low=1, high=100_000_000),
        unproven=cast(
            Unproven, table.choice("unproven", ("inward", "accept", "refuse"), usual.unproven)
        ),
        on_expired=cast(OnExpired, table.choice("on_expired", ("refuse", "hold"), "refuse")),
        hold_ms=table.duration_ms("hold", usual.hold_ms, least=1),
        most_held=table.number("most_held", usual.most_held, low=1, high=100_000),
        most_held_bytes=table.number(
            "most_held_bytes", usual.most_held_bytes, low=1, high=1_000_000_000
        ),
        answer_links_ms=table.duration_ms("answer_links", usual.answer_links_ms, least=_MINUTE_MS),
        declines=table.texts("declines", usual.declines, example='["no", "nein"]'),
    )
