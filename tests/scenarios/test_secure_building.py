"""The scenes, without doors or clocks: sensors' words to readings to detections."""

from pathlib import Path

import msgspec
import pytest

from rapport.core.event import Event, StoredEvent
from rapport.core.ids import content_id
from rapport.mediation.declare import interpretations_from_site
from rapport.mediation.transformer import Transformer
from rapport.policy.readings import readings_from_events
from rapport.policy.runners.local import LocalRunner
from rapport.scenarios.secure_building.play import prepare_site
from rapport.scenarios.secure_building.scenes import EXPECTED, EXPECTED_UNDECIDED, SITE, reports
from rapport.site.bindings import source_bindings
from rapport.site.site import Site, check_site, load_site

START_MS = 1_772_442_000_000


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The site as it is played: the reader at the gate promises to be heard."""
    directory: Path = tmp_path_factory.mktemp("building") / "site"
    return load_site(
        prepare_site(
            directory,
            mail_port=1,
            phone_url="http://127.0.0.1:1/",
            answer_within="60s",
            gate_is_watched=True,
        )
    )


@pytest.fixture(scope="module")
def readings(site: Site) -> list[Event]:
    """Every report of the bound sources as a reading, in order of arrival."""
    found, problems = interpretations_from_site(site.file, site.directory, site.tables.columns())
    assert problems == []
    transformers = {
        name: Transformer.build(found[binding.interpretation], binding, lookups=site.tables)
        for name, binding in source_bindings(site.ontology).items()
    }
    made = []
    for number, report in enumerate(reports(START_MS), start=1):
        if report.source in transformers:
            data = msgspec.json.encode(report.payload)
            raw = Event(report.source, content_id(data.decode()), "raw", "", START_MS, data)
            accepted, rejected = transformers[report.source].apply_many(
                [StoredEvent(number, 0, raw)]
            )
            assert rejected == []
            made += accepted
    return made


def test_the_site_has_no_problems() -> None:
    assert [problem for problem in check_site(SITE) if problem.severity == "error"] == []


@pytest.mark.parametrize("batch", [1, 7, 10_000])
def test_only_the_scenes_that_deserve_it_raise_an_alarm(
    site: Site, readings: list[Event], batch: int
) -> None:
    plans = [compiled.plan for compiled in site.policies.values()]
    runner = LocalRunner(
        plans, site.tables, lateness_ms=site.lateness_ms, sources=site.ontology.sources
    )
    found = []
    for start in range(0, len(readings), batch):
        found += runner.feed(readings_from_events(readings[start : start + batch], site.ontology))
    found += runner.finish()
    assert runner.late == 0
    assert sorted((one.bindings["A"], one.bindings["R"]) for one in found) == sorted(EXPECTED)
    undecided = [
        (one.bindings["A"], one.bindings["R"], one.silent) for one in runner.take_undecided()
    ]
    assert undecided == list(EXPECTED_UNDECIDED)


def test_without_its_promise_the_silence_of_the_reader_is_taken_at_its_word(
    readings: list[Event],
) -> None:
    site = load_site(SITE)
    plans = [compiled.plan for compiled in site.policies.values()]
    runner = LocalRunner(
        plans, site.tables, lateness_ms=site.lateness_ms, sources=site.ontology.sources
    )
    found = runner.feed(readings_from_events(readings, site.ontology)) + runner.finish()
    alarms = [(one.bindings["A"], one.bindings["R"]) for one in found]
    assert sorted(alarms) == sorted((*EXPECTED, ("p08", "depot")))
    assert runner.take_undecided() == []


def test_readings_that_arrive_later_than_the_site_waits_are_late(readings: list[Event]) -> None:
    site = load_site(SITE)
    plans = [compiled.plan for compiled in site.policies.values()]
    runner = LocalRunner(plans, site.tables, lateness_ms=1_000)
    runner.feed(readings_from_events(readings, site.ontology))
    assert runner.late > 0
