"""A file that cannot be read or written: told with what stands in the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from rapport.cli.hints import cannot_read, cannot_write
from rapport.cli.main import run


def reading(file: Path, *, wanted: str = "") -> str:
    try:
        file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return cannot_read(file, error, wanted=wanted).hint
    raise AssertionError("it can be read")


def writing(file: Path) -> str:
    try:
        file.write_text("")
    except OSError as error:
        return cannot_write(file, error).hint
    raise AssertionError("it can be written")


def test_a_file_that_is_not_there_is_told_with_the_nearest_that_is(tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text("")
    assert reading(tmp_path / "event.csv") == f"did you mean '{tmp_path}/events.csv'?"
    assert reading(tmp_path / "zz") == f"it is looked for in {tmp_path}"
    assert reading(tmp_path / "zz", wanted="a policy") == "name a policy"
    assert reading(tmp_path / "no" / "a") == f"there is no directory {tmp_path}/no to look in"


def test_what_stands_in_the_way_of_reading_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\xff")
    assert reading(tmp_path) == "it is a directory: name a file in it"
    assert reading(tmp_path / "file" / "a") == f"{tmp_path}/file is a file, no directory"
    assert reading(tmp_path / "file") == "save it as UTF-8"


def test_what_stands_in_the_way_of_writing_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert writing(tmp_path / "no" / "a") == f"make the directory first: mkdir -p {tmp_path}/no"
    assert writing(tmp_path) == "it is a directory: name a file in it"
    assert writing(tmp_path / "file" / "a") == f"{tmp_path}/file is a file, no directory"


@pytest.mark.parametrize(
    "words",
    [
        ["publish", "{folder}/rows.jsnl", "--channel", "lab", "--url", "http://127.0.0.1:1"],
        ["import", "{folder}/rows.jsnl", "--guess"],
        ["mediate", "declare", "{folder}/rows.json", "--site", "{site}"],
        ["policy", "register", "{folder}/rows.jsnl", "--site", "{site}"],
        ["info", "set", "{folder}/rows.jsnl", "ALARM"],
        ["ontology", "import", "{folder}/rows.jsnl"],
        ["links", "--token-file", "{folder}/rows.jsnl", "--url", "http://127.0.0.1:1"],
    ],
    ids=" ".join,
)
def test_every_command_names_the_nearest_file(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site"
    run(["init", str(site)])
    (tmp_path / "rows.jsonl").write_text("{}\n")
    capsys.readouterr()
    assert run([word.format(folder=tmp_path, site=site) for word in words]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("error[cli.no_file] cannot read ")
    assert second == f"hint: did you mean '{tmp_path}/rows.jsonl'?"
