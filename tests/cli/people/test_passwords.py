"""`rapport peers password`: set and removed, never shown and never an argument. [CO-11]"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from rapport.cli.main import run

SITE = """
[site]
name = "people"
[concepts.person.attributes]
status = "text"
[node]
port = 9
[sessions]
memory_kib = 19456
passes = 2
lanes = 1
[peers.ana]
addresses = ["inbox:"]
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "site.toml").write_text(SITE)
    return tmp_path


def typed(
    site: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    *words: str,
) -> tuple[int, str]:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    code = run(["peers", "password", *words, "--site", str(site)])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_a_password_is_piped_in_and_removed(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, told = typed(site, capsys, monkeypatch, "correct horse\n", "ana")
    assert (code, told) == (0, "ana has a new password; 0 sessions ended\n")
    code, told = typed(site, capsys, monkeypatch, "", "ana", "--remove")
    assert (code, told) == (0, "ana has no password any more; 0 sessions ended\n")
    files = [path.read_bytes() for path in site.rglob("*") if path.is_file()]
    assert not any(b"correct horse" in content for content in files)


@pytest.mark.parametrize(("name", "given"), [("ana", "short\n"), ("ana", ""), ("anna", "long one")])
def test_what_cannot_be_set_is_wrong_use_and_not_repeated(
    site: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    given: str,
) -> None:
    code, told = typed(site, capsys, monkeypatch, given, name)
    assert code == 2
    assert not given or given.strip() not in told


def test_a_typed_password_is_asked_for_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    from rapport.cli.peers import read_password
    from rapport.core.errors import InvalidInput

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    answers = iter(["correct horse", "correct horse", "correct horse", "other horse"])
    monkeypatch.setattr("getpass.getpass", lambda _prompt: next(answers))
    assert read_password("ana") == "correct horse"
    with pytest.raises(InvalidInput):
        read_password("ana")
