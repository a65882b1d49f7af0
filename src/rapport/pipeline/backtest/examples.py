"""Findings of a back-test explained from the history around them: why one version found it, and why
the other did not. [PI-9, PO-11]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from rapport.pipeline.backtest.contenders import Contender, version_of
from rapport.pipeline.backtest.execution import BackTestWork
from rapport.pipeline.backtest.findings import Example, FoundBy
from rapport.pipeline.backtest.pieces import BEGIN_OF_TIME, HistoryReader, Window
from rapport.policy.explain.answer import Candidate, ConditionNode, Explanation, WhyNotAnswer
from rapport.policy.explain.candidates import CandidateBuilder, NodeBuilder
from rapport.policy.explain.evidence import (
    Evidence,
    NeededRange,
    Reading,
    TimeSpan,
    needed_range,
    needs_last_values,
    readings_of,
)
from rapport.policy.explain.matches import Decisions
from rapport.policy.explain.situation_evidence import EvidenceRun, SituationEvidence
from rapport.policy.explain.why_not import WhyNotQuestion, why, why_not
from rapport.policy.explain.wording import Wording, with_times
from rapport.policy.operators.base import PullData
from rapport.policy.plan import Plan, conditions_plan
from rapport.policy.readings import readings_schema
from rapport.policy.replay.replay import RowFaults
from rapport.policy.runner.local import ReorderBuffer
from rapport.policy.situation_plan import SituationPlan

_WIDENED = 4
_MOST_WIDENINGS = 3


class _Asked(NamedTuple):
    """A question about one example; `began` is where the history begins."""

    plan: Plan
    span: TimeSpan
    given: Mapping[str, str]


def explain(
    work: BackTestWork,
    examples: Sequence[Example],
    contenders: Mapping[FoundBy, Contender],
    *,
    began: int | None,
) -> list[Example]:
    """The same examples with `why` of the version that found each and, where there is another
    version, `why_not` of that one if it did not. Reads what lies around each; `began` is the time
    of the history's first reading.
    """
    around = _around(work, examples, contenders)
    situations = _situations_at(work, examples, contenders)
    explained = []
    for number, (example, readings) in enumerate(zip(examples, around, strict=True)):
        own = contenders[example.found_by]
        other_side: FoundBy = "second" if example.found_by == "first" else "first"
        other = contenders.get(other_side)
        pull = work.pull_at(max((time for time, _id in example.detection.causes), default=0))
        if isinstance(own.plan, SituationPlan):
            evidence = situations[number, example.found_by]
            found = Explanation(policy="", version=version_of(own), situation=evidence)
        else:
            found = why(own.plan, work.ontology, pull, readings, example.detection, began=began)
        found = msgspec.structs.replace(found, policy=own.label, text=own.text)
        then = msgspec.structs.replace(work, pull=pull)
        answer = None
        if other is not None and isinstance(other.plan, SituationPlan):
            answer = _stood(other, example, situations.get((number, other_side)))
        elif other is not None:
            answer = _why_not(then, other, readings, example, began)
        explained.append(msgspec.structs.replace(example, why=found, why_not=answer))
    return explained


def _stood(other: Contender, example: Example, evidence: SituationEvidence | None) -> WhyNotAnswer:
    """How a version with a situation stood at the time of a finding of the other one."""
    return WhyNotAnswer(
        policy=other.label,
        version=version_of(other),
        at=example.detection.time,
        within_ms=0,
        given=_shared_bindings(other, example),
        fired=(),
        situation=evidence,
        text=other.text,
    )


class _SituationQuestion(NamedTuple):
    """How a situation stood for some identities at the time of an example."""

    time: int
    number: int
    bindings: Mapping[str, str]


def _situations_at(
    work: BackTestWork, examples: Sequence[Example], contenders: Mapping[FoundBy, Contender]
) -> dict[tuple[int, FoundBy], SituationEvidence | None]:
    """The evidence of each version with a situation, by example: one more pass over what the
    back-test has read, since all before the time counts. None where the readings do not tell of it;
    a version that has other aliases than the finding gives nothing.
    """
    found: dict[tuple[int, FoundBy], SituationEvidence | None] = {}
    runs: list[tuple[FoundBy, EvidenceRun, list[_SituationQuestion]]] = []
    for side, contender in contenders.items():
        plan = contender.plan
        if not isinstance(plan, SituationPlan):
            continue
        questions = [
            _SituationQuestion(one.detection.time, number, _shared_bindings(contender, one))
            for number, one in enumerate(examples)
        ]
        aliases = {bound.alias for bound in plan.aliases}
        questions = sorted(one for one in questions if one.bindings.keys() == aliases)
        by_pull: dict[int, tuple[PullData, list[_SituationQuestion]]] = {}
        for one in questions:
            pull = work.pull_at(one.time)
            by_pull.setdefault(id(pull), (pull, []))[1].append(one)
        for pull, own in by_pull.values():
            bindings = [one.bindings for one in own]
            runs.append((side, EvidenceRun(plan, work.ontology, pull, bindings), own))
    last = max((own[-1].time for _side, _run, own in runs), default=None)
    if last is None:
        return found
    for readings, watermark in _in_order(work, last):
        for side, run, own in runs:
            rest = readings
            while own and own[0].time < watermark:
                question = own.pop(0)
                times = rest.column("time").to_numpy()
                count = int(times.searchsorted(question.time, "right"))
                run.process(rest.slice(0, count), question.time + 1)
                found[question.number, side] = run.evidence(question.bindings)
                rest = rest.slice(count)
            if own:
                run.process(rest, watermark)
    return found


def _in_order(work: BackTestWork, last: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The readings of the back-test up to a time in event order, each batch with its watermark;
    what a runner takes for late is left out.
    """
    window = work.window()
    begin = BEGIN_OF_TIME if window is None else window.begin
    reader = HistoryReader(
        work.history,
        lateness_ms=work.lateness_ms,
        windows=(Window(begin, last + 1),),
        report=RowFaults().report,
    )
    waiting, latest = ReorderBuffer(), BEGIN_OF_TIME
    rows = pa.RecordBatch.from_pylist([], schema=readings_schema(work.ontology))
    for batch in reader.batches():
        times = batch.column("time").to_numpy()
        reached = np.maximum(np.maximum.accumulate(times), latest)
        rows = batch.filter(pa.array(times >= reached - work.lateness_ms))
        latest = int(reached[-1])
        if len(rows):
            waiting.add(rows, int(rows.column("time").to_numpy().min()))
        watermark = latest - work.lateness_ms
        if waiting and waiting.oldest < watermark:
            yield waiting.take_ready(watermark), watermark
    yield (waiting.take_ready(last + 1) if waiting else rows.slice(len(rows))), last + 1


def _shared_bindings(contender: Contender, example: Example) -> dict[str, str]:
    aliases = contender.aliases()
    return {alias: who for alias, who in example.detection.bindings.items() if alias in aliases}


def _plan(contender: Contender) -> Plan:
    return conditions_plan(contender.plan, "an explanation in a back-test")


def _why_not(
    work: BackTestWork,
    other: Contender,
    readings: Sequence[Reading],
    example: Example,
    began: int | None,
) -> WhyNotAnswer:
    """What the other version made of the same readings; where it made nothing of them, how it stood
    when the last of them came, or else until the finding.
    """
    for question in _questions(other, example):
        answer = why_not(_plan(other), work.ontology, work.pull, readings, question, began=began)
        if answer.fired or answer.candidates:
            break
    same = _same_causes(work, other, readings, example, began)
    if answer.fired and same is not None:
        # It fired about others of these readings; this is about what it did with the same.
        answer = msgspec.structs.replace(answer, fired=(), candidates=(same,))
    return msgspec.structs.replace(answer, policy=other.label, text=other.text)


def _same_causes(
    work: BackTestWork,
    other: Contender,
    readings: Sequence[Reading],
    example: Example,
    began: int | None,
) -> Candidate | None:
    """How a version decided about exactly the readings that a finding rests on."""
    world = Evidence(_plan(other), work.ontology.sources, work.pull, readings, began=began)
    decisions = Decisions(world)
    given = _questions(other, example)[0].given
    for decision in decisions.all(given):
        if decision.detection.causes == example.detection.causes:
            nodes = NodeBuilder(world, Wording(work.ontology))
            return _said(CandidateBuilder(decisions, nodes, given).of_decision(decision))
    return None


def _said(candidate: Candidate) -> Candidate:
    """With the times in its sentences told from its moment."""

    def node(one: ConditionNode) -> ConditionNode:
        return msgspec.structs.replace(
            one,
            because=with_times(one.because, candidate.time),
            children=tuple(node(child) for child in one.children),
        )

    return msgspec.structs.replace(candidate, clauses=tuple(node(one) for one in candidate.clauses))


def _questions(other: Contender, example: Example) -> tuple[WhyNotQuestion, WhyNotQuestion]:
    """About a moment, and about all the time that the finding is about."""
    detection, given = example.detection, _shared_bindings(other, example)
    times = [time for time, _id in detection.causes] or [detection.time]
    at = (min(times) + detection.time) // 2
    return (
        WhyNotQuestion(at=max(times), given=given, within_ms=1),
        WhyNotQuestion(at=at, given=given, within_ms=max(detection.time - at, 1)),
    )


def _around(
    work: BackTestWork, examples: Sequence[Example], contenders: Mapping[FoundBy, Contender]
) -> list[list[Reading]]:
    """The readings around each example: one pass for all, more where somebody's last value lies
    further back.
    """
    asked = [_asked(example, contenders) for example in examples]
    if not any(asked):
        return [[] for _example in examples]
    reaches = [
        _widest([needed_range(one.plan, work.ontology.sources, one.span) for one in some])
        for some in asked
    ]
    found = _read(work, reaches)
    for _again in range(_MOST_WIDENINGS):
        unknown = [
            number
            for number, (some, readings) in enumerate(zip(asked, found, strict=True))
            if not _is_known(some, readings)
        ]
        if not unknown:
            break
        for number in unknown:
            reach = reaches[number]
            reaches[number] = NeededRange(
                reach.end - _WIDENED * (reach.end - reach.start), reach.end
            )
        for number, readings in zip(
            unknown, _read(work, [reaches[number] for number in unknown]), strict=True
        ):
            found[number] = readings
    return found


def _asked(example: Example, contenders: Mapping[FoundBy, Contender]) -> list[_Asked]:
    detection = example.detection
    first = min((time for time, _id in detection.causes), default=detection.time)
    span = TimeSpan(first, detection.time)
    asked = []
    for side, contender in contenders.items():
        if isinstance(contender.plan, SituationPlan):
            continue
        if side != example.found_by:
            span = _questions(contender, example)[1].span(_plan(contender))
        asked.append(_Asked(_plan(contender), span, detection.bindings))
    return asked


def _widest(reaches: Sequence[NeededRange]) -> NeededRange:
    return NeededRange(min(one.start for one in reaches), max(one.end for one in reaches))


def _is_known(asked: Sequence[_Asked], readings: Sequence[Reading]) -> bool:
    """Whether everybody's last value before the time is among the readings, where it matters."""
    for one in asked:
        if needs_last_values(one.plan):
            known = {reading.key for reading in readings if reading.time <= one.span.start}
            if not set(one.given.values()) <= known:
                return False
    return True


def _read(work: BackTestWork, reaches: Sequence[NeededRange]) -> list[list[Reading]]:
    windows = [Window(reach.start, reach.end + 1) for reach in reaches]
    reader = HistoryReader(
        work.history,
        lateness_ms=work.lateness_ms,
        windows=_joined(windows),
        report=RowFaults().report,
    )
    found: list[list[Reading]] = [[] for _reach in reaches]
    for rows in reader.batches():
        for reading in readings_of(rows, work.ontology):
            for number, window in enumerate(windows):
                if window.begin <= reading.time < window.end:
                    found[number].append(reading)
    return found


def _joined(windows: Sequence[Window]) -> list[Window]:
    """The same times as windows that do not meet."""
    joined: list[Window] = []
    for window in sorted(windows):
        if joined and window.begin <= joined[-1].end:
            joined[-1] = Window(joined[-1].begin, max(joined[-1].end, window.end))
        else:
            joined.append(window)
    return joined
