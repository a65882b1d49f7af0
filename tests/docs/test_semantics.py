"""Every example of docs/semantics.md is what evaluator and local runner say. [PO-7, UX-8]"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rapport.site.site import Site, load_site
from support.judge.trials import judged, outcome_lines, read_written, run_locally, trial_of

PAGE = (Path(__file__).parents[2] / "docs" / "semantics.md").read_text(encoding="utf-8")
TABLES = ("people.csv", "rooms.csv", "stations.csv", "minimum.csv")
EXAMPLES = re.findall(r"```example\n(.*?)```", PAGE, re.DOTALL)
WINDOW_MS = 100


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The page's own site, word by word."""
    directory = tmp_path_factory.mktemp("examples")
    [declared] = blocks("toml")
    (directory / "site.toml").write_text(declared, encoding="utf-8")
    for name, rows in zip(TABLES, blocks("csv"), strict=True):
        (directory / name).write_text(rows, encoding="utf-8")
    return load_site(directory)


def test_the_page_has_an_example_for_every_rule() -> None:
    rules = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    without = [rule.splitlines()[0] for rule in rules if "```example" not in rule]
    assert without == ["1. Readings and their order", "12. Live", "13. Limits"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.splitlines()[1].strip()[:60])
def test_an_example_says_what_is_found(site: Site, example: str) -> None:
    [aliases] = blocks("dpl")
    concepts = [line.strip() for line in aliases.splitlines()[1:]]
    written = read_written(example)
    trial = trial_of(written, concepts, site.ontology, site.tables, WINDOW_MS)
    assert outcome_lines(judged(trial)) == list(written.detections)
    for batch in (0, 1):
        assert outcome_lines(run_locally(trial, batch=batch)) == list(written.detections)
