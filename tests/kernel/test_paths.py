from pathlib import Path

import pytest

from rapport.kernel.paths import files_matching, is_file, is_inside


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "", "no/such", "../.."])
def test_impossible_names_are_no_files_and_raise_nothing(tmp_path: Path, name: str) -> None:
    assert not is_file(tmp_path / name)
    assert files_matching(tmp_path, name) == []


def test_a_link_that_leads_out_is_outside(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "out").symlink_to(tmp_path)
    assert is_inside(site / "a.csv", site)
    assert not is_inside(site / "out" / "a.csv", site)
    assert not is_inside(site / ("x" * 300 + "\0"), site)


def test_patterns_find_files_only(tmp_path: Path) -> None:
    (tmp_path / "b.dpl").touch()
    (tmp_path / "a.dpl").touch()
    (tmp_path / "c.dpl").mkdir()
    assert [path.name for path in files_matching(tmp_path, "*.dpl")] == ["a.dpl", "b.dpl"]
