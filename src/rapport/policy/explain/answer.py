"""The answer to "why" and "why not": a tree of conditions, each true, false or unknown. [PO-11]

Data only: made by `why_not.py`, shown by the command line and the API.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rapport.core.detection import Detection
from rapport.core.event import Gap

Truth = Literal["true", "false", "unknown"]
CandidateOutcome = Literal[
    "detected", "pending", "undecided", "left out", "not run", "refuted", "incomplete"
]
"""`pending`: time has not come to where it is decided; `left out`: because of `at most once per`;
`not run`: everything held, but the policy was not there yet, paused, or ended before it was
certain; `incomplete`: some condition never came true.
"""


class ShownReading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reading that decided something."""

    id: str
    time: int
    stream: str
    key: str
    value: tuple[Any, ...]
    text: str
    """`position of p17 = 4, 29 m`."""
    source: str
    raw: str = ""
    """What was received, before it was given a meaning."""


class ConditionNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A condition, or a part of one, with what it rests on."""

    text: str
    truth: Truth
    because: str = ""
    readings: tuple[ShownReading, ...] = ()
    children: tuple[ConditionNode, ...] = ()


class ExternalFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that was asked for elsewhere, such as of a context broker: no reading says it."""

    text: str
    """`status of r3 = 'closed'`, or that nothing was known."""
    told: str
    """Who provided it, until when it is valid, and how far away it was found."""
    time: int
    """When it was told."""
    event: str = ""
    """The record of that."""
    is_known: bool = True


class Suppression(msgspec.Struct, frozen=True, kw_only=True):
    """Why what held was not told: `at most once per`."""

    detection: str
    """The id of the detection before it."""
    time: int
    until: int
    """From this time on the next one is told."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Certain identities around a certain time: how far the policy got with them."""

    bindings: dict[str, str]
    became: CandidateOutcome
    time: int
    """The moment to which times are told: the last thing that had to happen."""
    clauses: tuple[ConditionNode, ...]
    """One per line of the normal form, then what concerns all of them together."""
    detection: Detection | None = None
    """What it is, or would have been."""
    silent: tuple[str, ...] = ()
    """Sources that promised to be heard and were not."""
    suppressed_by: Suppression | None = None
    """Of what was left out: because of which detection, and until when."""
    known: tuple[ExternalFact, ...] = ()
    """What came from elsewhere about those it binds."""

    @property
    def holding(self) -> int:
        """How many of the conditions are true."""
        return sum(node.truth == "true" for node in self.clauses)

    @property
    def first_failed(self) -> ConditionNode | None:
        """The first condition that is not true; false ones before unknown ones."""
        failed = [node for node in self.clauses if node.truth == "false"]
        failed += [node for node in self.clauses if node.truth == "unknown"]
        return failed[0] if failed else None


class NearestMiss(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The smallest change of one value that would have made the policy fire; tried out."""

    reading: ShownReading
    text: str
    """`temperature of s1 more than 30 degC instead of 29.5 degC`."""
    relative: float
    """|needed - actual| / max(|actual|, scale); see docs/how-to/explain.md for the scales."""
    value: tuple[Any, ...] | None = None
    """The value it would have needed; None when the time is what changes."""
    time: int | None = None
    """The time it would have needed."""


class AnswerNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something around the policy that bears on the answer: late readings, held-back ones, silent
    sources, when the policy ran, tables that were loaded again, gaps of the log.
    """

    kind: Literal[
        "late", "quarantined", "silent", "policy", "told", "reach", "context", "tables", "gap"
    ]
    text: str
    time: int | None = None
    event: str = ""
    channel: str = ""
    """Of a gap: the channel whose events cannot be read."""
    gap: Gap | None = None


class WhyNotAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a policy did or did not fire for some identities around a time."""

    policy: str
    version: str
    at: int
    within_ms: int
    """Looked at is what happened from `at - within_ms` to `at + within_ms`."""
    given: dict[str, str]
    fired: tuple[Candidate, ...]
    candidates: tuple[Candidate, ...] = ()
    """When it did not fire: those for which most holds, best first."""
    nearest: NearestMiss | None = None
    """Of the first candidate."""
    window_ms: int = 0
    once_per_ms: int | None = None
    notes: tuple[AnswerNote, ...] = ()
    text: str = ""
    """The policy as it was then, where that is known."""

    @property
    def failed(self) -> int:
        """How many conditions of the best candidate are false."""
        best = self.candidates[0].clauses if self.candidates else ()
        return sum(node.truth == "false" for node in best)


class Explanation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A detection, or what was left open: the conditions behind it, and the policy's text."""

    policy: str
    version: str
    text: str = ""
    """Of the version that found it; empty when nothing is on record."""
    held: Candidate | None = None
    """None: the log or the tables no longer tell."""
    left_out: int = 0
    """How many like it came too soon after it, by `at most once per`."""
    once_per_ms: int | None = None
    gaps: tuple[AnswerNote, ...] = ()
    """Parts of the log around it that cannot be read: readings may be missing from `held`."""
