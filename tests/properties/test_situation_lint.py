"""What lint calls never true, always true or never cleared is so in every world. [SI-13]"""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rapport.core.times import parse_time
from rapport.kernel.clock import Chance
from rapport.policy.compiler.compile import compile_situation
from support.examples import examples
from support.situation_worlds import (
    NAME,
    ONTOLOGY,
    SituationTables,
    SituationWorld,
    judge_world,
    varied_world,
)
from support.varied.sites import Draws

pytestmark = pytest.mark.slow

WORDS = ("above", "below", "at least", "at most", "is", "is not")
VALUES = (
    ("temperature of S", ("10 degC", "20 degC", "68 degF", "30 degC")),
    ("humidity of S", ("20 %", "40 %")),
    ("count of humidity of S in the last 5 s", ("0", "1", "2")),
    ("max of temperature of S in the last 5 s", ("20 degC", "30 degC")),
)
OTHERS = (
    "no temperature of S for 3 s",
    "time is between 22:00 and 23:00",
    "some station T with (humidity of T above 30 % AND humidity of T below 30 %)",
    "no station T with (humidity of T above 30 % AND humidity of T below 30 %)",
)
LINTED = ("never_fires", "always_true", "never_cleared")


def expression(draws: Draws, depth: int) -> str:
    """A condition about S."""
    form = draws.randint(0, 5) if depth else 9
    if form <= 3:
        joined = draws.choice((" AND ", " OR "))
        parts = [expression(draws, depth - 1) for _part in range(draws.randint(2, 3))]
        return f"({joined.join(parts)})"
    if form == 4:
        return f"NOT ({expression(draws, depth - 1)})"
    if form == 5:
        return f"(({expression(draws, depth - 1)}) for {draws.randint(1, 3)} s)"
    if draws.randint(0, 5) == 5:
        return draws.choice(OTHERS)
    value, constants = draws.choice(VALUES)
    return f"{value} {draws.choice(WORDS)} {draws.choice(constants)}"


def policy(draws: Draws) -> str:
    cleared = f"cleared by\n  {expression(draws, 1)}\n" if draws.randint(0, 1) else ""
    named = f"situation\n  {expression(draws, 2)}\n{cleared}"
    alias = "concepts\n  station S\n"
    # An alias that nothing names is refused.
    named = named if " of S " in named else named.replace("\n", "\n  humidity of S above 1 %\n", 1)
    return f"{alias}{named}actions\n  go\n"


def judged(draws: Draws) -> Counter[str]:
    """Checks one policy over one world; what lint said and what happened."""
    text = policy(draws)
    problems = compile_situation(text, name=NAME, ontology=ONTOLOGY).problems
    said = {problem.code.removeprefix("policy.") for problem in problems}
    world = varied_world(draws, ("temperature", "humidity"), changing_tables=False)
    found = judge_world(world, text).detections
    begins = [one for one in found if one.began is None]
    ends = [one for one in found if one.began is not None]
    if "never_fires" in said:
        assert not begins, text
    if "never_cleared" in said or ("always_true" in said and "cleared by" not in text):
        assert not ends, text
    met = Counter({code: 1 for code in LINTED if code in said})
    return met + Counter(begins=bool(begins), ends=bool(ends))


@settings(max_examples=examples(80), suppress_health_check=list(HealthCheck), deadline=None)
@given(st.randoms(use_true_random=False))
def test_lint_is_true_of_every_world(draws: Draws) -> None:
    judged(draws)


def test_everything_is_said_and_happens_often() -> None:
    met: Counter[str] = Counter()
    for seed in range(160):
        met += judged(Chance(seed))
    assert all(met[code] >= 3 for code in LINTED), met
    assert met["begins"] > 30, met
    assert met["ends"] > 15, met


HOURS = ("00:00", "04:30", "08:00", "12:00", "22:00", "23:15")
DAYS = ("", " on Mon-Fri", " on Sat, Sun", " on Fri", " on Sun-Tue")
MONDAY = parse_time("2024-01-08T00:00:00+01:00")
WEEK_MS = 7 * 86_400_000


def window(draws: Draws) -> str:
    days = draws.choice(DAYS)
    negation = draws.choice(("", "not "))
    first, last = draws.choice(HOURS), draws.choice((*HOURS, "24:00"))
    if first == last or draws.randint(0, 5) == 5:
        return f"time is {negation}on{days.removeprefix(' on') or ' Wed'}"
    return f"time is {negation}between {first} and {last}{days}"


def clock_expression(draws: Draws, depth: int) -> str:
    if not depth:
        return window(draws)
    parts = [clock_expression(draws, depth - 1) for _part in range(draws.randint(2, 3))]
    return f"({draws.choice((' AND ', ' OR ')).join(parts)})"


def judged_week(draws: Draws) -> Counter[str]:
    """Checks one expression of times over a week, which shows every time there is."""
    text = f"concepts\nsituation\n  {clock_expression(draws, draws.randint(1, 2))}\nactions\n  go\n"
    problems = compile_situation(text, name=NAME, ontology=ONTOLOGY).problems
    said = {problem.code.removeprefix("policy.") for problem in problems}
    world = SituationWorld(
        tables=(SituationTables().version(),),
        readings=(),
        start=MONDAY,
        until=MONDAY + WEEK_MS,
        ontology=msgspec.structs.replace(ONTOLOGY, zone="Europe/Berlin"),
    )
    found = judge_world(world, text)
    is_ever = bool(found.detections)
    is_always = [one.time for one in found.detections] == [MONDAY]
    assert ("never_fires" in said) == (not is_ever), text
    assert ("always_true" in said) == is_always, text
    return Counter(never=not is_ever, always=is_always, both=is_ever and not is_always)


@settings(suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_of_times_of_day_lint_says_what_a_week_shows(draws: Draws) -> None:
    judged_week(draws)


def test_times_that_never_and_always_meet_are_drawn_often() -> None:
    met: Counter[str] = Counter()
    for seed in range(60):
        met += judged_week(Chance(seed))
    assert min(met["never"], met["always"], met["both"]) >= 3, met
