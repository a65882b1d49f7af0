"""What a check found: which rule was broken, by which events, and why. [EN-3]"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rapport.ensemble.trace import TraceEvent

MOST_SHOWN = 20


class Breach(msgspec.Struct, frozen=True):
    """One place where a trace breaks a rule."""

    rule: int
    why: str
    events: tuple[TraceEvent, ...]
    """What happened; at most a few, in order of time."""

    def as_text(self) -> str:
        """One line for the reason and one for each event."""
        lines = [f"rule {self.rule}: {self.why}"]
        return "\n".join(lines + [f"    {event_text(event)}" for event in self.events])


def event_text(event: TraceEvent) -> str:
    """An event in one line, empty fields left out."""
    words = [f"{event.time_ms:.0f} ms", event.node, event.kind.value]
    if event.component:
        words.append(f"{event.component} v{event.version}")
    words += [
        f"{name}={value}"
        for name, value in (
            ("other", event.other),
            ("medium", event.medium),
            ("detail", event.detail),
            ("value", event.value),
            ("entries", ", ".join(f"{name} {number}" for name, number in event.entries[:8])),
        )
        if value
    ]
    return " ".join(words)


def report(breaches: Iterable[Breach]) -> str:
    """For people: how often each rule was broken, then the first breaches in full."""
    found = list(breaches)
    if not found:
        return "no rule was broken"
    counts: dict[int, int] = {}
    for breach in found:
        counts[breach.rule] = counts.get(breach.rule, 0) + 1
    lines = [f"rule {rule}: {counts[rule]} times" for rule in sorted(counts)]
    lines += ["", *(breach.as_text() for breach in found[:MOST_SHOWN])]
    if len(found) > MOST_SHOWN:
        lines.append(f"... and {len(found) - MOST_SHOWN} more")
    return "\n".join(lines)
