"""What a person sees who is new to the commands: each mistake is told with the way out of it."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest

from rapport.cli.hints import with_hint
from rapport.cli.main import run
from rapport.core.errors import Problem

Read = pytest.CaptureFixture[str]


@pytest.fixture
def site(tmp_path: Path, capsys: Read, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new site `mine` in the current directory, whose log exists; no node runs."""
    monkeypatch.chdir(tmp_path)
    run(["init", "mine"])
    with Path("mine/site.toml").open("a") as file:
        file.write("\n[node]\nport = 9\n")
    Path("rows.jsonl").write_text('{"badge": "7"}\n')
    assert run(["import", "rows.jsonl", "--source", "readers", "--site", "mine"]) == 0
    capsys.readouterr()
    return Path("mine")


def hint_of(capsys: Read, *words: str) -> str:
    """The hint of the one error that these words lead to."""
    assert run(list(words)) in (1, 2)
    told = capsys.readouterr()
    assert told.err.startswith("error["), told.err
    _error, _, hint = told.err.rstrip("\n").partition("\nhint: ")
    return hint


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["explain", "nope"], "rapport read CHANNEL lists events with their ids"),
        (["ledger", "--message", "nope"], "rapport ledger messages lists them with their ids"),
        (["access", "verify", "nope"], "rapport read CHANNEL lists events with their ids"),
        (["read", "raw.raeders"], "did you mean 'raw.readers'?"),
        (["access", "check", "local", "publish"], "rapport access check local publish CHANNEL"),
        (["ledger", "--json", "--csv"], "choose one of them"),
        (["peers", "join", "guards"], "rapport peers join guards PEER"),
        (["import", "rows.jsonl"], "rapport import rows.jsonl --guess"),
    ],
    ids=str,
)
def test_a_wrong_name_or_option_is_told_with_what_to_do(
    words: list[str], hint: str, site: Path, capsys: Read
) -> None:
    assert hint in hint_of(capsys, *words, "--site", str(site))


def test_an_outbox_that_is_none_is_told_with_what_one_is(site: Path, capsys: Read) -> None:
    assert "Publisher" in hint_of(capsys, "outbox", "status", "nowhere")


# --- the wrong directory ---


def test_in_the_wrong_directory_the_site_that_is_near_is_named(
    site: Path, capsys: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hint_of(capsys, "read") == "say which site: --site mine"
    assert hint_of(capsys, "check").startswith("say which site: --site mine")
    assert hint_of(capsys, "read", "--site", "mien") == "say which site: --site mine"
    Path("mine/deep").mkdir()
    monkeypatch.chdir("mine/deep")
    assert hint_of(capsys, "read") == "say which site: --site .."


def test_where_no_site_is_near_both_ways_out_are_named(
    tmp_path: Path, capsys: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hint = hint_of(capsys, "read")
    assert "--site DIR" in hint
    assert "rapport init DIR" in hint


# --- the node ---


def test_a_node_that_does_not_run_is_told_with_the_command_that_starts_it(
    site: Path, capsys: Read
) -> None:
    assert run(["channel", "state", "events", "--site", "mine"]) == 1
    told = capsys.readouterr().err
    assert "no node answers at http://127.0.0.1:9: Connection refused\n" in told
    assert "hint: start it: rapport up --site mine\n" in told


def test_an_address_where_no_node_runs_is_told_as_such(site: Path, capsys: Read) -> None:
    hint = hint_of(capsys, "links", "--site", "mine", "--url", "http://127.0.0.1:9")
    assert "--url" in hint


def test_an_address_without_http_is_completed(site: Path, capsys: Read) -> None:
    hint = hint_of(capsys, "links", "--url", "localhost:8484")
    assert hint == "write http://localhost:8484"
    assert hint_of(capsys, "links", "--url", "ftp://a") == "such as http://127.0.0.1:8484"


def test_a_table_that_is_published_as_it_is_leads_to_import(site: Path, capsys: Read) -> None:
    Path("rows.csv").write_text("badge,x\n7,1\n")
    hint = hint_of(capsys, "publish", "rows.csv", "--source", "readers", "--site", "mine")
    assert "rapport import" in hint


# --- times ---


@pytest.mark.parametrize(
    "words",
    [
        ["ledger", "--since", "soon"],
        ["ledger", "messages", "--until", "soon"],
        ["mediate", "quarantine", "--since", "soon"],
        ["dead-letters", "list", "--since", "soon"],
        ["dead-letters", "forget", "--until", "soon"],
        ["replay", "--from-log", "--since", "soon"],
        ["backtest", "secure-building", "--from", "soon"],
        ["why-not", "secure-building", "--at", "soon"],
    ],
    ids=str,
)
def test_times_are_told_in_all_their_forms(words: list[str], site: Path, capsys: Read) -> None:
    assert "2h for two hours ago" in hint_of(capsys, *words, "--site", "mine")


@pytest.mark.parametrize(
    "words",
    [
        ["ledger", "--since", "2h"],
        ["mediate", "quarantine", "--since", "2h"],
        ["ledger", "messages", "--since", "2h", "--until", "now"],
    ],
    ids=str,
)
def test_how_long_ago_is_a_time(words: list[str], site: Path) -> None:
    assert run([*words, "--site", "mine"]) == 0


# --- nothing found ---


def test_a_person_that_nothing_was_sent_to_is_told_with_the_nearest(
    site: Path, capsys: Read
) -> None:
    assert run(["ledger", "--person", "anna", "--site", "mine"]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("time\t")
    assert told.err == "nothing in the ledger fits; did you mean --person ana?\n"
    assert run(["ledger", "--person", "ana", "--site", "mine"]) == 0
    assert capsys.readouterr().err == "nothing in the ledger fits\n"


# --- standard input ---


class _Typed(io.TextIOWrapper):
    """What somebody types at a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    "words", [["publish", "-", "--source", "readers"], ["publish", "--source", "readers"]], ids=str
)
def test_a_hyphen_is_standard_input_as_nothing_is(
    words: list[str], site: Path, capsys: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"a": 1}\nno json\n')))
    assert run([*words, "--site", "mine"]) == 2
    assert capsys.readouterr().err.startswith("error[event.bad_data] -:2: not JSON")


def test_a_message_may_come_from_standard_input_and_begin_with_a_hyphen(
    site: Path, capsys: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in ("-", "-5 degrees outside", "--- alarm ---"):
        monkeypatch.setattr("sys.stdin", io.StringIO("it burns\n"))
        assert run(["send", "--text", text, "--to", "peer:ana", "--site", "mine"]) == 1
        assert "error[node.unreachable] " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["publish", "--sorce", "readers"], "did you mean '--source'?"),
        (["publish", "--sorce=readers"], "did you mean '--source'?"),
        (["send", "--urgnt", "--to", "peer:ana"], "did you mean '--urgent'?"),
        (["send", "--text", "--to", "peer:ana"], "rapport send --help"),
    ],
    ids=str,
)
def test_an_option_is_never_taken_for_a_file_or_a_text(
    words: list[str], hint: str, site: Path, capsys: Read
) -> None:
    assert hint_of(capsys, *words) == hint


def test_who_has_to_type_is_told(site: Path, capsys: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", _Typed(io.BytesIO(b"no json\n")))
    assert run(["publish", "--channel", "lab", "--site", "mine"]) == 2
    assert capsys.readouterr().err.startswith("reading what you type; end it with Ctrl-D\n")


def test_a_file_that_the_site_names_is_not_taken_for_the_site() -> None:
    missing = Problem(file="meanings/a.toml", code="site.unreadable", message="cannot read it")
    assert with_hint(missing) == missing
    assert "--site" in with_hint(msgspec.structs.replace(missing, file="site.toml")).hint
