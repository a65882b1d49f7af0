"""Conditions as nodes of the answer: what was taken where they hold, what was nearest where they
do not. [PO-11]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from rapport.core.times import rough_duration
from rapport.policy.explaining.attempts import Attempt, TimeSpan, attempts
from rapport.policy.explaining.holding import event_places, sides_of
from rapport.policy.explaining.lasting import (
    StateMoment,
    atom_events,
    bindings_of_state,
    ends_of_state,
    state_moments,
    state_spans,
    state_truth,
)
from rapport.policy.explaining.measuring import Proximity
from rapport.policy.explaining.silences import silences
from rapport.policy.explaining.stretch import Occurrence, StateSpan
from rapport.policy.explaining.verdict import ConditionNode, Truth
from rapport.policy.explaining.wording import Wording, bindings_text, duration, time_mark
from rapport.policy.explaining.world import Evidence, LateReading
from rapport.policy.plan import (
    LastingTerm,
    Side,
    SilentTerm,
    StateTerm,
    TermStep,
    state_atoms,
)
from rapport.policy.runners.operators.reaches import pair_window_ms

_TRUTHS: dict[bool | None, Truth] = {True: "true", False: "false", None: "unknown"}


class NodeBuilder:
    """Makes nodes of terms."""

    def __init__(self, world: Evidence, wording: Wording) -> None:
        self.world, self.wording = world, wording
        self.measuring = Proximity(world, wording)

    # Terms that hold.

    def held(self, term: TermStep, found: Occurrence) -> ConditionNode:
        """A term with the occurrence that was taken."""
        shown = tuple(self.wording.reading(one) for one in found.events)
        return ConditionNode(
            text=self.wording.term(term),
            truth="true",
            because=self._how_held(term, found),
            readings=shown,
        )

    def _how_held(self, term: TermStep, found: Occurrence) -> str:
        match term:
            case LastingTerm():
                return f"true since {time_mark(found.since)}, {duration(term.duration_ms)} long"
            case SilentTerm():
                name = found.bindings[term.first.alias]
                return f"{name} was not heard of after {time_mark(found.since)}"
            case _:
                events = dict(zip(event_places(term), found.events, strict=True))
                return self.measuring.measured(term, Attempt(found.bindings, events, True))

    # Terms that do not.

    def missed(self, term: TermStep, bindings: Mapping[str, str], span: TimeSpan) -> ConditionNode:
        """A term that did not occur in the span, with what came nearest."""
        match term:
            case LastingTerm():
                return self._not_lasted(term, bindings, span)
            case SilentTerm():
                return self._not_silent(term, bindings, span)
            case _:
                return self._not_held(term, bindings, span)

    def _not_held(
        self, term: StateTerm, bindings: Mapping[str, str], span: TimeSpan
    ) -> ConditionNode:
        text = self.wording.term(term)
        if unknown := self._unknown(sides_of(term), bindings):
            return ConditionNode(text=text, truth="unknown", because=unknown)
        refused = self._refused(sides_of(term), bindings)
        if refused:
            return ConditionNode(text=text, truth="false", because=refused)
        tried = attempts(self.world, term, bindings, span)
        if not tried:
            return ConditionNode(
                text=text, truth="unknown", because=self._unheard(term, bindings, span)
            )
        if any(one.truth for one in tried):
            return self._held_but(term, tried, text)
        known = [one for one in tried if one.truth is False]
        best = min(known or tried, key=lambda one: self.measuring.rank(term, one, span))
        return ConditionNode(
            text=text,
            truth=_TRUTHS[best.truth],
            because=self.measuring.measured(term, best),
            readings=tuple(self.wording.reading(one) for one in best.events.values()),
        )

    def _held_but(self, term: StateTerm, tried: list[Attempt], text: str) -> ConditionNode:
        """It holds of some readings, and yet did not occur where it was needed."""
        best = next(one for one in tried if one.truth)
        events = list(best.events.values())
        because = self.measuring.measured(term, best)
        if len(events) == 2:
            apart = abs(events[0].time - events[1].time)
            window = pair_window_ms(self.world.plan, term)  # type: ignore[arg-type]
            if apart >= window:
                because += f", but {duration(apart)} apart in time; less than {duration(window)}"
            else:
                because += ", but these readings were used for another match, or too far from"
                because += " the other conditions"
        else:
            because += ", but not together with the other conditions"
        shown = tuple(self.wording.reading(one) for one in events)
        return ConditionNode(text=text, truth="false", because=because, readings=shown)

    def _unknown(self, sides: Iterable[Side], bindings: Mapping[str, str]) -> str:
        """That an identity that was named is not known at all."""
        for side in sides:
            name = bindings.get(side.alias)
            if name is not None and self.world.is_unknown(side.concept, name):
                nearest = ", ".join(self.world.nearest_known(side.concept, name))
                hint = f"; the nearest known: {nearest}" if nearest else ""
                return f"{name} is unknown: no {side.concept} has that name{hint}"
        return ""

    def _too_late(
        self, side: Side, streams: Iterable[str], bindings: Mapping[str, str], span: TimeSpan | None
    ) -> str:
        """That readings there were came too late, of who was named or of anybody who could be
        meant; empty when there were none.
        """
        name = bindings.get(side.alias)

        def is_meant(key: str) -> bool:
            return self.world.allows(side, key) if name is None else key == name

        late = [
            one
            for stream in streams
            for one in self.world.late(stream, is_meant)
            if span is None or span.start <= one.time <= span.end
        ]
        if not late:
            return ""
        worst = max(late, key=_delay)
        said = f"the {worst.stream.partition('.')[2]} of {worst.key} "
        if worst.received is None:
            said += "stands too far behind others in its file, too late to count"
        else:
            delay = rough_duration(_delay(worst))
            said += f"was received {time_mark(worst.received)}, {delay} late: too late to count"
        return said + (f" (and {len(late) - 1:,} more)" if len(late) > 1 else "")

    def _refused(self, sides: Iterable[Side], bindings: Mapping[str, str]) -> str:
        """Why an identity that was named can never be meant."""
        for side in sides:
            name = bindings.get(side.alias)
            if name is None or self.world.allows(side, name):
                continue
            for one in side.constraints:
                if self.world.allows(msgspec.structs.replace(side, constraints=(one,)), name):
                    continue
                value = self.world.in_tables(side.concept, one.attribute, name)
                wanted, actual = (
                    self.wording.of_property(side.concept, one.attribute, each)
                    for each in (one.value, None if value is None else value[0])
                )
                return (
                    f"{name} can not be {side.alias}: {side.alias} has {one.attribute} "
                    f"{one.operator} {wanted}, {name} has {actual}"
                )
        return ""

    def _unheard(self, term: StateTerm, bindings: Mapping[str, str], span: TimeSpan) -> str:
        places = [sides_of(term)[place] for place in event_places(term)]
        for side in places:
            assert side.stream is not None
            name = bindings.get(side.alias)
            if late := self._too_late(side, (side.stream,), bindings, span):
                return late
            if name is None:
                continue
            if not self.world.between(side.stream, name, span.start, span.end):
                return self._silent_since(side.stream, name, span)
        aliases = " or ".join(dict.fromkeys(side.alias for side in places))
        return f"no reading of anybody who could be {aliases} in that time"

    def _silent_since(self, stream: str, name: str, span: TimeSpan) -> str:
        attribute = stream.partition(".")[2]
        own = self.world.of(stream, name)
        before = [one for one in own if one.time < span.start]
        after = [one for one in own if one.time > span.end]
        said = f"no {attribute} of {name} in that time"
        if before:
            said += f"; the last before was at {time_mark(before[-1].time)}"
        if after:
            said += f"; the next came at {time_mark(after[0].time)}"
        return said

    # Durations and silences.

    def _not_lasted(
        self, term: LastingTerm, bindings: Mapping[str, str], span: TimeSpan
    ) -> ConditionNode:
        text = self.wording.term(term)
        if unknown := self._unknown((term.first, term.second), bindings):
            return ConditionNode(text=text, truth="unknown", because=unknown)
        refused = self._refused((term.first, term.second), bindings)
        if refused:
            return ConditionNode(text=text, truth="false", because=refused)
        found = [
            one
            for one in state_spans(self.world, term, bindings)
            if one.occurrence.first_moment <= span.end
            and (one.ended is None or one.ended >= span.start)
        ]
        if found:
            best = max(found, key=_length)
            return self._too_short(term, best, text, span)
        return self._never_true(term, bindings, span, text)

    def _too_short(
        self, term: LastingTerm, best: StateSpan, text: str, span: TimeSpan
    ) -> ConditionNode:
        own = best.occurrence
        assert own.since is not None
        if best.has_lasted:
            because = f"true since {time_mark(own.since)}, {duration(term.duration_ms)} long"
            because += _counted(own.end, span, "when it was not true in between")
            return ConditionNode(text=text, truth="false", because=because)
        assert best.ended is not None
        lasted = best.ended - own.since
        because = (
            f"of {bindings_text(own.bindings)} it was true from {time_mark(own.since)} to {time_mark(best.ended)}: "
            f"{duration(lasted)}, {duration(own.end - best.ended)} too short"
        )
        if best.ended_by is None:
            because += "; then the last value was too old to count (stale_after)"
            return ConditionNode(text=text, truth="false", because=because)
        ending = (self.wording.reading(best.ended_by),)
        return ConditionNode(
            text=text, truth="false", because=because + "; this ended it", readings=ending
        )

    def _never_true(
        self, term: LastingTerm, bindings: Mapping[str, str], span: TimeSpan, text: str
    ) -> ConditionNode:
        for own in bindings_of_state(self.world, term, bindings):
            last: StateMoment | None = None
            for moment in state_moments(self.world, term, own):
                if moment.time > span.end and last is not None:
                    break
                last = moment
            if last is not None:
                children = tuple(self._atoms(term, own, last))
                if last.truth:
                    because = (
                        f"of {bindings_text(own)} it was true only from {time_mark(last.time)} on"
                    )
                    return ConditionNode(
                        text=text, truth="false", because=because, children=children
                    )
                because = f"of {bindings_text(own)} it was not true at {time_mark(last.time)}"
                truth = _TRUTHS[last.truth]
                return ConditionNode(text=text, truth=truth, because=because, children=children)
        sides = {term.first.alias: term.first, term.second.alias: term.second}
        for alias, stream in ends_of_state(term):
            if late := self._too_late(sides[alias], (stream,), bindings, None):
                return ConditionNode(text=text, truth="unknown", because=late)
        return ConditionNode(
            text=text, truth="unknown", because="nobody it could be about was heard of"
        )

    def _atoms(
        self, term: LastingTerm, own: Mapping[str, str], at: StateMoment
    ) -> Iterable[ConditionNode]:
        for atom in state_atoms(term.state):
            events = atom_events(atom, at.known)
            found = state_truth(self.world, atom, own, at.known)
            complete = all(place in events for place in event_places(atom.term))
            attempt = Attempt(dict(own), events, found)
            yield ConditionNode(
                text=self.wording.term(atom.term, negated=atom.negated),
                truth=_TRUTHS[found],
                because=self.measuring.measured(atom.term, attempt)
                if complete
                else "no reading yet",
                readings=tuple(self.wording.reading(one) for one in events.values()),
            )

    def _not_silent(
        self, term: SilentTerm, bindings: Mapping[str, str], span: TimeSpan
    ) -> ConditionNode:
        text = self.wording.term(term)
        if unknown := self._unknown((term.first,), bindings):
            return ConditionNode(text=text, truth="unknown", because=unknown)
        refused = self._refused((term.first,), bindings)
        if refused:
            return ConditionNode(text=text, truth="false", because=refused)
        found = [
            one
            for one in silences(self.world, term, bindings)
            if one.occurrence.first_moment <= span.end
            and (one.ended is None or one.ended >= span.start)
        ]
        if not found:
            streams = [] if term.first.stream is None else [term.first.stream]
            late = self._too_late(term.first, streams, bindings, None)
            because = late or "nobody it could be about is known"
            return ConditionNode(text=text, truth="unknown", because=because)
        best = max(found, key=_length)
        name = best.occurrence.bindings[term.first.alias]
        if best.ended is None or best.ended_by is None or best.has_lasted:
            because = f"{name} was silent so long"
            because += _counted(best.occurrence.end, span, "after an event")
            return ConditionNode(text=text, truth="false", because=because)
        since = best.occurrence.since or 0
        because = f"{name} was silent for {duration(best.ended - since)} only; then came this"
        ending = (self.wording.reading(best.ended_by),)
        return ConditionNode(text=text, truth="false", because=because, readings=ending)

    # Absence.

    def refuting(self, refuters: Iterable[tuple[int, Occurrence]]) -> tuple[ConditionNode, ...]:
        """The counterexample as nodes: each of them is true, which is what is wrong."""
        return tuple(self.held(self.world.plan.terms[term], found) for term, found in refuters)


def _length(stretch: StateSpan) -> float:
    assert stretch.occurrence.since is not None
    return float("inf") if stretch.ended is None else stretch.ended - stretch.occurrence.since


def _delay(late: LateReading) -> int:
    return 0 if late.received is None else late.received - late.time


def _counted(end: int, span: TimeSpan, again: str) -> str:
    """Why what lasted so long is not enough: it counts at one moment only."""
    if end < span.start:
        return f", which counted once, at {time_mark(end)}, and counts again only {again}"
    return ", but not together with the other conditions"
