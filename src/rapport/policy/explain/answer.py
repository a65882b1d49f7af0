"""The answers to "why" and "why not": a tree of conditions, each true, false or unknown. Data only.
[PO-11]
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rapport.core.detection import Detection
from rapport.core.event import Gap
from rapport.policy.explain.situation_evidence import SituationEvidence

Truth = Literal["true", "false", "unknown"]
CandidateOutcome = Literal[
    "detected",
    "pending",
    "undecided",
    "left out",
    "not while",
    "not run",
    "refuted",
    "incomplete",
]
"""`pending`: stream time has not reached the decision; `left out`: suppressed by `at most once
per`; `not while`: all conditions held, but the guard was false or unknown then; `not run`: all
conditions held, but the policy was not deployed yet, paused, or ended before the match was
certain; `incomplete`: some condition never became true.
"""


class ShownReading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reading that decided a condition."""

    id: str
    time: int
    stream: str
    key: str
    value: tuple[Any, ...]
    text: str
    """`position of p17 = 4, 29 m`."""
    source: str
    raw: str = ""
    """The received data before mediation."""


class ConditionNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A condition, or a part of one, with the readings it rests on."""

    text: str
    truth: Truth
    because: str = ""
    readings: tuple[ShownReading, ...] = ()
    children: tuple[ConditionNode, ...] = ()


class ExternalFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A fact queried from outside, such as a context broker; no reading gives it."""

    text: str
    """`status of r3 = 'closed'`, or that nothing was known."""
    told: str
    """The provider, the end of validity, and the distance at which it was found."""
    time: int
    """When it was received."""
    event: str = ""
    """The id of its record."""
    is_known: bool = True


class Suppression(msgspec.Struct, frozen=True, kw_only=True):
    """Why a match was not emitted: `at most once per`."""

    detection: str
    """The id of the preceding detection."""
    time: int
    until: int
    """The next one is emitted from this time on."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Identities around a time, and how far the policy got with them."""

    bindings: dict[str, str]
    became: CandidateOutcome
    time: int
    """The reference of all times shown: the end of the last condition."""
    clauses: tuple[ConditionNode, ...]
    """One node per clause of the normal form, then those that concern all of them."""
    detection: Detection | None = None
    """The detection that it is, or would have been."""
    silent: tuple[str, ...] = ()
    """Sources with a declared period that sent nothing."""
    suppressed_by: Suppression | None = None
    """For a suppressed candidate: the detection that suppresses it."""
    known: tuple[ExternalFact, ...] = ()
    """External facts about the bound identities."""

    @property
    def holding(self) -> int:
        """Number of true conditions."""
        return sum(node.truth == "true" for node in self.clauses)

    @property
    def first_failed(self) -> ConditionNode | None:
        """The first condition that is not true; false ones before unknown ones."""
        failed = [node for node in self.clauses if node.truth == "false"]
        failed += [node for node in self.clauses if node.truth == "unknown"]
        return failed[0] if failed else None


class NearestMiss(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The smallest change of one value that would have made the policy fire, verified by
    evaluation.
    """

    reading: ShownReading
    text: str
    """`temperature of s1 more than 30 degC instead of 29.5 degC`."""
    relative: float
    """|needed - actual| / max(|actual|, scale); see docs/how-to/explain.md for the scales."""
    value: tuple[Any, ...] | None = None
    """The value it would have needed; None when the time changes."""
    time: int | None = None
    """The time it would have needed."""


class AnswerNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A circumstance of the answer: late or quarantined readings, silent sources, when the policy
    ran, reloaded tables, gaps of the log.
    """

    kind: Literal[
        "late", "quarantined", "silent", "policy", "told", "reach", "context", "tables", "gap"
    ]
    text: str
    time: int | None = None
    event: str = ""
    channel: str = ""
    """The channel of a gap."""
    gap: Gap | None = None


class WhyNotAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a policy did or did not fire for some identities around a time."""

    policy: str
    version: str
    at: int
    within_ms: int
    """The answer covers `at - within_ms` to `at + within_ms`."""
    given: dict[str, str]
    fired: tuple[Candidate, ...]
    situation: SituationEvidence | None = None
    """Of a policy with a situation, in place of all candidates."""
    candidates: tuple[Candidate, ...] = ()
    """If it did not fire: the candidates with the most true conditions, best first."""
    nearest: NearestMiss | None = None
    """The nearest miss of the first candidate."""
    window_ms: int = 0
    once_per_ms: int | None = None
    notes: tuple[AnswerNote, ...] = ()
    text: str = ""
    """The policy's text at that time, if known."""

    @property
    def failed(self) -> int:
        """Number of false conditions of the best candidate."""
        best = self.candidates[0].clauses if self.candidates else ()
        return sum(node.truth == "false" for node in best)


class Explanation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The conditions behind a detection or an undecided match, and the policy's text."""

    policy: str
    version: str
    text: str = ""
    """The text of the version that found it; empty when it is not recorded."""
    situation: SituationEvidence | None = None
    """Of a policy with a situation, in place of `held`."""
    held: Candidate | None = None
    """None: log or tables no longer hold what the detection rests on."""
    left_out: int = 0
    """Number of equal detections suppressed after it by `at most once per`."""
    once_per_ms: int | None = None
    gaps: tuple[AnswerNote, ...] = ()
    """Parts of the log around it that cannot be read: readings may be missing from `held`."""
