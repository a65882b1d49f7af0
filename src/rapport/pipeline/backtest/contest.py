"""A back-test from the request to its result and its lines: one policy, or two that are compared.
[PI-9]
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import BinaryIO

import msgspec
import numpy as np

from rapport.core.detection import Detection
from rapport.core.errors import Problem
from rapport.core.times import format_time
from rapport.pipeline.backtest.contenders import Contender, version_of
from rapport.pipeline.backtest.episodes import Episodes, episode_rows, only_one_episode
from rapport.pipeline.backtest.examples import explain
from rapport.pipeline.backtest.execution import BackTestFound, BackTestWork
from rapport.pipeline.backtest.find_history import nothing_in_period
from rapport.pipeline.backtest.findings import (
    BackTest,
    EpisodeFigures,
    Example,
    Findings,
    Flags,
    FoundBy,
    compare,
    only_one,
    tally,
)
from rapport.pipeline.drawing.calendar import Calendar
from rapport.policy.explain.wording import bindings_text
from rapport.policy.situation_plan import SituationPlan

SIDES: tuple[FoundBy, FoundBy] = ("first", "second")


class BackTestRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be told."""

    show: int = 10
    """So many findings of each kind."""
    explain: int = 0
    """So many of them explained."""
    zone: str = "UTC"
    engine: str = "local"
    command: tuple[str, ...] = ()
    """The command that asks the same of another period: the period and --explain are added."""


class BackTestRun(msgspec.Struct, frozen=True, kw_only=True):
    """What is told, and all findings behind it."""

    told: BackTest
    names: list[str]
    """Of the policies."""
    findings: list[Findings]
    only: tuple[Flags, Flags] | None = None
    """Of two versions: which of its findings each has alone."""


def make(
    work: BackTestWork,
    contenders: Sequence[Contender],
    by: Sequence[str],
    run: Callable[[BackTestWork], BackTestFound],
    calendar: Calendar,
    wish: BackTestRequest,
) -> BackTestRun:
    """Runs one or two contenders; `by` are the aliases by which two are compared. Raises
    InvalidInput when the period has no readings.
    """
    found = run(work)
    if not found.events:
        raise nothing_in_period(work.history.label, work.history.span())
    begin = None if work.period is None else work.period.begin
    end = None if work.period is None else work.period.end
    findings = [found.columns.of(one.plan.policy, begin, end) for one in contenders]
    lasting = _episodes(found, contenders, begin, end)
    only: tuple[Flags, Flags] | None = None
    if len(contenders) > 1 and lasting is not None:
        only = only_one_episode(lasting[0], lasting[1], by)
    elif len(contenders) > 1:
        only = _only(found, contenders, by, work)
    shown = findings if lasting is None else [one.findings for one in lasting]
    tallies = [
        tally(
            own,
            calendar,
            label=one.label,
            version=version_of(one),
            show=wish.show,
            suppressed=_suppressed(found, one),
            once_per_ms=one.plan.once_per_ms,
            text=one.text,
            episodes=_figures(lasting, number),
        )
        for number, (one, own) in enumerate(zip(contenders, shown, strict=True))
    ]
    teller = _Teller(work, dict(zip(SIDES, contenders, strict=False)), wish, found.first)
    comparison, examples = None, [Example(detection=one) for one in tallies[0].first]
    if lasting is not None:
        examples = _lasting(lasting[0], examples)
    if only is None:
        examples = teller.told(examples)
    else:
        comparison = compare(
            shown[0], shown[1], only, by, calendar, wish.show, of_episodes=lasting is not None
        )
        if lasting is not None:
            measured = [
                made
                for side, own in zip(SIDES, lasting, strict=True)
                for made in _lasting(own, [e for e in comparison.examples if e.found_by == side])
            ]
            comparison = msgspec.structs.replace(comparison, examples=measured)
        comparison = msgspec.structs.replace(
            comparison, examples=teller.told(comparison.examples, each_side=True)
        )
    told = BackTest(
        policy=contenders[0].label,
        history=work.history.label,
        engine=wish.engine,
        zone=wish.zone,
        events=found.events,
        first=found.first,
        last=found.last,
        begin=begin,
        end=end,
        late=found.late,
        tallies=tallies,
        examples=examples,
        comparison=comparison,
        problems=problems_of(found),
    )
    if only is not None and lasting is not None:
        only = (
            episode_rows(findings[0], lasting[0], only[0]),
            episode_rows(findings[1], lasting[1], only[1]),
        )
    return BackTestRun(
        told=told, names=[one.name for one in contenders], findings=findings, only=only
    )


def problems_of(found: BackTestFound) -> list[Problem]:
    """Rows that could not be used, and policies that failed."""
    return [*_faulty(found), *found.problems]


def _episodes(
    found: BackTestFound, contenders: Sequence[Contender], begin: int | None, end: int | None
) -> list[Episodes] | None:
    """The episodes of each contender; None if no one has a situation."""
    if found.ended is None or not any(isinstance(c.plan, SituationPlan) for c in contenders):
        return None
    episodes = []
    for one in contenders:
        is_situation = isinstance(one.plan, SituationPlan)
        # An episode that began before the period may last into it.
        own = found.columns.of(one.plan.policy, None if is_situation else begin, end)
        episodes.append(Episodes(own, begin, found.ended, is_situation=is_situation))
    return episodes


def _figures(lasting: Sequence[Episodes] | None, number: int) -> EpisodeFigures | None:
    if lasting is None or not lasting[number].is_situation:
        return None
    return lasting[number].figures()


def _lasting(episodes: Episodes, examples: Sequence[Example]) -> list[Example]:
    """Examples of episodes with their lengths."""
    if not episodes.is_situation:
        return list(examples)
    places = np.flatnonzero(np.isin(episodes.begins, [one.detection.time for one in examples]))
    ends, is_open = episodes.ends[places].tolist(), episodes.is_open[places].tolist()
    found = {
        _begin_of(one): (end - one.time, still)
        for one, end, still in zip(
            episodes.findings.at(places.tolist()), ends, is_open, strict=True
        )
    }
    return [
        msgspec.structs.replace(one, lasted_ms=lasted, is_open=still)
        for one in examples
        for lasted, still in [found[_begin_of(one.detection)]]
    ]


def _begin_of(one: Detection) -> tuple[object, ...]:
    return (one.time, *sorted(one.bindings.items()))


def _only(
    found: BackTestFound, contenders: Sequence[Contender], by: Sequence[str], work: BackTestWork
) -> tuple[Flags, Flags]:
    """What only one version found in the period; what the other found around it counts, too."""
    around = work.found_in()
    begin, end = (None, None) if around is None else (around.begin, around.end)
    sides = [found.columns.of(one.plan.policy, begin, end) for one in contenders]
    alone = only_one(sides[0], sides[1], by)
    if work.period is None:
        return alone
    inside = [
        (side.times() >= work.period.begin) & (side.times() < work.period.end) for side in sides
    ]
    return alone[0][inside[0]], alone[1][inside[1]]


class _Teller:
    """Gives examples their commands and, the first few, their explanations."""

    def __init__(
        self,
        work: BackTestWork,
        contenders: Mapping[FoundBy, Contender],
        wish: BackTestRequest,
        began: int | None,
    ) -> None:
        self._work, self._contenders, self._wish, self._began = work, contenders, wish, began

    def told(self, examples: Sequence[Example], *, each_side: bool = False) -> list[Example]:
        """`each_side`: they are of one version only, and the other's why-not is told, too."""
        chosen = [
            one
            for side in SIDES
            for one in _different([each for each in examples if each.found_by == side])[
                : self._wish.explain
            ]
        ]
        contenders = self._contenders
        if not each_side:
            contenders = {"first": self._contenders["first"]}
        found = explain(self._work, chosen, contenders, began=self._began) if chosen else []
        explained = {id(one): done for one, done in zip(chosen, found, strict=True)}
        return [self._named(explained.get(id(one), one)) for one in examples]

    def _named(self, example: Example) -> Example:
        own = self._contenders[example.found_by]
        return msgspec.structs.replace(
            example,
            detection=msgspec.structs.replace(example.detection, policy=own.name),
            command=self._command(example.detection),
        )

    def _command(self, detection: Detection) -> str:
        if not self._wish.command:
            return ""
        period = ("--from", format_time(detection.time), "--to", format_time(detection.time + 1))
        return shlex.join((*self._wish.command, *period, "--explain"))


def _different(examples: Sequence[Example]) -> list[Example]:
    """About different identities first: the next finding about the same ones is mostly alike."""
    seen: set[str] = set()
    fresh: list[Example] = []
    alike: list[Example] = []
    for one in examples:
        about = bindings_text(one.detection.bindings)
        (alike if about in seen else fresh).append(one)
        seen.add(about)
    return fresh + alike


def _suppressed(found: BackTestFound, contender: Contender) -> int | None:
    if contender.plan.once_per_ms is None:
        return 0
    return None if found.suppressed is None else found.suppressed.get(contender.plan.policy, 0)


def _faulty(found: BackTestFound) -> list[Problem]:
    """Rows that could not be used, by reason."""
    return [
        msgspec.structs.replace(
            rows.first,
            message=rows.first.message
            + (f" (and {rows.count - 1:,} more rows)" if rows.count > 1 else ""),
        )
        for rows in found.faulty
    ]


_CHUNK = 10_000
_BOTH, _FIRST, _SECOND = 0, 1, 2
_FOUND_BY = ("both", "first", "second")


class _Line(msgspec.Struct, omit_defaults=True):
    """Field order is the key order of the output."""

    policy: str
    found_by: str
    time: int
    bindings: dict[str, str]
    causes: list[str]
    began: int | None = None


def write_lines(made: BackTestRun, file: BinaryIO) -> None:
    """Writes the detections as `rapport replay` does; of two versions each with `found_by`: both,
    first or second, by time. Memory does not grow with them.
    """
    pieces = made.findings[0].lines(made.names[0]) if made.only is None else _compared(made)
    for piece in pieces:
        file.write(piece)


def _compared(made: BackTestRun) -> Iterator[bytes]:
    assert made.only is not None
    first, second = made.findings
    alone = np.flatnonzero(made.only[1])
    found_by = np.concatenate((np.where(made.only[0], _FIRST, _BOTH), np.full(len(alone), _SECOND)))
    places = np.concatenate((np.arange(len(first)), alone))
    order = np.argsort(np.concatenate((first.times(), second.times()[alone])), kind="stable")
    for start in range(0, len(order), _CHUNK):
        chunk = order[start : start + _CHUNK]
        by, at = found_by[chunk], places[chunk]
        sides = {
            is_second: iter(findings.at(at[(by == _SECOND) == is_second].tolist()))
            for is_second, findings in ((False, first), (True, second))
        }
        lines = [_line(made, next(sides[one == _SECOND]), one) for one in by.tolist()]
        yield b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def _line(made: BackTestRun, one: Detection, by: int) -> _Line:
    return _Line(
        made.names[1 if by == _SECOND else 0],
        _FOUND_BY[by],
        one.time,
        dict(sorted(one.bindings.items())),
        [id for _time, id in one.causes],
        one.began,
    )
