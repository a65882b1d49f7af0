"""Differences and replacements of a site's files. [CN-14]"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.core.errors import Conflict
from rapport.site.file_changes import (
    in_form_of,
    is_read_only,
    patch_of,
    problems_of_change,
    read_raw,
    replace_file,
)
from support.examples import examples
from support.freezer_site import write_freezer_site

LINES = st.lists(st.sampled_from(["a", "b", "\ta b", "", "-c", "+d", "\\ e", "ü\u2028x\x0b"]))
TEXTS = st.builds(
    lambda lines, end, has_end: (end.join(lines) + (end if has_end else "")).encode(),
    LINES,
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)


@pytest.mark.skipif(shutil.which("git") is None, reason="git applies the patches")
@settings(max_examples=examples(40), deadline=None)
@given(before=st.none() | TEXTS, after=TEXTS)
def test_git_makes_of_the_old_file_the_new_one_and_back(before: bytes | None, after: bytes) -> None:
    patch = patch_of("b c.dpl", before, after)
    if not patch:
        assert (before or b"") == after
        return
    with TemporaryDirectory() as folder:
        file = Path(folder) / "b c.dpl"
        if before is not None:
            file.write_bytes(before)
        for options, content in (([], after), (["-R"], before)):
            command = ["git", "apply", "--whitespace=nowarn", *options, "-"]
            done = subprocess.run(command, cwd=folder, input=patch.encode(), capture_output=True)
            assert done.returncode == 0, done.stderr
            assert (file.read_bytes() if file.exists() else None) == content


@contextmanager
def umask_of_a_node() -> Iterator[None]:
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


@given(before=st.none() | TEXTS, after=st.none() | TEXTS)
def test_a_replacement_taken_back_leaves_the_bytes_and_rights_of_before(
    before: bytes | None, after: bytes | None
) -> None:
    with TemporaryDirectory() as folder, umask_of_a_node():
        home = Path(folder)
        if before is not None:
            (home / "x").write_bytes(before)
            (home / "x").chmod(0o640)
        replace_file(home, "x", before, after)
        assert read_raw(home, "x") == after
        with pytest.raises(Conflict):
            replace_file(home, "x", b"something else", b"mine")
        assert read_raw(home, "x") == after
        replace_file(home, "x", after, before)
        assert read_raw(home, "x") == before
        assert os.listdir(home) == ([] if before is None else ["x"])
        if before is not None and after is not None:
            assert (home / "x").stat().st_mode & 0o777 == 0o640


@given(text=st.text(st.sampled_from("ab\n")), marked=st.booleans())
def test_an_edited_text_keeps_line_ends_and_mark_of_its_file(text: str, marked: bool) -> None:
    mark = b"\xef\xbb\xbf" if marked else b""
    written = in_form_of(mark + b"x\r\ny\r\n", text)
    assert written == mark + text.replace("\n", "\r\n").encode()
    assert in_form_of(b"x\ny\r\n", text) == text.encode(), "mixed line ends stay as they are sent"
    assert in_form_of(None, text) == text.encode()


def test_the_check_of_a_change_leaves_the_site_and_its_data_directory_alone(
    tmp_path: Path,
) -> None:
    site = write_freezer_site(tmp_path / "site")
    data = site / ".rapport"
    data.mkdir()
    (site / "more.dpl").symlink_to("too-warm.dpl")
    warm = (site / "too-warm.dpl").read_bytes()
    before = {path: path.lstat() for path in site.rglob("*") if path.is_file()}
    wrong = warm.replace(b"temperature", b"temperatur")
    [problem] = [
        one
        for one in problems_of_change(site, data, "too-warm.dpl", wrong)
        if one.file == "too-warm.dpl" and one.severity == "error"
    ]
    assert problem.line == 4
    assert problems_of_change(site, data, "too-warm.dpl", warm) == []
    rows = (site / "freezers.csv").read_bytes()
    assert problems_of_change(site, data, "freezers.csv", rows + b"f9,Freezer 9\n") == []
    assert os.listdir(data) == []
    after = {path: path.lstat() for path in site.rglob("*") if path.is_file()}
    assert [(one.st_ino, one.st_size, one.st_mtime_ns) for one in after.values()] == [
        (one.st_ino, one.st_size, one.st_mtime_ns) for one in before.values()
    ]
    assert warm == (site / "too-warm.dpl").read_bytes()


def test_an_interpretation_brings_no_function_in(tmp_path: Path) -> None:
    site = write_freezer_site(tmp_path / "site")
    (tmp_path / "data").mkdir()
    with (site / "site.toml").open("a") as file:
        file.write('\n[interpretations]\nfiles = ["*.interpretation.toml"]\n')
    text = b"""
[interpretations.odd]
identity = { field = "id" }
time = { field = "t", format = "iso8601" }
value.x = { field = "x" }
convert = [{ call = "os:getpid", take = "x", give = "x" }]
"""
    name = "odd.interpretation.toml"
    [problem] = problems_of_change(site, tmp_path / "data", name, text)
    assert (problem.code, "os:getpid" in problem.message) == ("site.new_function", True)


def test_a_site_on_another_file_system_is_copied_for_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = write_freezer_site(tmp_path / "site")
    (tmp_path / "data").mkdir()

    def refuse(*_paths: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("rapport.site.file_changes.os.link", refuse)
    warm = (site / "too-warm.dpl").read_bytes()
    assert problems_of_change(site, tmp_path / "data", "too-warm.dpl", warm) == []
    monkeypatch.setattr("rapport.site.file_changes._MOST_COPIED", 10)
    with pytest.raises(Conflict, match="too much"):
        problems_of_change(site, tmp_path / "data", "too-warm.dpl", warm)


def test_a_site_says_itself_that_it_is_read_only(tmp_path: Path) -> None:
    site = write_freezer_site(tmp_path)
    assert not is_read_only(site, "too-warm.dpl")
    text = (site / "site.toml").read_text()
    (site / "site.toml").write_text(text.replace("[site]", "[site]\nread_only = true"))
    assert is_read_only(site, "too-warm.dpl")
