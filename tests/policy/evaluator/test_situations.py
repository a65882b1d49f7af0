"""The judge of situations gives the lines of every worked case. [SI-1 to SI-8, SI-11]"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from rapport.core.detection import detection_lines
from rapport.policy.language.situations import parse_situation_policy
from rapport.site.site import load_site
from support.judge.holding import Reading
from support.judge.situation_world import version_of_tables
from support.judge.situations import judge_situation

CASES = Path(__file__).parents[2] / "data" / "situations"
NAMES = sorted(path.stem for path in CASES.glob("*.dpl"))
SITE = load_site(CASES, policies=[])


def recorded() -> list[Reading]:
    """The readings of all sources of the site."""
    found: list[Reading] = []
    for source in SITE.ontology.sources.values():
        with (CASES / source.events).open(newline="") as file:
            found += [
                Reading(
                    int(row[source.time]),
                    row[source.id],
                    source.stream,
                    row[source.key],
                    tuple(float(row[name]) for name in source.value),
                    source.name,
                )
                for row in csv.DictReader(file)
            ]
    return found


READINGS = recorded()
TABLES = [version_of_tables(SITE.tables)]


@pytest.mark.parametrize("name", NAMES)
def test_the_judge_gives_the_expected_lines(name: str) -> None:
    tree = parse_situation_policy(name, (CASES / f"{name}.dpl").read_text())
    verdict = judge_situation(tree, SITE.ontology, TABLES, READINGS)
    expected = (CASES / f"{name}.expected.jsonl").read_bytes()
    assert detection_lines(verdict.detections) == expected


def test_all_thirty_seven_cases_are_there() -> None:
    assert len(NAMES) == 37
    assert SITE.ontology.zone == "Europe/Berlin"
