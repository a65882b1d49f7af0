"""A recorded site with circles, polygons, longitudes and latitudes is replayed as judged."""

from __future__ import annotations

import pytest

from rapport.core.detection import detection_lines
from rapport.policy.replay.replay import recordings_of, replay
from support.area_site import DIRECTORY, area_site, recorded_readings
from support.judge.evaluator import evaluate

SITE = area_site()
EXPECTED = (DIRECTORY / "expected.jsonl").read_bytes()


@pytest.mark.parametrize("batch", [1, 3, 10_000])
def test_the_replay_gives_the_expected_bytes(batch: int) -> None:
    result = replay(
        SITE.ontology,
        SITE.tables,
        [compiled.plan for compiled in SITE.policies.values()],
        recordings_of(SITE.ontology, SITE.directory, []),
        lateness_ms=0,
        tables_version=SITE.tables.version(),
        batch=batch,
    )
    assert detection_lines(result.detections) == EXPECTED


@pytest.mark.parametrize("name", sorted(SITE.policies))
def test_the_judge_gives_the_expected_bytes(name: str) -> None:
    tree = SITE.policies[name].tree
    readings = recorded_readings(SITE)
    found = evaluate(tree, SITE.ontology, SITE.tables, readings, window_ms=SITE.window_ms)
    own = [line for line in EXPECTED.splitlines(True) if f'"policy":"{name}"'.encode() in line]
    assert own
    assert detection_lines(found) == b"".join(own)
