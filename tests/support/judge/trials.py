"""One policy over one list of readings, judged and run, and the short text in which such a trial
and its outcome are written down on pages and in tests. [PO-7, PO-8]
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from rapport.core.detection import Detection, Undecided, detection_order, unique_undecided
from rapport.core.errors import InvalidInput, PolicyError
from rapport.core.schema import AttributeType
from rapport.policy.compiler.compile import compile_conditions
from rapport.policy.language.parser import parse_policy
from rapport.policy.ontology import Ontology
from rapport.policy.operators.base import PullData
from rapport.policy.runner.local import LocalRunner
from support.judge.evaluator import Verdict, judge
from support.judge.holding import Reading
from support.judge.situation_world import TableVersion
from support.varied.policies import varied_policy
from support.varied.sites import SPANS_MS, Draws, varied_site
from support.varied.worlds import readings_batch

_READING = re.compile(r"(-?\d+)\s+(\S+)\s+(\w+) of (\S+)\s*=\s*(.*?)(?:\s+from (\S+))?\Z")
_SIZES = (1, 2, 3, 7, 100)
_TRIES = 20
_SECTIONS = ("conditions", "readings", "detections")


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What is tried."""

    text: str
    ontology: Ontology
    pull: PullData
    readings: tuple[Reading, ...]
    window_ms: int
    tables: tuple[TableVersion, ...] = ()
    """What a guard looks up; else `pull`."""


def judged(trial: Trial) -> Verdict:
    """What the evaluator says."""
    tree = parse_policy(trial.text, name="p")
    return judge(
        tree,
        trial.ontology,
        trial.pull,
        trial.readings,
        window_ms=trial.window_ms,
        tables=trial.tables,
    )


def run_locally(trial: Trial, *, batch: int = 0) -> Verdict:
    """What the local runner finds, fed in the order given, `batch` readings at a time (0: all)."""
    plan = compile_conditions(
        trial.text, name="p", ontology=trial.ontology, window_ms=trial.window_ms
    ).plan
    runner = LocalRunner([plan], trial.pull, lateness_ms=0, sources=trial.ontology.sources)
    found: list[Detection] = []
    undecided: list[Undecided] = []
    size = batch or max(1, len(trial.readings))
    for first in range(0, len(trial.readings), size):
        part = trial.readings[first : first + size]
        found += runner.feed(readings_batch(part, trial.ontology))
        undecided += runner.take_undecided()
    found += runner.finish()
    undecided += runner.take_undecided()
    _check_each_once(found, undecided)
    return verdict_of(found, undecided, runner.suppressed()["p"])


def run_any_way(draws: Draws, trial: Trial, *, lateness_ms: int) -> Verdict:
    """What the local runner finds, fed in any order within the lateness, cut anywhere, saved and
    restored now and then.
    """
    plan = compile_conditions(
        trial.text, name="p", ontology=trial.ontology, window_ms=trial.window_ms
    ).plan

    def fresh() -> LocalRunner:
        return LocalRunner(
            [plan], trial.pull, lateness_ms=lateness_ms, sources=trial.ontology.sources
        )

    delays = [draws.randint(0, lateness_ms) for _ in trial.readings]
    arriving = sorted(
        zip(trial.readings, delays, strict=True), key=lambda one: one[0].time + one[1]
    )
    arrivals = [reading for reading, _ in arriving]
    runner = fresh()
    found: list[Detection] = []
    undecided: list[Undecided] = []
    while arrivals:
        size = draws.choice(_SIZES)
        found += runner.feed(readings_batch(arrivals[:size], trial.ontology))
        undecided += runner.take_undecided()
        arrivals = arrivals[size:]
        if draws.randint(0, 2) == 0:
            saved, runner = runner.snapshot(), fresh()
            runner.restore(saved)
    assert runner.late == 0
    found += runner.finish()
    undecided += runner.take_undecided()
    _check_each_once(found, undecided)
    return verdict_of(found, undecided, runner.suppressed()["p"])


def _check_each_once(found: Sequence[Detection], undecided: Sequence[Undecided]) -> None:
    """A runner gives out nothing twice, in one batch or in two."""
    ids = [one.id() for one in found] + [one.id() for one in undecided]
    assert len(ids) == len(set(ids)), sorted(id for id in ids if ids.count(id) > 1)


def varied_trial(draws: Draws, *, events: int = 40) -> Trial:
    """A random policy over a random site, such that the compiler takes it."""
    site = varied_site(draws, events=events)
    window_ms = draws.choice((*SPANS_MS[1:], 1_000))
    for _ in range(_TRIES):
        text = varied_policy(draws, site.ontology)
        trial = Trial(
            text=text,
            ontology=site.ontology,
            pull=site.pull,
            readings=site.readings,
            window_ms=window_ms,
        )
        try:
            compile_conditions(text, name="p", ontology=site.ontology, window_ms=window_ms)
        except PolicyError as refused:
            last = refused
        else:
            return trial
    raise last


def verdict_of(
    found: Iterable[Detection], undecided: Iterable[Undecided], suppressed: int
) -> Verdict:
    """What a runner found, as the evaluator would say it: in order, each once, without versions."""
    plain = {one.id(): one for one in (_unversioned(one) for one in found)}
    doubts = unique_undecided(msgspec.structs.replace(one, version="") for one in undecided)
    return Verdict(sorted(plain.values(), key=detection_order), doubts, suppressed)


def _unversioned(detection: Detection) -> Detection:
    return msgspec.structs.replace(detection, version="")


# As text.


class Written(msgspec.Struct, frozen=True):
    """`conditions`, `readings` and `detections`, each a line of its own with lines below it."""

    conditions: tuple[str, ...]
    readings: tuple[str, ...]
    detections: tuple[str, ...]


def read_written(text: str) -> Written:
    """The three sections; raises InvalidInput for a line before the first."""
    sections: dict[str, list[str]] = {name: [] for name in _SECTIONS}
    current = ""
    for line in text.splitlines():
        stripped = line.split(" # ")[0].strip()
        if stripped in sections and not line[:1].isspace():
            current = stripped
        elif stripped:
            if not current:
                raise InvalidInput(f"{line!r} stands in no section", code="trial.no_section")
            sections[current].append(stripped)
    return Written(*(tuple(sections[name]) for name in _SECTIONS))


def trial_of(
    written: Written, concepts: Sequence[str], ontology: Ontology, pull: PullData, window_ms: int
) -> Trial:
    """The trial over a site, with these definitions of aliases."""
    lines = ["concepts", *_indented(concepts), "conditions", *_indented(written.conditions)]
    text = "\n".join([*lines, "actions", "  look", ""])
    readings = tuple(reading_of(line, ontology) for line in written.readings)
    return Trial(text=text, ontology=ontology, pull=pull, readings=readings, window_ms=window_ms)


def reading_of(line: str, ontology: Ontology) -> Reading:
    """`20 e2 position of ann = 5, 5 from gate`; the attribute's name tells the concept."""
    found = _READING.match(line)
    if found is None:
        raise InvalidInput(f"{line!r} is not a reading", code="trial.bad_reading")
    time, id, attribute, key, value, source = found.groups()
    streams = {
        name: kind
        for name, kind in ontology.streams().items()
        if name.partition(".")[2] == attribute
    }
    [(stream, kind)] = streams.items()
    parts = [part.strip() for part in value.split(",")]
    values = tuple(_value(part, kind) for part in parts)
    return Reading(int(time), id, stream, key, values, source or "")


def _value(part: str, kind: AttributeType) -> float | str | bool:
    if kind == "boolean":
        return part == "true"
    return part if kind == "text" else float(part)


def outcome_lines(verdict: Verdict) -> list[str]:
    """`100 A=ann R=lab: e1 e2`, `100 A=ann: e1 (undecided: gate)`, `left out: 2`."""
    lines = [_line(one) for one in verdict.detections]
    lines += [f"{_line(one)} (undecided: {', '.join(one.silent)})" for one in verdict.undecided]
    return lines + ([f"left out: {verdict.suppressed}"] if verdict.suppressed else [])


def _line(found: Detection | Undecided) -> str:
    bindings = " ".join(f"{alias}={item}" for alias, item in sorted(found.bindings.items()))
    causes = " ".join(id for _, id in found.causes)
    return f"{found.time} {bindings}: {causes}".rstrip()


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]
