"""`rapport policy fmt`: rewriting policy files, and only checking them. [PO-3, UX-2]"""

from __future__ import annotations

from pathlib import Path

import pytest

from rapport.cli.main import run

UNTIDY = """\
concepts
  person A   # who
  room R
conditions
  A IS inside R for 120 minutes
actions
  raise   alarm
"""
TIDY = """\
concepts
  person A  # who
  room R
conditions
  A is inside R for 2h
actions
  raise alarm
"""
FAULTY = UNTIDY.replace("120 minutes", "120")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "site.toml").write_text('[site]\nname = "x"\n[policies]\nfiles = ["*.dpl"]\n')
    (tmp_path / "tidy.dpl").write_text(TIDY)
    (tmp_path / "untidy.dpl").write_text(UNTIDY)
    return tmp_path


def test_all_policies_of_a_site_are_rewritten_and_the_changed_ones_named(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (site / "untidy.dpl").chmod(0o640)
    assert run(["policy", "fmt", "--site", str(site)]) == 0
    told = capsys.readouterr()
    assert told.out == "untidy.dpl\n"
    assert "2 policies, 1 changed" in told.err
    assert (site / "untidy.dpl").read_text() == TIDY
    assert (site / "untidy.dpl").stat().st_mode & 0o777 == 0o640
    assert run(["policy", "fmt", "--site", str(site)]) == 0
    assert capsys.readouterr().out == ""
    assert sorted(path.name for path in site.iterdir()) == ["site.toml", "tidy.dpl", "untidy.dpl"]


def test_check_names_what_would_change_and_writes_nothing(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["policy", "fmt", "--check", "--site", str(site)]) == 1
    assert capsys.readouterr().out == "untidy.dpl\n"
    assert (site / "untidy.dpl").read_text() == UNTIDY
    assert run(["policy", "fmt", str(site / "tidy.dpl"), "--check"]) == 0


def test_a_faulty_file_is_left_untouched_and_its_problems_shown(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (site / "faulty.dpl").write_text(FAULTY)
    assert run(["policy", "fmt", str(site / "faulty.dpl"), str(site / "untidy.dpl")]) == 1
    told = capsys.readouterr()
    assert "policy.bad_duration" in told.err
    assert "faulty.dpl:5:21" in told.err.replace("\n", "")
    assert (site / "faulty.dpl").read_text() == FAULTY
    assert (site / "untidy.dpl").read_text() == TIDY


def test_a_link_stays_a_link(site: Path) -> None:
    (site / "linked.txt").symlink_to(site / "untidy.dpl")
    assert run(["policy", "fmt", str(site / "linked.txt")]) == 0
    assert (site / "linked.txt").is_symlink()
    assert (site / "untidy.dpl").read_text() == TIDY


def test_a_file_that_is_not_there_is_named(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["policy", "fmt", str(site / "nothing.dpl")]) == 1
    assert "policy.unreadable" in capsys.readouterr().err
