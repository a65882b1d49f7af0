"""A back-test from beginning to end: compared, explained, written, as a page. [PI-9, PO-11]"""

from __future__ import annotations

import io
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from rapport.core.errors import InvalidInput
from rapport.core.times import parse_time
from rapport.pipeline.backtest.backtest_page import report_page
from rapport.pipeline.backtest.contenders import choose, opponents
from rapport.pipeline.backtest.contest import BackTestRequest, BackTestRun, make, write_lines
from rapport.pipeline.backtest.execution import BackTestWork, run_here
from rapport.pipeline.backtest.find_history import find_history
from rapport.pipeline.backtest.findings import BackTest
from rapport.pipeline.backtest.pieces import Window
from rapport.pipeline.drawing.calendar import Calendar
from rapport.site.site import Site

WISH = BackTestRequest(show=4, explain=2, command=("rapport", "backtest", "alone"))


def back_tested(
    site: Site, *names: str, period: Window | None = None, wish: BackTestRequest = WISH
) -> BackTestRun:
    contenders, by = [choose(site, name, list) for name in names], list[str]()
    if len(names) > 1:
        first, second, by = opponents(*contenders)
        contenders = [first, second]
    history = find_history(site, str(site.directory / "history"))
    work = BackTestWork.of(site, [one.plan for one in contenders], history, period=period)
    return make(work, contenders, by, run_here, Calendar(), wish)


@pytest.fixture(scope="module")
def compared(site: Site) -> BackTestRun:
    return back_tested(site, "alone", "slower")


def test_one_policy_is_counted_listed_and_explained(site: Site) -> None:
    told = back_tested(site, "alone").told
    (tally,) = told.tallies
    assert tally.detections == sum(tally.days.values()) > 10
    assert len(told.examples) == 4
    assert [one.why is not None for one in told.examples].count(True) == 2
    for one in told.examples:
        if one.why is not None:
            assert one.why.held is not None
            assert one.why.held.became == "detected"
            assert one.why_not is None
    assert told.examples[0].command.startswith("rapport backtest alone --from 2025-01-03T")
    assert told.comparison is None


def test_a_longer_window_finds_a_part_of_the_same_later(compared: BackTestRun) -> None:
    told = compared.told
    assert told.comparison is not None
    first, second = told.tallies
    assert told.comparison.both == second.detections > 0
    assert told.comparison.only_first == first.detections - second.detections > 0
    assert told.comparison.only_second == 0
    for both, ours, theirs in told.comparison.days.values():
        assert both or ours
        assert not theirs


def test_what_only_one_found_is_explained_by_both(compared: BackTestRun) -> None:
    assert compared.told.comparison is not None
    explained = [one for one in compared.told.comparison.examples if one.why is not None]
    assert explained
    for one in explained:
        assert one.found_by == "first"
        assert one.why is not None
        assert one.why.held is not None
        assert one.why_not is not None
        assert (one.why_not.policy, one.why_not.fired) == ("slower", ())
        assert one.why_not.candidates[0].became == "refuted"


def test_at_the_edge_of_a_period_versions_are_compared_as_in_the_whole(
    site: Site, compared: BackTestRun
) -> None:
    # Up to a time between when the first and when the second version tells of the same.
    assert compared.only is not None
    times = compared.findings[0].times()[~compared.only[0]]
    period = Window(parse_time("2025-01-01"), int(times[0]) + 1)
    made = back_tested(site, "alone", "slower", period=period, wish=BackTestRequest())
    assert made.told.comparison is not None
    inside = compared.findings[0].times() < period.end
    assert made.told.comparison.only_first == int(compared.only[0][inside].sum())
    assert made.told.comparison.only_second == 0


def test_a_period_without_a_reading_is_told(site: Site) -> None:
    night = Window(parse_time("2025-01-01T00:00:00Z"), parse_time("2025-01-01T00:00:01Z"))
    with pytest.raises(InvalidInput) as caught:
        back_tested(site, "alone", period=night)
    assert caught.value.code == "backtest.empty_period"


def test_all_findings_are_written_with_who_found_them(compared: BackTestRun) -> None:
    file = io.BytesIO()
    write_lines(compared, file)
    lines = [msgspec.json.decode(line) for line in file.getvalue().splitlines()]
    told = compared.told.comparison
    assert told is not None
    by = [line["found_by"] for line in lines]
    assert (by.count("both"), by.count("first"), by.count("second")) == (
        told.both,
        told.only_first,
        told.only_second,
    )
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)


def test_the_result_survives_json(compared: BackTestRun) -> None:
    raw = msgspec.json.encode(compared.told)
    assert msgspec.json.decode(raw, type=BackTest) == compared.told


class Checker(HTMLParser):
    """Every element is closed in order; collects what matters."""

    VOID = ("meta", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    return checker


@pytest.mark.parametrize("names", [("alone",), ("alone", "slower")])
def test_the_page_is_whole_and_needs_nothing_else(
    site: Site, names: tuple[str, ...], tmp_path: Path
) -> None:
    page = report_page(back_tested(site, *names).told, Calendar())
    found = checked(page)
    tags = [tag for tag, _attributes in found.seen]
    assert not {"script", "link", "img", "iframe"} & set(tags)
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    plots = [attributes for tag, attributes in found.seen if tag == "svg"]
    assert len(plots) >= 4
    assert all(one["role"] == "img" for one in plots)
    assert tags.count("desc") == len(plots)  # told to who cannot see them
    assert tags.count("details") == len(plots)  # behind each plot its table
    assert tags.count("caption") == tags.count("table")


def test_names_from_data_cannot_change_the_page(site: Site) -> None:
    told = back_tested(site, "alone", wish=BackTestRequest(show=2)).told
    evil = '<script>alert("x")</script>'
    tally = msgspec.structs.replace(told.tallies[0], label=evil, text=evil)
    who = [msgspec.structs.replace(one, top=[(evil, 3)], alias=evil) for one in tally.who]
    tally = msgspec.structs.replace(tally, who=who)
    page = report_page(
        msgspec.structs.replace(told, policy=evil, history=evil, tallies=[tally]), Calendar()
    )
    assert "<script>" not in page
    checked(page)


def test_a_policy_that_never_fires_has_a_page_too(site: Site, tmp_path: Path) -> None:
    never = tmp_path / "never.dpl"
    text = choose(site, "alone", list).text
    never.write_text(text.replace("status='guest'", "status='ghost'"))
    told = back_tested(site, str(never)).told
    assert told.tallies[0].detections == 0
    assert "would never have fired" in report_page(told, Calendar())
