"""The direct evaluator gives the expected detections of every check."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from rapport.core.detection import detection_lines
from rapport.site.site import load_site
from support.judge.evaluator import evaluate
from support.judge.occurrences import Reading

CHECK = Path(__file__).parents[2] / "data" / "checks" / "small-policies"
SITE = load_site(CHECK)


def readings() -> list[Reading]:
    with (CHECK / "events.csv").open() as file:
        return [
            Reading(
                int(row["ts"]),
                row["id"],
                "person.position",
                row["person"],
                (float(row["x"]), float(row["y"])),
            )
            for row in csv.DictReader(file)
        ]


@pytest.mark.parametrize("name", sorted(SITE.policies))
def test_the_evaluator_gives_the_expected_detections(name: str) -> None:
    tree = SITE.policies[name].tree
    found = evaluate(tree, SITE.ontology, SITE.tables, readings(), window_ms=SITE.window_ms)
    assert detection_lines(found) == (CHECK / f"{name}.expected.jsonl").read_bytes()


def test_all_twenty_checks_are_there() -> None:
    assert len(SITE.policies) == 20
