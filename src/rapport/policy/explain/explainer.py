"""Explains detections and missed detections from a node's log: the version that ran, the readings
of that time, and their evaluation. [PO-11]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from rapport.channel.channel import Channels
from rapport.core.detection import Detection
from rapport.core.errors import PolicyError, UnknownName
from rapport.core.release import HISTORY
from rapport.core.times import format_time
from rapport.kernel.tasks import run_in_thread
from rapport.policy.compiler.situation_text import condition_lines
from rapport.policy.explain.answer import (
    AnswerNote,
    Candidate,
    CandidateOutcome,
    ConditionNode,
    Explanation,
    Truth,
    WhyNotAnswer,
)
from rapport.policy.explain.evidence import (
    NeededRange,
    Reading,
    TimeSpan,
    needed_range,
    needs_last_values,
)
from rapport.policy.explain.past_readings import PastReadings, RawValues, read_past
from rapport.policy.explain.past_tables import (
    TablesAtTime,
    TablesLookup,
    candidate_with_facts,
    current_tables,
    with_external_facts,
)
from rapport.policy.explain.policy_versions import (
    BEGIN_OF_TIME,
    PolicyPeriod,
    VersionAtTime,
    begun_by_clock,
    changes_on_record,
    periods_on_record,
    running_near,
    version_at_time,
    version_of,
)
from rapport.policy.explain.situation_evidence import (
    SituationEvidence,
    check_bindings,
    situation_at,
)
from rapport.policy.explain.situation_wording import evidence_nodes
from rapport.policy.explain.why_not import WhyNotQuestion, check_aliases, why, why_not
from rapport.policy.ontology import Ontology
from rapport.policy.operators.base import PullData
from rapport.policy.plan import Plan
from rapport.policy.readings import split_events
from rapport.policy.runner.local import in_event_order
from rapport.policy.situation_plan import SituationPlan, longest_look_back_ms
from rapport.policy.situations.guard_truth import guard_situation

Compile = Callable[[str, str], Plan]
"""Compiles a policy from its name and text; raises PolicyError."""
_WIDENED = 4
_MOST_WIDENINGS = 3
_MOST_SHOWN = 5


_MOST_EVENTS = 400_000
"""Events that may be read to find since when something has been so."""
_SITUATION_READINGS_MS = 86_400_000
"""How far before a situation its readings are looked at, beyond its windows."""


def _no_situation(_policy: str, _text: str) -> None:
    """Policies have conditions."""


class Explainer:
    """Answers from channels that may be open for reading only."""

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
        tables_at: TablesLookup | None = None,
        situation_of: Callable[[str, str], SituationPlan | None] = _no_situation,
    ) -> None:
        """`texts`: the policies of the site's files, for policies without a record; `tables_at`:
        the recorded tables of a time, where they are recorded.
        """
        self._lateness_ms, self._may_read = lateness_ms, may_read
        self._situation_of = situation_of
        self._channels, self._ontology = channels, ontology
        self._tables_at = tables_at or current_tables(pull)
        self._texts, self._compile = texts, compile
        self._known: set[str] = set()

    async def why_not(self, policy: str, question: WhyNotQuestion) -> WhyNotAnswer:
        """The state of the policy's conditions around a time; raises UnknownName for an unknown
        policy.
        """
        periods = await self._periods(policy)
        then = version_at_time(periods, question.at, None)
        text = self._text(policy, then)
        situation = self._situation_of(policy, text)
        if situation is not None:
            return await self._why_not_situation(situation, question, text)
        plan, text = self._plan(policy, then)
        if then is not None and not then.ran:
            near = running_near(periods, *question.span(plan))
            then = version_at_time(periods, question.at, near)
            plan, text = self._plan(policy, then)
        check_aliases(plan, question.given)
        span = question.span(plan)
        past = await self._past(plan, span, question.given)
        # A reading is decided when no earlier one can arrive any more.
        tables = await self._tables_at(question.at + self._lateness_ms)
        answer = await self._decided(plan, question, past, then, tables.pull)
        was_not_emitted = bool(answer.fired) and not _was_emitted(answer, past, span)
        if not past.is_whole and (was_not_emitted or _is_missing(past, plan, question.given, span)):
            # The detection may have been emitted much later, by a node that caught up or on
            # Spark, and a reading may have arrived hours after its time.
            past = await self._past(plan, span, question.given, to_the_end=True)
            answer = await self._decided(plan, question, past, then, tables.pull)
        answer = _with_pending(answer, past, self._lateness_ms)
        answer = await self._with_guard(answer, plan, past, tables)
        notes = (
            *(then.notes if then else ()),
            *past.notes,
            *past.gaps,
            *self._emission_notes(answer, past, span),
        )
        answer = msgspec.structs.replace(answer, notes=notes, text=text)
        answer = with_external_facts(answer, plan, tables)
        raws = RawValues(self._channels, past.events, self._may_read)
        return msgspec.structs.replace(
            answer,
            fired=tuple([await raws.filled(one) for one in answer.fired]),
            candidates=tuple([await raws.filled(one) for one in answer.candidates]),
        )

    async def why(self, detection: Detection) -> Explanation:
        """The conditions behind a detection and the text of the version that found it."""
        periods = await self._periods(detection.policy)
        ran = version_of(periods, detection)
        text = ran.text if ran is not None else self._texts.get(detection.policy, "")
        found = Explanation(policy=detection.policy, version=detection.version, text=text)
        if not text:
            return found
        try:
            situation = self._situation_of(detection.policy, text)
            if situation is not None:
                return await self._why_situation(found, situation, detection)
            plan = self._compile(detection.policy, text)
        except PolicyError:
            return found
        first = min((time for time, _ in detection.causes), default=detection.time)
        span = TimeSpan(first, detection.time + (plan.once_per_ms or 0))
        is_history = await self._is_history(detection)
        for as_corrected in (True, False):  # it may precede a correction
            past = await self._past(plan, span, detection.bindings, as_corrected=as_corrected)
            # Imported history is evaluated for the time before the deployment too.
            ran_then = None if is_history else ran
            readings = past.readings if ran_then is None else _received(past.readings, ran_then)
            began = None if ran_then is None else _began(ran_then)
            for tables in await self._tables_behind(detection):
                given = (plan, self._ontology, tables.pull, readings, detection)
                work = partial(why, *given, began=began)
                found = await run_in_thread(work, name="why")
                found = msgspec.structs.replace(found, text=text, gaps=tuple(past.gaps))
                if found.held is not None:
                    raws = RawValues(self._channels, past.events, self._may_read)
                    held = candidate_with_facts(await raws.filled(found.held), plan, tables)
                    if plan.guard is not None:
                        guard = await self._guard_node(plan, detection, tables, "true")
                        held = msgspec.structs.replace(held, clauses=(*held.clauses, guard))
                    return msgspec.structs.replace(found, held=held)
        return found

    async def _why_situation(
        self, found: Explanation, plan: SituationPlan, detection: Detection
    ) -> Explanation:
        """The atoms at the time of a beginning or an end, by the readings before it."""
        began = detection.time if detection.began is None else detection.began
        [tables, *_] = await self._tables_behind(detection)
        evidence, past = await self._evidence(
            plan, detection.bindings, detection.time, began, tables
        )
        return msgspec.structs.replace(found, situation=evidence, gaps=tuple(past.gaps))

    async def _why_not_situation(
        self, plan: SituationPlan, question: WhyNotQuestion, text: str
    ) -> WhyNotAnswer:
        """The atoms of one binding at a time; raises InvalidInput when it is not named whole."""
        check_bindings(plan, question.given)
        tables = await self._tables_at(question.at + self._lateness_ms)
        at = question.at
        evidence, past = await self._evidence(plan, question.given, at, at, tables)
        return WhyNotAnswer(
            policy=plan.policy,
            version=plan.version(),
            at=at,
            within_ms=0,
            given=question.given,
            fired=(),
            situation=evidence,
            notes=(*past.notes, *past.gaps),
            text=text,
        )

    async def _evidence(
        self,
        plan: SituationPlan,
        bindings: Mapping[str, str],
        time: int,
        began: int,
        tables: TablesAtTime,
    ) -> tuple[SituationEvidence | None, PastReadings]:
        """What the readings before a time say of a binding; `began`: from when on all count. Reads
        further back while an atom has been so since before the readings.
        """
        sources = self._ontology.sources.values()
        period = max((one.period_ms + one.stale_after_ms for one in sources), default=0)
        look_back = longest_look_back_ms(plan) + period
        back, counts = 2 * look_back + _SITUATION_READINGS_MS, list[int]()
        while True:
            past = await read_past(
                self._channels,
                self._ontology,
                plan.policy,
                plan.streams(),
                NeededRange(began - back, time),
                emitted_since=began,
                lateness_ms=self._lateness_ms,
            )
            counted = {one.id for one in past.readings}
            is_last = len(counts) == _MOST_WIDENINGS
            is_last |= past.looked_at * _WIDENED > _MOST_EVENTS
            # If going further back brought nothing more, the record begins with these readings.
            is_all = is_last and counts[-1:] == [len(counted)]
            settled = None if is_all else began - back + look_back
            counts.append(len(counted))
            events = [one.event for id, one in past.events.items() if id in counted]
            batch, _rejected = split_events(events, self._ontology)
            given = (plan, self._ontology, tables.pull, in_event_order(batch))
            work = partial(situation_at, *given, bindings, time, settled=settled)
            found = await run_in_thread(work, name="why")
            if is_last or found is None or not found.lacks_since():
                return found, past
            back *= _WIDENED

    async def _guard_node(
        self, plan: Plan, match: Detection, tables: TablesAtTime, truth: Truth
    ) -> ConditionNode:
        """The guard with its atoms at the time of a match; `truth`: what it was when it ran."""
        assert plan.guard is not None, "the plan has a guard"
        text = f"while {'; '.join(line.strip() for line in condition_lines(plan.guard))}"
        guard = guard_situation(plan, match.bindings.keys())
        given = {bound.alias: match.bindings[bound.alias] for bound in guard.aliases}
        evidence, _past = await self._evidence(guard, given, match.time, match.time, tables)
        if truth == "true":
            atoms = () if evidence is None else evidence_nodes(evidence)
            return ConditionNode(text=text, truth=truth, children=atoms)
        because = f"it was false or unknown at {format_time(match.time)}"
        if evidence is None or evidence.truth == "true":  # readings or tables have changed since
            return ConditionNode(text=text, truth="false", because=because)
        because = f"it was {evidence.truth} at {format_time(match.time)}"
        return ConditionNode(
            text=text, truth=evidence.truth, because=because, children=evidence_nodes(evidence)
        )

    async def _with_guard(
        self, answer: WhyNotAnswer, plan: Plan, past: PastReadings, tables: TablesAtTime
    ) -> WhyNotAnswer:
        """Marks matches that the guard stopped: the evaluation looks at the conditions alone, and
        the policy ran without emitting them.
        """
        if plan.guard is None:
            return answer
        emitted = {one.id() for one in past.reported}

        def passed(one: Candidate) -> bool:
            return one.detection is None or one.detection.id() in emitted

        answer = _counted(answer, passed, "not while")
        held = []
        for one in answer.candidates:
            if one.became == "not while":
                assert one.detection is not None, "what is stopped is known"
                guard = await self._guard_node(plan, one.detection, tables, "false")
                one = msgspec.structs.replace(one, clauses=(*one.clauses, guard))
            held.append(one)
        return msgspec.structs.replace(answer, candidates=tuple(held))

    async def _is_history(self, detection: Detection) -> bool:
        """Whether imported readings led to the detection."""
        stored = await self._channels.find_event(detection.id())
        return any(HISTORY in one.event.headers for _channel, one in stored)

    async def _tables_behind(self, detection: Detection) -> list[TablesAtTime]:
        """The tables when the detection was emitted, then those of its own time: the same unless
        clock and event times were apart.
        """
        stored = await self._channels.find_event(detection.id())
        times = [one.received for _channel, one in stored] + [detection.time]
        return [await self._tables_at(time) for time in dict.fromkeys(times)]

    async def _periods(self, policy: str) -> list[PolicyPeriod]:
        changes = await changes_on_record(self._channels)
        self._known = {kept.changed.name for kept in changes}
        periods = await periods_on_record(
            self._channels, changes, policy, self._ontology.streams(), self._lateness_ms
        )
        begun = await begun_by_clock(self._channels, self._lateness_ms)
        return periods if begun is None else [one.begun_at(begun) for one in periods]

    def _plan(self, policy: str, then: VersionAtTime | None) -> tuple[Plan, str]:
        """The plan to explain and its text; raises UnknownName."""
        text = self._text(policy, then)
        return self._compile(policy, text), text

    def _text(self, policy: str, then: VersionAtTime | None) -> str:
        text = (then.period.text if then else "") or self._texts.get(policy, "")
        if not text:
            known = self._known | set(self._texts)
            raise UnknownName("policy", policy, sorted(known), code="policy.unknown")
        return text

    async def _decided(
        self,
        plan: Plan,
        question: WhyNotQuestion,
        past: PastReadings,
        then: VersionAtTime | None,
        pull: PullData,
    ) -> WhyNotAnswer:
        """Evaluates the version over the readings that it received, or over all if it
        received none.
        """
        readings, began = past.readings, None
        if then is not None and then.ran:
            readings = _received(readings, then.period)
            began = _began(then.period)
        work = partial(
            why_not,
            plan,
            self._ontology,
            pull,
            readings,
            question,
            reported=past.reported,
            began=began,
            late=past.late,
        )
        answer = await run_in_thread(work, name="why-not")
        return answer if then is None else _without_idle_times(answer, then, past.reported)

    async def _past(
        self,
        plan: Plan,
        span: TimeSpan,
        given: Mapping[str, str],
        *,
        to_the_end: bool = False,
        as_corrected: bool = True,
    ) -> PastReadings:
        """The readings around the span; reads further back while the last value of a given identity
        is missing.
        """
        reach = needed_range(plan, self._ontology.sources, span)
        read = partial(
            read_past,
            self._channels,
            self._ontology,
            plan.policy,
            self._ontology.streams(),
            emitted_since=span.start - (plan.once_per_ms or 0),
            lateness_ms=self._lateness_ms,
            to_the_end=to_the_end,
            as_corrected=as_corrected,
        )
        for _ in range(_MOST_WIDENINGS):
            past = await read(reach)
            if not needs_last_values(plan) or not given or _is_known(past, given, span.start):
                return past
            reach = NeededRange(span.start - _WIDENED * (span.start - reach.start), reach.end)
        return await read(reach)

    def _emission_notes(
        self, answer: WhyNotAnswer, past: PastReadings, span: TimeSpan
    ) -> list[AnswerNote]:
        """Notes where the emitted detections differ from the evaluation."""
        near = [one for one in past.reported if span.start <= one.time <= span.end]
        matching = [one for one in near if answer.given.items() <= one.bindings.items()]
        if not answer.fired and matching:
            when = ", ".join(format_time(one.time) for one in matching[:3])
            text = f"it was detected at {when}; the tables or the readings have changed since"
            if all(one.version != answer.version for one in matching):
                text = f"another version, {matching[0].version}, detected it at {when}"
            return [AnswerNote(kind="told", text=text, event=matching[0].id())]
        if waiting := [one for one in answer.candidates if one.became == "pending"]:
            return [_not_decided(waiting[0], past)]
        if answer.fired and not _was_emitted(answer, past, span):
            text = "by these readings it holds, but nothing was emitted: it may not have run then"
            return [AnswerNote(kind="told", text=text)]
        return []


def _received(readings: list[Reading], period: PolicyPeriod) -> list[Reading]:
    """The readings that the version received."""
    return [one for one in readings if period.sees_from <= one.time < period.until]


def _began(period: PolicyPeriod) -> int | None:
    """From when the version counts silence; None: from the first reading."""
    return period.sees_from if period.sees_from > BEGIN_OF_TIME else None


def _counted(
    answer: WhyNotAnswer, counts: Callable[[Candidate], bool], otherwise: CandidateOutcome
) -> WhyNotAnswer:
    """Drops matches that do not count; where none counts they are the candidates, which became
    `otherwise`.
    """
    fired = tuple(filter(counts, answer.fired))
    if fired or not answer.fired:
        return msgspec.structs.replace(answer, fired=fired)
    held = [msgspec.structs.replace(one, became=otherwise) for one in answer.fired[:_MOST_SHOWN]]
    return msgspec.structs.replace(answer, fired=(), candidates=tuple(held))


def _without_idle_times(
    answer: WhyNotAnswer, then: VersionAtTime, reported: list[Detection]
) -> WhyNotAnswer:
    """Removes detections of times in which the policy did not run."""
    period, emitted = then.period, {one.id() for one in reported}

    def was_emitted(one: Candidate) -> bool:
        assert one.detection is not None
        runs = then.ran and period.since <= one.detection.time < period.until
        return runs or one.detection.id() in emitted

    return _counted(answer, was_emitted, "not run")


def _with_pending(answer: WhyNotAnswer, past: PastReadings, lateness_ms: int) -> WhyNotAnswer:
    """Marks matches as pending that stream time has not reached yet; the evaluation treats time as
    complete.
    """
    decided, emitted = past.reached - lateness_ms, {one.id() for one in past.reported}

    def is_decided(one: Candidate) -> bool:
        due = one.detection
        return due is None or due.time < decided or due.id() in emitted

    return _counted(answer, is_decided, "pending")


def _not_decided(waiting: Candidate, past: PastReadings) -> AnswerNote:
    assert waiting.detection is not None, "what waits is known"
    due, reached = format_time(waiting.detection.time), format_time(past.reached)
    text = f"not decided yet: that comes at {due}, and the stream has come to {reached}"
    return AnswerNote(kind="told", text=text)


def _was_emitted(answer: WhyNotAnswer, past: PastReadings, span: TimeSpan) -> bool:
    """Whether a fired detection, or any in the span, was emitted."""
    fired = {one.detection.id() for one in answer.fired if one.detection is not None}
    return any(span.start <= one.time <= span.end or one.id() in fired for one in past.reported)


def _is_missing(past: PastReadings, plan: Plan, given: Mapping[str, str], span: TimeSpan) -> bool:
    """Whether the span lacks readings of a given identity that has a stream."""
    sides = [side for side in plan.sides() if side.stream]
    present = {one.key for one in past.readings if span.start <= one.time <= span.end}
    return any(given.get(side.alias, "") not in present for side in sides if side.alias in given)


def _is_known(past: PastReadings, given: Mapping[str, str], before: int) -> bool:
    known = {reading.key for reading in past.readings if reading.time <= before}
    return set(given.values()) <= known
