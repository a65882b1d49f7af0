"""A sweep: other values of a constant as the policy's text has it. [SI-12]"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from rapport.cli.main import OK, WRONG_USE, run
from rapport.core.errors import InvalidInput
from rapport.pipeline.backtest.backtest_page import sweep_page
from rapport.pipeline.backtest.contenders import choose, with_text
from rapport.pipeline.backtest.execution import BackTestWork, run_here
from rapport.pipeline.backtest.find_history import find_history
from rapport.pipeline.backtest.sweep import Sweep, SweepResult, constants_of, run_sweep, swept
from rapport.pipeline.drawing.calendar import Calendar
from rapport.site.site import Site
from tests.pipeline.backtest.test_episodes import MINUTE, make_site

TEXT = """concepts
  station S  # not 50 ug/m3
situation
  mean of pm10 of S in the last 24 h (at least 18 readings) above 50 ug/m3
  temperature of S above -1.5 degC AND at least 2 person B with (B is within 5m of S)
actions
  say "above 50 ug/m3"
"""


@pytest.fixture(scope="module")
def freezers(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return make_site(tmp_path_factory.mktemp("swept"))


def result_of(site: Site, name: str, given: str) -> SweepResult:
    policy, sweep = choose(site, name, list), Sweep.parse(given)
    contenders = swept(policy, sweep, site.ontology.concepts, lambda t: with_text(site, policy, t))
    history = find_history(site, f"probes={site.directory / 'history'}")
    work = BackTestWork.of(site, [one.plan for one in contenders], history)
    return run_sweep(work, sweep, policy, contenders, run_here, engine="local", zone="UTC")


def test_constants_are_those_before_the_actions_with_their_units() -> None:
    found = [one.text for one in constants_of(TEXT, ["person"])]
    assert found == ["24 h", "18", "50 ug/m3", "-1.5 degC", "2", "5 m"]


def test_the_constant_is_replaced_where_the_conditions_have_it() -> None:
    texts = Sweep.parse("50 ug/m3=30..80 by 25").texts(TEXT)
    assert texts == [
        TEXT.replace("above 50 ug/m3\n  temp", f"above {value} ug/m3\n  temp")
        for value in (30, 55, 80)
    ]
    (colder,) = Sweep.parse("-1.5 degC = -3.5 .. -3.5 by 1").texts(TEXT)
    assert "above -3.5 degC AND" in colder


def test_steps_are_exact() -> None:
    sweep = Sweep.parse("1 m=0.1..0.5 by 0.1")
    assert sweep.values == tuple(map(Decimal, ("0.1", "0.2", "0.3", "0.4", "0.5")))
    assert sweep.label(sweep.values[2]) == "0.3 m"


def test_a_constant_that_does_not_occur_is_answered_with_the_nearest() -> None:
    with pytest.raises(InvalidInput) as caught:
        Sweep.parse("55 ug/m3=30..80 by 5").texts(TEXT, ["person"])
    assert caught.value.code == "backtest.no_constant"
    assert caught.value.message == "the policy has no constant 55 ug/m3"
    assert caught.value.hint.startswith("it has 50 ug/m3, ")


@pytest.mark.parametrize(
    "given",
    [
        "50 ug/m3",
        "50 ug/m3=30..80",
        "50 ug/m3=80..30 by 5",
        "50 ug/m3=30..80 by 0",
        "50 ug/m3=30..80 by -5",
        "50 ug/m3=x..80 by 5",
        "50 ug/m3=30..inf by 5",
        "=30..80 by 5",
        "1 m=0..1000000 by 1",
    ],
)
def test_what_is_not_a_sweep_is_refused(given: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Sweep.parse(given)
    assert caught.value.code == "backtest.bad_sweep"
    assert caught.value.hint


def test_every_value_gives_its_episodes_and_hours_in_one_scan(freezers: Site) -> None:
    result = result_of(freezers, "low", "-15 degC=-21..-6 by 5")
    shown = [
        (one.value, one.figures.episodes, one.figures.total_ms // MINUTE)
        for one in result.rows
        if one.figures is not None
    ]
    assert shown == [
        ("-21 degC", 1, 18),
        ("-16 degC", 2, 12),
        ("-11 degC", 1, 6),
        ("-6 degC", 0, 0),
    ]
    page = sweep_page(result, Calendar())
    assert "Episodes, at most 2" in page
    assert "Hours, at most 0.3" in page


def test_conditions_are_swept_too(freezers: Site) -> None:
    result = result_of(freezers, "once", "-10 degC=-15..-5 by 5")
    assert [(one.value, one.detections, one.figures) for one in result.rows] == [
        ("-15 degC", 12, None),
        ("-10 degC", 6, None),
        ("-5 degC", 0, None),
    ]


def test_the_command_shows_a_table_and_refuses_what_is_about_one_policy(
    freezers: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["backtest", "low", "--site", str(freezers.directory)]
    command += ["--history", f"probes={freezers.directory / 'history'}"]
    command += ["--sweep", "-15 degC=-16..-6 by 5"]
    assert run([*command, "--report", str(tmp_path / "page.html")]) == OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "low  with other values of -15 degC"
    assert [line.split() for line in lines[4:]] == [
        ["value", "episodes", "hours", "longest", "still", "open"],
        ["-16", "degC", "2", "0.2", "6", "min", "1"],
        ["-11", "degC", "1", "0.1", "6", "min", "0"],
        ["-6", "degC", "0", "0.0", "0", "ms", "0"],
    ]
    assert "<svg" in (tmp_path / "page.html").read_text()
    assert run([*command, "--compare", "high"]) == WRONG_USE
    assert "--compare is about one policy" in capsys.readouterr().err
