"""Questions about a node's history: which version ran, which readings there were, what came of
them. [PO-11]
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from rapport.channel.channel import Channels
from rapport.core.detection import Detection
from rapport.core.errors import PolicyError, UnknownName
from rapport.core.times import format_time
from rapport.policy.explaining.attempts import Span
from rapport.policy.explaining.past import Past, read_past
from rapport.policy.explaining.raw_values import RawValues
from rapport.policy.explaining.reach import Reach, needs_last_values, reach_of
from rapport.policy.explaining.verdict import Answer, Explained, Note
from rapport.policy.explaining.versions_then import (
    changes_on_record,
    version_named,
    version_then,
)
from rapport.policy.explaining.why_not import Question, check_aliases, why, why_not
from rapport.policy.ontology import Ontology
from rapport.policy.plan import Plan
from rapport.policy.runners.base import PullData

Compile = Callable[[str, str], Plan]
"""Name and text of a policy to its plan; raises PolicyError."""
_WIDENED = 4
_MOST_WIDENINGS = 3


class Asking:
    """Answers questions from channels that may be open for reading only."""

    def __init__(
        self,
        channels: Channels,
        ontology: Ontology,
        pull: PullData,
        texts: Mapping[str, str],
        compile: Compile,
        *,
        lateness_ms: int,
        may_read: Callable[[str], bool] | None = None,
    ) -> None:
        """`texts`: what the site's files say, for policies of which nothing is on record."""
        self._lateness_ms, self._may_read = lateness_ms, may_read
        self._channels, self._ontology, self._pull = channels, ontology, pull
        self._texts, self._compile = texts, compile

    async def why_not(self, policy: str, question: Question) -> Answer:
        """How the policy stood around a time; raises UnknownName for a policy nobody knows."""
        changes = await changes_on_record(self._channels)
        then = version_then(changes, policy, question.at)
        text = then.text or self._texts.get(policy, "")
        if not text:
            known = {kept.changed.name for kept in changes} | set(self._texts)
            raise UnknownName("policy", policy, sorted(known), code="policy.unknown")
        plan = self._compile(policy, text)
        check_aliases(plan, question.given)
        past = await self._past(plan, question.span(plan), question.given)
        readings, began = past.readings, then.began
        if began is not None:  # it sees no reading before it was deployed
            readings = [one for one in readings if one.time >= began - self._lateness_ms]
        work = partial(
            why_not,
            plan,
            self._ontology,
            self._pull,
            readings,
            question,
            reported=past.reported,
            began=None if began is None or (readings and began < readings[0].time) else began,
        )
        answer = await asyncio.to_thread(work)
        notes = (*then.notes, *past.notes, *self._told(answer, past, question.span(plan)))
        answer = msgspec.structs.replace(answer, notes=notes, text=text)
        raws = RawValues(self._channels, past.events, self._may_read)
        return msgspec.structs.replace(
            answer,
            fired=tuple([await raws.filled(one) for one in answer.fired]),
            candidates=tuple([await raws.filled(one) for one in answer.candidates]),
        )

    async def why(self, detection: Detection) -> Explained:
        """The conditions behind a detection and the text of the version that found it."""
        changes = await changes_on_record(self._channels)
        text = version_named(changes, detection.policy, detection.version)
        text = text or self._texts.get(detection.policy, "")
        found = Explained(policy=detection.policy, version=detection.version, text=text)
        if not text:
            return found
        try:
            plan = self._compile(detection.policy, text)
        except PolicyError:
            return found
        first = min((time for time, _ in detection.causes), default=detection.time)
        span = Span(first, detection.time + (plan.once_per_ms or 0))
        past = await self._past(plan, span, detection.bindings)
        work = partial(why, plan, self._ontology, self._pull, past.readings, detection)
        found = msgspec.structs.replace(await asyncio.to_thread(work), text=text)
        if found.held is None:
            return found
        raws = RawValues(self._channels, past.events, self._may_read)
        return msgspec.structs.replace(found, held=await raws.filled(found.held))

    async def _past(self, plan: Plan, span: Span, given: Mapping[str, str]) -> Past:
        """The readings around the span; further back while somebody's last value is missing."""
        reach = reach_of(plan, self._ontology.sources, span)
        told_since = span.start - (plan.once_per_ms or 0)
        for _ in range(_MOST_WIDENINGS):
            past = await self._read(plan, reach, told_since)
            if not needs_last_values(plan) or not given or _is_known(past, given, span.start):
                return past
            reach = Reach(span.start - _WIDENED * (span.start - reach.start), reach.end)
        return await self._read(plan, reach, told_since)

    async def _read(self, plan: Plan, reach: Reach, told_since: int) -> Past:
        return await read_past(
            self._channels,
            self._ontology,
            plan.policy,
            self._ontology.streams(),
            reach,
            told_since=told_since,
        )

    def _told(self, answer: Answer, past: Past, span: Span) -> list[Note]:
        """Where what was told differs from what is found here."""
        near = [one for one in past.reported if span.start <= one.time <= span.end]
        asked = [one for one in near if answer.given.items() <= one.bindings.items()]
        if not answer.fired and asked:
            when = ", ".join(format_time(one.time) for one in asked[:3])
            text = f"it was told at {when}; the tables or the readings have changed since"
            return [Note(kind="told", text=text, event=asked[0].id())]
        if answer.fired and not near and not any(one.kind == "policy" for one in answer.notes):
            text = "by these readings it holds, but nothing was told: it may not have run then"
            return [Note(kind="told", text=text)]
        return []


def _is_known(past: Past, given: Mapping[str, str], before: int) -> bool:
    known = {reading.key for reading in past.readings if reading.time <= before}
    return set(given.values()) <= known
