"""Routing rules and message tables as a whole site is checked."""

from __future__ import annotations

import shutil
from pathlib import Path

from rapport.site.site import check_site

CHECKS = Path(__file__).parents[1] / "data" / "checks"

TABLES = """
[[routing]]
type = "TASK"
to = ["component:archive"]

[[routing]]
to = ["component:archive"]

[messages.TASK]
text = "Something to do."

[messages.NOTE]
text = "n"
schema = { type = "text" }
"""


def test_faults_of_rules_and_messages_are_found_with_all_others(tmp_path: Path) -> None:
    site = Path(shutil.copytree(CHECKS / "small-policies", tmp_path / "site"))
    before = (site / "site.toml").read_text(encoding="utf-8")
    (site / "site.toml").write_text(before + TABLES, encoding="utf-8")
    lines = (before + TABLES).splitlines()
    found = [problem for problem in check_site(site) if problem.file == "site.toml"]
    assert [(problem.code, lines[problem.line - 1]) for problem in found] == [
        ("routing.matches_everything", "[[routing]]"),
        ("info.bad_schema", 'schema = { type = "text" }'),
    ]
