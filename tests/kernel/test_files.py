from pathlib import Path

import pytest

from rapport.kernel.files import files_matching, is_file, is_inside, make_private_directory


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


def test_a_private_directory_is_closed_to_others_and_keeps_a_group_that_was_let_in(
    tmp_path: Path,
) -> None:
    def mode_of(name: str) -> int:
        make_private_directory(tmp_path / name)
        return (tmp_path / name).stat().st_mode & 0o1777

    for name, mode in (("open", 0o755), ("group", 0o750), ("shared", 0o1777)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    assert mode_of("new") == 0o700
    assert mode_of("open") == 0o700
    assert mode_of("group") == 0o750
    assert mode_of("shared") == 0o1777
