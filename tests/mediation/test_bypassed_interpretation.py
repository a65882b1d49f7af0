"""A source that names root's own type goes past its interpretation; whoever checks is told.
[ME-5, ME-7]
"""

from __future__ import annotations

from pathlib import Path

from rapport.site.site import check_site, load_site

SITE = """
[site]
name = "city"
[concepts.station.attributes]
temperature = "number"
[concepts.station.units]
temperature = "degC"
[interpretations]
files = ["feeds.toml"]
[sources.gardens]
concept = "station"
attribute = "temperature"
interpretation = "gardens"
type = "TYPE"
"""
FEEDS = """
[interpretations.gardens.types.Node]
device = "text"
temperature = "degF"
[[interpretations.gardens.mappings]]
from = "Node"
to = "station"
direction = "in"
rename = { device = "key" }
drop = ["*"]
"""


def problems(directory: Path, type_: str) -> dict[str, str]:
    (directory / "site.toml").write_text(SITE.replace("TYPE", type_))
    (directory / "feeds.toml").write_text(FEEDS)
    return {problem.code: problem.hint for problem in check_site(directory)}


def test_it_is_a_warning_at_the_line_of_the_type_and_refuses_nothing(tmp_path: Path) -> None:
    problems(tmp_path, "station")
    (found,) = [one for one in check_site(tmp_path) if one.code == "source.bypasses_interpretation"]
    line = SITE.splitlines().index('type = "TYPE"') + 1
    assert (found.severity, found.file, found.line) == ("warning", "site.toml", line)
    assert load_site(tmp_path).faults == ()


def test_a_source_that_sends_the_mapped_type_has_no_warning(tmp_path: Path) -> None:
    assert "source.bypasses_interpretation" not in problems(tmp_path, "Node")


def test_root_s_own_type_is_warned_of_with_the_one_that_is_mapped(tmp_path: Path) -> None:
    found = problems(tmp_path, "station")
    assert "'Node'" in found["source.bypasses_interpretation"]
