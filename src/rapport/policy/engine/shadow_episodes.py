"""Compares the situations of a version in the shadow with those of the version in force: by
episodes that overlap, so that another limit is no other situation. Pure. [PO-9, SI-14]

An episode is a situation from its beginning to its end. A detection of `conditions` counts as an
episode of one millisecond, so that versions of both kinds can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from rapport.core.detection import Cause, Detection
from rapport.core.event import CAUSE, Event, cause_text, content_id, make_event
from rapport.policy.engine.open_situations import BindingsKey, OpenSituation, bindings_key

SHADOW_TYPE = "rapport.policy.shadow"
SHADOW_DETECTED = "rapport.policy.shadow.detected"
SHADOW_ENDED = "rapport.policy.shadow.ended"

FoundBy = Literal["running", "shadow"]


class ComparedVersions(msgspec.Struct, frozen=True):
    policy: str
    running: str
    shadow: str


class ShadowDifference(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A situation that only one version detected."""

    policy: str
    found_by: FoundBy
    time: int
    bindings: dict[str, str]
    causes: tuple[Cause, ...]
    running: str
    shadow: str
    ended: int | None = None
    """Of a situation its end; None for one that has none yet, and for `conditions`."""


class ShadowTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A beginning or an end that the version in the shadow would have told."""

    found: Detection


ShadowResult = ShadowDifference | ShadowTurn


class ShadowTally(msgspec.Struct, frozen=True):
    """Situations that both, or only one, have detected so far. Of episodes, those of the running
    version that overlap one of the shadow count as found by both.
    """

    both: int = 0
    only_running: int = 0
    only_shadow: int = 0

    def with_one(self, by: FoundBy | None) -> ShadowTally:
        """`by`: the only version that detected it; None: both did."""
        return ShadowTally(
            self.both + (by is None),
            self.only_running + (by == "running"),
            self.only_shadow + (by == "shadow"),
        )


class ShadowEpisode(msgspec.Struct):
    """A situation of one version that may still meet one of the other."""

    by: FoundBy
    bindings: dict[str, str]
    began: int
    ended: int | None
    is_met: bool
    """It overlaps one of the other version."""
    counts: bool
    """It does not rest on what the shadow could not see."""
    causes: tuple[Cause, ...] = ()


class EpisodeState(msgspec.Struct):
    """The saved state of a comparison."""

    began: int
    judged_from: int
    episodes: list[ShadowEpisode]


class EpisodeComparison:
    """Matches the episodes of two versions; keeps those that may still meet one of the other."""

    def __init__(
        self,
        versions: ComparedVersions,
        began: int,
        *,
        memory_ms: int,
        grace_ms: int,
        lasting: Iterable[FoundBy],
        carried: Iterable[OpenSituation] = (),
        is_continued: bool,
    ) -> None:
        """Args:
        began: the watermark at which the shadow started; it saw no reading before.
        memory_ms: how long a reading may matter to either.
        grace_ms: how long after its time a detection may be found.
        lasting: the versions with a situation; detections of the other are instants.
        carried: what was open then.
        is_continued: whether the shadow goes on with it.
        """
        self.versions, self._grace = versions, grace_ms
        self._began, self._judged_from = began, began + memory_ms
        self._lasting = frozenset(lasting)
        self._episodes: dict[BindingsKey, list[ShadowEpisode]] = {}
        self.tally = ShadowTally()
        for one in carried:
            sides: tuple[FoundBy, ...] = ("running", "shadow") if is_continued else ("running",)
            for by in sides:
                self._add(
                    ShadowEpisode(by, one.bindings, one.began, None, is_continued, is_continued)
                )

    def take(
        self, running: Iterable[Detection], shadow: Iterable[Detection], watermark: int
    ) -> list[ShadowDifference]:
        """Adds what both versions found; returns the differences that are certain at the
        watermark, in order of time.
        """
        sides: tuple[tuple[FoundBy, Iterable[Detection]], ...] = (
            ("running", running),
            ("shadow", shadow),
        )
        found = [(one.time, one.began is None, by, one) for by, own in sides for one in own]
        for _time, _is_begin, by, one in sorted(found, key=lambda each: each[:2]):
            self._note(one, by)  # ends before beginnings
        return self._settled(watermark - self._grace)

    def due(self) -> int | None:
        """The watermark at which the next difference is certain; None when there is none."""
        ends = [one.ended for one in self._all() if one.ended is not None and not one.is_met]
        return min(ends) + self._grace if ends else None

    def end(self) -> list[ShadowDifference]:
        """Returns the remaining differences; both versions have decided the same readings."""
        return self._settled(None)

    def reset(self) -> list[ShadowDifference]:
        """Restarts the comparison with the next reading; returns the remaining differences."""
        left = self.end()
        self._began = self._judged_from = -(2**62)
        return left

    def state(self) -> EpisodeState:
        return EpisodeState(self._began, self._judged_from, list(self._all()))

    def restore(self, saved: EpisodeState) -> None:
        self._began, self._judged_from = saved.began, saved.judged_from
        self._episodes = {}
        for one in saved.episodes:
            self._add(one)

    # --- episodes ---

    def _all(self) -> Iterator[ShadowEpisode]:
        for own in self._episodes.values():
            yield from own

    def _add(self, one: ShadowEpisode) -> None:
        self._episodes.setdefault(bindings_key(one.bindings), []).append(one)

    def _note(self, found: Detection, by: FoundBy) -> None:
        known = self._episodes.get(bindings_key(found.bindings), [])
        if found.began is not None:
            for one in known:
                if one.by == by and one.ended is None:
                    one.ended = found.time
                    self._meet(one, known)
            return
        counts = all(time >= self._began for time, _ in found.causes)
        ended = None if by in self._lasting else found.time + 1
        new = ShadowEpisode(by, found.bindings, found.time, ended, False, counts, found.causes)
        self._meet(new, known)
        self._add(new)

    @staticmethod
    def _meet(one: ShadowEpisode, known: Iterable[ShadowEpisode]) -> None:
        """Notes with which of the other version it overlaps."""
        for other in known:
            if other.by != one.by and _overlap(one, other):
                one.is_met = other.is_met = True

    def _settled(self, until: int | None) -> list[ShadowDifference]:
        """Counts and drops the episodes that ended until then, all if it is None."""
        found: list[ShadowDifference] = []
        for key, own in list(self._episodes.items()):
            over = [one for one in own if until is None or _is_over(one, until)]
            kept = [one for one in own if one not in over]
            self._episodes[key] = kept
            if not kept:
                del self._episodes[key]
            found += [self._difference(one) for one in over if self._is_alone(one)]
        return sorted(found, key=lambda one: (one.time, one.found_by, sorted(one.bindings.items())))

    def _is_alone(self, one: ShadowEpisode) -> bool:
        """Counts an episode that is over; whether only its version has it."""
        is_judged = one.ended is None or one.ended > self._judged_from
        if one.is_met:
            if one.by == "running":
                self.tally = self.tally.with_one(None)
            return False
        if not (one.counts and is_judged):
            return False
        self.tally = self.tally.with_one(one.by)
        return True

    def _difference(self, one: ShadowEpisode) -> ShadowDifference:
        return ShadowDifference(
            policy=self.versions.policy,
            found_by=one.by,
            time=one.began,
            bindings=one.bindings,
            causes=one.causes,
            running=self.versions.running,
            shadow=self.versions.shadow,
            ended=one.ended if one.by in self._lasting else None,
        )


def _overlap(one: ShadowEpisode, other: ShadowEpisode) -> bool:
    begins = max(one.began, other.began)
    ends = [each.ended for each in (one, other) if each.ended is not None]
    return not ends or begins < min(ends)


def _is_over(one: ShadowEpisode, until: int) -> bool:
    return one.ended is not None and one.ended <= until


def shadow_event(source: str, result: ShadowResult) -> Event:
    """The event of `detections` for a result of a shadow; it triggers no action."""
    if isinstance(result, ShadowTurn):
        return _turn_event(source, result)
    return _difference_event(source, result)


def _difference_event(source: str, difference: ShadowDifference) -> Event:
    flat = [part for pair in sorted(difference.bindings.items()) for part in pair]
    return make_event(
        source=source,
        id=content_id(
            "shadow",
            difference.policy,
            difference.running,
            difference.shadow,
            difference.found_by,
            str(difference.time),
            *flat,
        ),
        type=SHADOW_TYPE,
        subject=f"policy/{difference.policy}",
        time=difference.time,
        data=difference,
        headers={CAUSE: cause_text(*(id for _, id in difference.causes))},
    )


def _turn_event(source: str, turn: ShadowTurn) -> Event:
    event = turn.found.to_event(source=source)
    kind = SHADOW_DETECTED if turn.found.began is None else SHADOW_ENDED
    return msgspec.structs.replace(event, id=content_id("shadow", event.id), type=kind)
