"""A back-test of situations: episodes, their lengths and their comparison by overlap. [SI-12]"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.cli.main import run
from rapport.core.detection import Detection
from rapport.core.times import parse_time
from rapport.pipeline.backtest.backtest_page import report_page
from rapport.pipeline.backtest.contenders import choose, opponents
from rapport.pipeline.backtest.contest import BackTestRequest, BackTestRun, make, write_lines
from rapport.pipeline.backtest.episodes import Episodes, only_one_episode
from rapport.pipeline.backtest.execution import BackTestWork, run_here
from rapport.pipeline.backtest.find_history import find_history
from rapport.pipeline.backtest.findings import DetectionColumns
from rapport.pipeline.backtest.pieces import Window
from rapport.pipeline.drawing.calendar import Calendar
from rapport.policy.explain.why_not import WhyNotQuestion
from rapport.site.explain import recorded_answer
from rapport.site.site import Site, load_site

MINUTE = 60_000
START = parse_time("2025-03-01")
SITE = """
[concepts.freezer.attributes]
temperature = "number"
[concepts.freezer.units]
temperature = "degC"
[tables.freezers]
concept = "freezer"
csv = "freezers.csv"
key = "id"
[sources.probes]
concept = "freezer"
attribute = "temperature"
key = "freezer"
value = "value"
[policies]
files = ["*.dpl"]
[peers.chief]
addresses = ["inbox:"]
[actions."call"]
send_to = "peer:chief"
text = "warm"
"""
WARM = (
    "concepts\n  freezer F\nsituation\n  temperature of F above {} degC for 2 min\n"
    "cleared by\n  temperature of F below -17 degC\nactions\n  call\n"
)
# A reading a minute: two peaks above -10, one long one above -15.
LEVELS = [-20, -20, -9, -9, -9, -12, -12, -9, -9, -9, -20, -20, -14, -14, -14, -14]


def make_site(folder: Path) -> Site:
    (folder / "site.toml").write_text(SITE)
    (folder / "freezers.csv").write_text("id\nf1\nf2\n")
    (folder / "low.dpl").write_text(WARM.format(-15))
    (folder / "high.dpl").write_text(WARM.format(-10))
    (folder / "once.dpl").write_text(
        "concepts\n  freezer F\nconditions\n  temperature of F above -10 degC\nactions\n  call\n"
    )
    lines = ["id,time,freezer,value"]
    for number, level in enumerate(LEVELS):
        lines.append(f"a{number},{START + number * MINUTE},f1,{level}")
    lines.append(f"b1,{START + 20 * MINUTE},f2,-20")
    (folder / "history").mkdir()
    (folder / "history" / "probes.csv").write_text("\n".join(lines) + "\n")
    return load_site(folder, policies=[])


@pytest.fixture(scope="module")
def freezers(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return make_site(tmp_path_factory.mktemp("freezers"))


def back_tested(
    site: Site, *names: str, period: Window | None = None, explain: int = 0
) -> BackTestRun:
    contenders, by = [choose(site, name, list) for name in names], list[str]()
    if len(names) > 1:
        first, second, by = opponents(*contenders)
        contenders = [first, second]
    history = find_history(site, f"probes={site.directory / 'history'}")
    work = BackTestWork.of(site, [one.plan for one in contenders], history, period=period)
    return make(
        work, contenders, by, run_here, Calendar(), BackTestRequest(show=9, explain=explain)
    )


def test_episodes_are_counted_and_measured_and_an_open_one_lasts_to_the_end(
    freezers: Site,
) -> None:
    told = back_tested(freezers, "low").told
    figures = told.tallies[0].episodes
    assert figures is not None
    # From minute 4 to 10, and from minute 14 to the last reading at minute 20.
    assert (figures.episodes, figures.open) == (2, 1)
    assert (figures.total_ms, figures.longest_ms) == (12 * MINUTE, 6 * MINUTE)
    assert [(one.detection.time - START, one.lasted_ms, one.is_open) for one in told.examples] == [
        (4 * MINUTE, 6 * MINUTE, False),
        (14 * MINUTE, 6 * MINUTE, True),
    ]


def test_a_lower_limit_does_not_seem_to_find_less(freezers: Site) -> None:
    made = back_tested(freezers, "high", "low")
    found = made.told.comparison
    assert found is not None
    # The long episode of `low` began and ended at other times, and covers that of `high`.
    assert (found.both, found.only_first, found.only_second) == (1, 0, 1)
    assert found.of_episodes
    turned = back_tested(freezers, "low", "high").told.comparison
    assert turned is not None
    assert (turned.both, turned.only_first, turned.only_second) == (1, 1, 0)


def test_a_situation_is_compared_with_conditions(freezers: Site) -> None:
    found = back_tested(freezers, "low", "once").told.comparison
    assert found is not None
    assert (found.both, found.only_first) == (1, 1)


def test_an_episode_of_before_the_period_lasts_into_it_and_is_cut_there(freezers: Site) -> None:
    period = Window(START + 6 * MINUTE, START + 9 * MINUTE)
    figures = back_tested(freezers, "low", period=period).told.tallies[0].episodes
    assert figures is not None
    assert (figures.episodes, figures.open) == (1, 1)
    assert figures.total_ms == 3 * MINUTE - 1  # up to the last millisecond of the period


def test_what_is_due_in_the_period_without_a_reading_is_found(freezers: Site) -> None:
    """The situation at minute 14 falls due before the reading of that minute is in the period."""
    period = Window(START + 13 * MINUTE, START + 14 * MINUTE + 1)
    told = back_tested(freezers, "low", period=period).told
    assert [one.detection.time - START for one in told.examples] == [14 * MINUTE]


def test_lines_have_ends_and_say_which_version_found_them(freezers: Site, tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        write_lines(back_tested(freezers, "low", "high"), file)
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [(one["found_by"], one["time"] - START, "began" in one) for one in lines] == [
        ("both", 4 * MINUTE, False),
        ("both", 10 * MINUTE, True),
        ("first", 14 * MINUTE, False),
    ]


def test_the_page_tells_episodes_and_what_overlaps(freezers: Site) -> None:
    page = report_page(back_tested(freezers, "high", "low").told, Calendar())
    assert "1 episodes of high overlap one of low about the same F" in page
    assert "Episodes of low per day" in page
    assert "<b>12 min</b>low in all" in page
    assert "6 min, open at the end" in page


def test_an_episode_is_explained_as_why_not_explains_its_beginning(freezers: Site) -> None:
    told = back_tested(freezers, "low", explain=9).told
    assert len(told.examples) == 2
    for one in told.examples:
        question = WhyNotQuestion(at=one.detection.time, given=one.detection.bindings, within_ms=0)
        file = f"probes={freezers.directory / 'history' / 'probes.csv'}"
        judged = recorded_answer(freezers, "low", question, [file]).situation
        assert one.why is not None
        assert one.why.situation == judged
        assert judged is not None
        assert judged.truth == "true"
    [atom] = judged.atoms
    assert (atom.atom.distance, atom.atom.unit) == (1.0, "K")
    assert atom.since == START + 14 * MINUTE


def test_of_two_versions_the_other_one_shows_how_it_stood(freezers: Site) -> None:
    made = back_tested(freezers, "high", "low", explain=1).told
    assert made.comparison is not None
    [one] = made.comparison.examples
    assert one.why is not None
    assert one.why_not is not None
    assert one.why.situation is not None
    assert one.why_not.situation is not None
    assert (one.why.policy, one.why.situation.truth) == ("low", "true")
    assert (one.why_not.policy, one.why_not.situation.truth) == ("high", "false")
    assert one.why_not.situation.atoms[0].atom.distance == -4.0
    page = report_page(made, Calendar())
    assert "4 K below" in page
    assert "the situation is false" in page


def test_a_situation_and_conditions_explain_each_other(freezers: Site) -> None:
    found = back_tested(freezers, "low", "once", explain=1).told.comparison
    assert found is not None
    [one] = [each for each in found.examples if each.found_by == "first"]
    assert one.why is not None
    assert one.why.situation is not None
    assert one.why_not is not None
    assert one.why_not.situation is None
    turned = back_tested(freezers, "once", "low", explain=1).told.comparison
    assert turned is not None
    [other] = [each for each in turned.examples if each.found_by == "second"]
    assert other.why == one.why


def test_the_command_line_explains_an_episode(
    freezers: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    history = f"probes={freezers.directory / 'history'}"
    command = ["backtest", "low", "--history", history, "--site", str(freezers.directory)]
    assert run([*command, "--show", "1", "--explain"]) == 0
    said = capsys.readouterr().out
    assert "temperature of F > -15 for 2min is true: -9 degC, 6 K above, since 2025-03-01T" in said


SPANS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 30), st.integers(1, 9), st.booleans()),
    max_size=12,
)


def episodes(
    spans: list[tuple[str, int, int, bool]],
) -> tuple[Episodes, list[tuple[str, int, int]]]:
    """Episodes of the spans that do not repeat a beginning, and their ends as a plain list."""
    columns, plain, ended = DetectionColumns(), list[tuple[str, int, int]](), 50
    found: list[Detection] = []
    for who, begin, length, is_open in {span[:2]: span for span in spans}.values():
        if any(one[0] == who and one[1] < begin + length and begin < one[2] for one in plain):
            continue  # one binding has one situation at a time
        if is_open and any(one[0] == who and one[2] > begin for one in plain):
            continue
        common = {"policy": "p", "bindings": {"X": who}, "causes": ()}
        found.append(Detection(time=begin, **common))  # type: ignore[arg-type]
        if not is_open:
            found.append(Detection(time=begin + length, began=begin, **common))  # type: ignore[arg-type]
        plain.append((who, begin, ended + 1 if is_open else begin + length))
    columns.add(found)
    return Episodes(columns.of("p", None, None), None, ended, is_situation=True), plain


@given(SPANS, SPANS)
def test_episodes_are_alone_if_no_other_of_the_same_identity_overlaps(
    first: list[tuple[str, int, int, bool]], second: list[tuple[str, int, int, bool]]
) -> None:
    ours, here = episodes(first)
    theirs, there = episodes(second)
    alone = only_one_episode(ours, theirs, ["X"])

    def is_alone(one: tuple[str, int, int], others: list[tuple[str, int, int]]) -> bool:
        return not any(
            one[0] == other[0] and one[1] < other[2] and other[1] < one[2] for other in others
        )

    for flags, side, own, others in (
        (alone[0], ours, here, there),
        (alone[1], theirs, there, here),
    ):
        named = [one for part in side.findings.identities("X") for one in part.to_pylist()]
        found = sorted(zip(named, side.begins.tolist(), flags.tolist(), strict=True))
        assert found == sorted((one[0], one[1], is_alone(one, others)) for one in own)
        assert side.figures().open == int(np.sum(side.is_open))
