"""Detections, undecided results and skipped actions of policies, and their fixed output form.
[PO-7, PO-8]
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from rapport.core.errors import InvalidInput
from rapport.core.event import CAUSE, Event, cause_text, content_id, make_event
from rapport.core.times import format_duration, parse_duration

DETECTED = "rapport.policy.detected"
ENDED = "rapport.policy.ended"
"""A situation that began has ended."""
ACKNOWLEDGED = "rapport.policy.acknowledged"
"""Somebody looks after an open situation."""
UNDECIDED = "rapport.policy.undecided"
SKIPPED = "rapport.policy.skipped"
STILL_LASTS = "rapport.policy.still_lasts"
"""A state whose detection was too old for actions is still true."""
ACT_WITHIN_MS = 600_000
"""`[site] act_within`: actions of detections older than this are recorded, not carried out."""

_WINDOW = re.compile(r"(.+ in the last )(.+?)( \(at least \d+ readings?\))?")

Cause = tuple[int, str]
"""Event time and id of a causing event; ordered by time, then id by code points."""


class NamedValue(msgspec.Struct, frozen=True, omit_defaults=True):
    """A value as a text shows it; None = unknown."""

    value: float | str | bool | None = None
    unit: str = ""


def phrase_key(phrase: str) -> str:
    """The phrase of a named value as it is compared: blanks and the form of a window do not matter.

    >>> phrase_key("mean of pm10  of S in the last 24 h (at least 18 readings)")
    'mean of pm10 of S in the last 1d (at least 18 readings)'
    """
    text = " ".join(phrase.split())
    found = _WINDOW.fullmatch(text)
    if found is None:
        return text
    try:
        window = format_duration(parse_duration(found[2]))
    except InvalidInput:
        return text
    return f"{found[1]}{window}{found[3] or ''}"


class Detection(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A policy's conditions held for `bindings` at `time`, or its situation began or ended then;
    `causes` are sorted (time, id) of its events.
    """

    policy: str
    time: int
    bindings: dict[str, str]
    causes: tuple[Cause, ...]
    version: str = ""
    began: int | None = None
    """Of the end of a situation: the time of its beginning. None for everything else."""
    reason: str = ""
    """Why a situation ended where no reading ended it, such as that its policy was deleted."""
    values: dict[str, NamedValue] | None = None
    """The values that texts name, by the phrase in braces, as of `time`. None for most detections:
    a dictionary each costs a third of the time that many detections take."""
    holds: str = ""
    """One line about what holds, for `{why}`; only where a text names it."""

    def id(self) -> str:
        """Depends on the detection only, so detecting it again after a crash changes nothing."""
        flat = [part for pair in sorted(self.bindings.items()) for part in pair]
        began = () if self.began is None else ("began", str(self.began))
        return content_id(
            self.policy,
            self.version,
            str(self.time),
            *flat,
            "",
            *(id for _, id in self.causes),
            *began,
        )

    def to_event(self, *, source: str) -> Event:
        """The detection as an event, with its causes in the data and in the `cause` header."""
        more: dict[str, object] = {"values": self.values} if self.values else {}
        if self.holds:
            more["holds"] = self.holds
        if self.began is None:
            return _result_event(self, DETECTED, source, **more)
        if self.reason:
            more["reason"] = self.reason
        return _result_event(self, ENDED, source, began=self.began, **more)

    @staticmethod
    def from_event(event: Event) -> Detection:
        detection: Detection = event.payload_as(Detection)
        return detection


class Undecided(msgspec.Struct, frozen=True, kw_only=True):
    """A result that depends on the absence of events from the sources in `silent` (sorted), which
    promised events and sent none: it would be a detection if the absence were certain.
    """

    policy: str
    time: int
    bindings: dict[str, str]
    causes: tuple[Cause, ...]
    silent: tuple[str, ...]
    version: str = ""

    def id(self) -> str:
        """Depends on the result only, and differs from all ids of detections."""
        would_be = Detection(
            policy=self.policy,
            version=self.version,
            time=self.time,
            bindings=self.bindings,
            causes=self.causes,
        )
        return content_id("undecided", would_be.id(), *self.silent)

    def to_event(self, *, source: str) -> Event:
        """An event of the channel `detections`."""
        return _result_event(self, UNDECIDED, source, silent=self.silent)

    @staticmethod
    def of(detection: Detection, silent: tuple[str, ...]) -> Undecided:
        """The undecided result that a detection becomes if these sources were silent."""
        return Undecided(
            policy=detection.policy,
            version=detection.version,
            time=detection.time,
            bindings=detection.bindings,
            causes=detection.causes,
            silent=silent,
        )

    @staticmethod
    def from_event(event: Event) -> Undecided:
        undecided: Undecided = event.payload_as(Undecided)
        return undecided


class SkippedAction(msgspec.Struct, frozen=True, kw_only=True):
    """An action on policies that was not carried out because its detection was too old at the time
    of evaluation, `found_ms`.
    """

    detection: Detection
    phrase: str
    found_ms: int
    limit_ms: int

    def to_event(self, *, source: str) -> Event:
        """An event of the channel `detections`; the same action has the same id."""
        detection = self.detection.id()
        return make_event(
            source=source,
            id=content_id("skipped", detection, self.phrase),
            type=SKIPPED,
            subject=f"policy/{self.detection.policy}",
            time=self.detection.time,
            data=self,
            headers={CAUSE: cause_text(detection)},
        )

    @staticmethod
    def from_event(event: Event) -> SkippedAction:
        skipped: SkippedAction = event.payload_as(SkippedAction)
        return skipped


def still_lasts_event(detection: Detection, *, source: str) -> Event:
    """The event that a detected state is still true, with the detection as its data."""
    id = detection.id()
    return make_event(
        source=source,
        id=content_id("still lasts", id),
        type=STILL_LASTS,
        subject=f"policy/{detection.policy}",
        time=detection.time,
        data=detection,
        headers={CAUSE: cause_text(id)},
    )


def _result_event(found: Detection | Undecided, kind: str, source: str, **more: object) -> Event:
    return make_event(
        source=source,
        id=found.id(),
        type=kind,
        subject=f"policy/{found.policy}",
        time=found.time,
        data={
            "policy": found.policy,
            "version": found.version,
            "time": found.time,
            "bindings": dict(sorted(found.bindings.items())),
            "causes": found.causes,
            **more,
        },
        headers={CAUSE: cause_text(*(id for _, id in found.causes))},
    )


def situation_key(policy: str, bindings: Mapping[str, str], began: int) -> str:
    """The key of a situation: a policy, whatever its version, begins it at most once then."""
    flat = [part for pair in sorted(bindings.items()) for part in pair]
    return content_id("situation", policy, str(began), *flat)


class Acknowledgement(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody looks after an open situation."""

    policy: str
    bindings: dict[str, str]
    began: int
    by: str
    time: int

    def to_event(self, *, source: str) -> Event:
        """An event of the channel `detections`."""
        key = situation_key(self.policy, self.bindings, self.began)
        return make_event(
            source=source,
            id=content_id("acknowledged", key, self.by, str(self.time)),
            type=ACKNOWLEDGED,
            subject=f"policy/{self.policy}",
            time=self.time,
            data=self,
        )

    @staticmethod
    def from_event(event: Event) -> Acknowledgement:
        found: Acknowledgement = event.payload_as(Acknowledgement)
        return found


class _Line(msgspec.Struct, omit_defaults=True):
    """Field order is the key order of the fixed output format."""

    policy: str
    time: int
    bindings: Mapping[str, str]
    causes: list[str]
    began: int | None = None


def identity_order(identity: str) -> tuple[int, int, str]:
    """Ids of digits come first, by number; all others by code points.

    >>> sorted(["r1", "10", "9"], key=identity_order)
    ['9', '10', 'r1']
    """
    if identity.isascii() and identity.isdigit():
        return (0, int(identity), identity)
    return (1, 0, identity)


def detection_order(detection: Detection | Undecided) -> tuple[object, ...]:
    """Sort key of the fixed output: time, ends before beginnings, policy, (alias, id) pairs, causes
    as (time, id).
    """
    pairs = tuple(
        (alias, identity_order(identity)) for alias, identity in sorted(detection.bindings.items())
    )
    is_end = isinstance(detection, Detection) and detection.began is not None
    return (detection.time, not is_end, detection.policy, pairs, detection.causes)


def unique_undecided(undecided: Iterable[Undecided]) -> list[Undecided]:
    """The undecided results without duplicates, in output order."""
    unique = {item.id(): item for item in undecided}
    return sorted(unique.values(), key=lambda item: (*detection_order(item), item.silent))


def detection_line(detection: Detection) -> bytes:
    """One line of `rapport replay`, without the newline."""
    return msgspec.json.encode(
        _Line(
            detection.policy,
            detection.time,
            dict(sorted(detection.bindings.items())),
            [id for _, id in detection.causes],
            detection.began,
        )
    )


def detection_lines(detections: Iterable[Detection]) -> bytes:
    """The whole fixed output: sorted, each detection once, final newline."""
    lines: list[bytes] = []
    for detection in sorted(detections, key=detection_order):
        line = detection_line(detection)
        if not lines or lines[-1] != line:
            lines.append(line)
    return b"".join(line + b"\n" for line in lines)
