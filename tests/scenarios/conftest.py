"""Scenes without doors or clocks: what sensors say to readings to detections."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest

from rapport.core.detection import Detection
from rapport.core.event import Event, StoredEvent, content_id
from rapport.mediation.reader import build_transformer
from rapport.policy.runner.local import LocalRunner
from rapport.site.interpretations import interpretations_in_site, source_bindings
from rapport.site.site import Site
from support.event_readings import readings_from_events

ReadingsOf = Callable[[Site, Iterable[Any]], list[Event]]
RunOn = Callable[..., tuple[list[Detection], LocalRunner]]


@pytest.fixture(scope="session")
def readings_of() -> ReadingsOf:
    return _readings_of


@pytest.fixture(scope="session")
def run_on() -> RunOn:
    return _run_on


def _readings_of(site: Site, reports: Iterable[Any]) -> list[Event]:
    """Every report of a bound source as a reading, in order of arrival."""
    meanings = interpretations_in_site(
        site.file, site.directory, site.ontology, site.tables.columns()
    )
    assert [problem for problem in meanings.problems if problem.severity == "error"] == []
    in_force, _problems = meanings.files.activate()
    transformers = {
        name: build_transformer(binding, in_force, lookups=site.tables)
        for name, binding in source_bindings(site.ontology).items()
    }
    made = []
    for number, report in enumerate(reports, start=1):
        if report.source in transformers:
            data = msgspec.json.encode(report.payload)
            raw = Event(
                report.source, content_id(data.decode()), "raw", "", report.arrives_ms, data
            )
            accepted, rejected = transformers[report.source].apply_many(
                [StoredEvent(number, 0, raw)]
            )
            assert rejected == []
            made += accepted
    return made


def _run_on(
    site: Site, readings: list[Event], *, batch: int = 10_000
) -> tuple[list[Detection], LocalRunner]:
    """What the site's policies find, and the runner that found it."""
    plans = [compiled.plan for compiled in site.policies.values()]
    runner = LocalRunner(
        plans, site.tables, lateness_ms=site.lateness_ms, sources=site.ontology.sources
    )
    found = []
    for start in range(0, len(readings), batch):
        found += runner.feed(readings_from_events(readings[start : start + batch], site.ontology))
    return found + runner.finish(), runner
