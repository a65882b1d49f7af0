"""What a site says about mail, folders and FTP: read whole, every fault in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from rapport.communication.adapters.adapter_config import read_inputs, read_media
from rapport.communication.adapters.ftp import FtpServer
from rapport.communication.config import communication_from_site
from rapport.communication.peers import address_fault
from rapport.kernel.toml import TomlFile

ADAPTERS = ("folder", "ftp", "inbox", "mail")


def site(tmp_path: Path, text: str) -> TomlFile:
    place = tmp_path / "site.toml"
    place.write_text(text)
    return TomlFile.load(place)


def inputs(tmp_path: Path, text: str):
    problems = []
    found = read_inputs(site(tmp_path, text), tmp_path, problems)
    return found, [(problem.code, problem.line) for problem in problems]


def media(tmp_path: Path, text: str):
    problems = []
    found = read_media(site(tmp_path, text), tmp_path, ADAPTERS, problems)
    return found, [(problem.code, problem.line) for problem in problems]


def test_everything_about_mail_in_is_read_and_the_password_comes_from_a_file(tmp_path):
    (tmp_path / "imap.secret").write_text("hunter2\n")
    found, problems = inputs(
        tmp_path,
        """
[inputs.replies]
adapter = "imap"
interval = "30s"
host = "imap.example.org"
user = "alarm"
password = "file:imap.secret"
folder = "Antworten"
after = "move"
move_to = "Erledigt"
from_start = false
largest_mail = 200000
[inputs.told]
adapter = "imap-push"
host = "127.0.0.1"
encryption = "none"
user = "alarm"
idle = "60s"
""",
    )
    assert problems == []
    replies, told = found
    assert replies.interval_ms == 30_000
    assert (replies.settings.port, replies.settings.password) == (993, "hunter2")
    assert (replies.settings.folder, replies.settings.move_to) == ("Antworten", "Erledigt")
    assert not replies.settings.from_start
    assert "hunter2" not in repr(found)
    assert (told.settings.port, told.settings.idle_ms, told.interval_ms) == (143, 60_000, None)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ('password = "hunter2"', "settings.bare_secret"),
        ('after = "burn"', "site.unknown_choice"),
        ('move_to = "x"', "input.move_to_without_move"),
        ('encryption = "none"', "input.not_encrypted"),
        ("port = 70000", "site.out_of_range"),
        ('folder = ""', "site.wrong_type"),
        ('hots = "x"', "site.unknown_key"),
        ("largest_mail = 1", "site.out_of_range"),
    ],
)
def test_a_fault_about_mail_in_is_reported_where_it_stands(tmp_path, line, code):
    text = f'[inputs.a]\nadapter = "imap"\nhost = "imap.example.org"\nuser = "u"\n{line}\n'
    assert inputs(tmp_path, text)[1] == [(code, 5)]


def test_mail_in_needs_a_host_and_a_user(tmp_path):
    _found, problems = inputs(tmp_path, '[inputs.a]\nadapter = "imap"\n')
    assert problems == [("site.missing_key", 1), ("site.missing_key", 1)]


def test_where_replies_go_must_be_an_address(tmp_path):
    problems = []
    text = '[adapters.mail]\nsender = "a@b.org"\nreply_to = "a@b\\r\\nBcc: e@c"\nkeep = "2s"\n'
    mail = read_media(site(tmp_path, text), tmp_path, ADAPTERS, problems)["mail"]
    assert [(problem.code, problem.line) for problem in problems] == [("peer.bad_address", 3)]
    assert mail.keep_ms == 2_000


def test_folders_and_servers_are_read(tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    monkeypatch.setenv("DEPOT", "hunter2")
    found, problems = media(
        tmp_path,
        """
[adapters.folder.folders]
alarms = "out"
[adapters.ftp.servers.depot]
host = "ftp.example.org"
user = "rapport"
password = "env:DEPOT"
tls = true
""",
    )
    assert problems == []
    assert found["folder"].folders == {"alarms": str((tmp_path / "out").resolve())}
    assert found["ftp"].servers["depot"] == FtpServer(
        host="ftp.example.org", user="rapport", password="hunter2", tls=True
    )
    assert "hunter2" not in repr(found["ftp"])


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('[adapters.folder.folders]\nalarms = "nowhere"\n', "adapter.no_directory"),
        ('[adapters.folder.folders]\n"../x" = "."\n', "adapter.bad_place_name"),
        ("[adapters.folder.folders]\nalarms = 5\n", "site.wrong_type"),
        ("[adapters.ftp.servers]\ndepot = 5\n", "site.wrong_type"),
        ('[adapters.ftp.servers.depot]\nhots = "x"\nhost = "y"\n', "site.unknown_key"),
        ('[adapters.ftp]\npassword = "x"\n', "site.unknown_key"),
    ],
)
def test_a_fault_about_folders_and_servers_is_reported_where_it_stands(tmp_path, text, code):
    assert media(tmp_path, text)[1] == [(code, 2)]


def test_files_that_come_in_are_declared(tmp_path):
    (tmp_path / "in").mkdir()
    found, problems = inputs(
        tmp_path,
        """
[inputs.drop]
adapter = "folder"
directory = "in"
sender = "peer:ana"
settle = "200ms"
[inputs.pictures]
adapter = "ftp"
host = "ftp.example.org"
folder = "pictures"
content = "notice"
sender = "peer:ana"
after = "move"
on_request = true
""",
    )
    assert problems == []
    drop, pictures = found
    assert drop.settings.files.settle_ms == 200
    assert (pictures.interval_ms, pictures.settings.files.content) == (None, "notice")


@pytest.mark.parametrize(
    ("line", "code", "at"),
    [
        ('content = "notice"', "input.no_sender", 2),
        ('sender = "ana"', "message.bad_identifier", 5),
        ('after = "move"\nmove_to = "../x"', "site.wrong_type", 6),
        ('move_to = "x"', "input.move_to_without_move", 5),
        ('settle = "soon"', "site.bad_duration", 5),
    ],
)
def test_a_fault_about_files_is_reported_where_it_stands(tmp_path, line, code, at):
    text = f'\n[inputs.a]\nadapter = "ftp"\nhost = "ftp.example.org"\n{line}\n'
    assert inputs(tmp_path, text)[1] == [(code, at)]


@pytest.mark.parametrize("rest", ["", "../etc", "/srv", "a b", "a/b", "x" * 65, "ä", "a\n"])
@pytest.mark.parametrize("adapter", ["folder", "ftp"])
def test_an_address_is_a_name_never_a_path(adapter, rest):
    assert address_fault(f"{adapter}:{rest}", ADAPTERS).code == "peer.bad_address"
    assert address_fault(f"{adapter}:depot-2", ADAPTERS) is None


def test_an_address_that_names_an_undeclared_folder_is_reported_where_it_stands(tmp_path):
    (tmp_path / "out").mkdir()
    text = """
[peers.ana]
addresses = ["folder:alarm"]
[adapters.folder.folders]
alarms = "out"
"""
    _declared, problems = communication_from_site(site(tmp_path, text), tmp_path, adapters=ADAPTERS)
    (problem,) = [one for one in problems if one.severity == "error"]
    assert (problem.code, problem.line) == ("peer.unknown_place", 3)
    assert "alarms" in problem.hint
