"""Who a table of pairs leaves out is pointed out; a table that names few is meant so."""

from __future__ import annotations

from pathlib import Path

import pytest

from rapport.site.site import check_site

SITE = """
[site]
name = "goods"
[concepts.substance.attributes]
dangerous = "text"
kind = "text"
position = "point"
[functions.distance]
of = ["substance.position", "substance.position"]
measure = "distance"
[functions.least]
of = ["substance.{by}", "substance.{by}"]
table = "least"
keys = ["a", "b"]
value = "metres"
unit = "m"
[tables.substances]
concept = "substance"
csv = "substances.csv"
key = "id"
columns = {{ dangerous = "dangerous", kind = "kind" }}
[tables.least]
csv = "least.csv"
key = "a"
[sources.tags]
concept = "substance"
attribute = "position"
key = "id"
value = ["x", "y"]
[policies]
files = ["*.dpl"]
[peers.dora]
addresses = ["inbox:"]
[actions.tell]
send_to = "peer:dora"
text = "{{A}} is near {{B}}"
"""
POLICY = """
concepts
  substance A (dangerous='yes')
  substance B (dangerous='yes')
conditions
  {condition}
actions
  tell
"""
PLAIN = "distance(A, B) < least(A, B)"


def left_out(directory: Path, rows: str, *, by: str = "id", condition: str = PLAIN) -> list[str]:
    """What is said about the table."""
    (directory / "site.toml").write_text(SITE.format(by=by))
    (directory / "near.dpl").write_text(POLICY.format(condition=condition))
    (directory / "substances.csv").write_text(
        "id,dangerous,kind\nacid,yes,liquid\nsalt,yes,solid\ngas,yes,gas\nwater,no,wet\n"
    )
    (directory / "least.csv").write_text("a,b,metres\n" + rows)
    problems = check_site(directory)
    assert [one for one in problems if one.severity == "error"] == []
    return [one.message for one in problems if one.code == "policy.not_in_table"]


def test_an_instance_that_no_row_names_is_pointed_out_once(tmp_path: Path) -> None:
    assert left_out(tmp_path, "acid,salt,2\n") == ["the table of 'least' has no row for gas"]


@pytest.mark.parametrize("rows", ["acid,salt,2\ngas,acid,1\n", "acid,acid,2\n"])
def test_a_table_that_names_all_or_only_few_is_left_alone(tmp_path: Path, rows: str) -> None:
    assert left_out(tmp_path, rows) == []


def test_a_function_may_be_looked_up_by_another_attribute(tmp_path: Path) -> None:
    said = left_out(tmp_path, "liquid,solid,2\n", by="kind")
    assert said == ["the table of 'least' has no row for gas"]


def test_a_condition_that_lasts_is_looked_into(tmp_path: Path) -> None:
    said = left_out(tmp_path, "acid,salt,2\n", condition=f"({PLAIN}) for 1 min")
    assert said == ["the table of 'least' has no row for gas"]
