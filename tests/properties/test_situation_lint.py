"""What lint calls never true, always true or never cleared is so in every world. [SI-13]"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rapport.kernel.clock import Chance
from rapport.policy.compiler.compile import compile_situation
from support.situation_worlds import NAME, ONTOLOGY, judge_world, varied_world
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


@settings(max_examples=80, suppress_health_check=list(HealthCheck), deadline=None)
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
