"""`rapport send` and `rapport ledger` beside a running node: who was told, and how one sees it."""

from __future__ import annotations

import csv
import io
import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlencode

import pytest

from rapport.cli.main import run
from rapport.core.times import parse_time
from support.processes.node import NodeProcess

pytestmark = pytest.mark.slow

SITE = """
[site]
name = "people"
[node]
port = 9
[peers.ana]
addresses = ["inbox:"]
[peers.ben]
addresses = ["webhook:http://127.0.0.1:9/x"]
[collectives.guards]
members = ["ana"]
"""
Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Ask]:
    """Runs a command on the site; `send` and `peers` go to the running node."""
    (tmp_path / "site.toml").write_text(SITE)
    with NodeProcess(tmp_path) as node:
        node.start()
        assert node.doors is not None
        url = "http://{}:{}".format(*node.doors)

        def asked(*words: str, remote: bool = False) -> tuple[int, str, str]:
            where = ["--site", str(tmp_path)]
            where += ["--url", url] if words[0] != "ledger" or remote else []
            capsys.readouterr()
            code = run([*words, *where])
            captured = capsys.readouterr()
            return code, captured.out, captured.err

        yield asked


def test_a_message_is_sent_waited_for_and_found_in_the_ledger(ask: Ask) -> None:
    code, out, told = ask(
        "send", "--to", "collective:guards", "--text", "=come\nnow", "--wait", "20s"
    )
    assert (code, "done: 1 told, 0 answered" in told) == (0, True)
    message = out.strip()

    code, out, told = ask("ledger", "--person", "ana")
    rows = [line.split("\t") for line in out.splitlines()]
    assert rows[0] == ["time", "person", "address", "state", "attempt", "message", "text", "why"]
    assert [(row[1], row[2], row[3], row[5], row[6]) for row in rows[1:]] == [
        ("ana", "inbox:", "handed", message, "=come now")
    ]
    assert told.strip() == "1 told, 0 answered"

    code, out, told = ask("ledger", "--message", message)
    assert [line.split("\t")[1] for line in out.splitlines()][:2] == ["what", "written"]
    assert "to collective:guards, from component:cli, closed (done)" in told
    _, local, _ = ask("ledger", "--message", message, "--json")
    _, remote, _ = ask("ledger", "--message", message, "--json", remote=True)
    assert json.loads(local) == json.loads(remote)

    _, out, _ = ask("ledger", "--csv", "--since", "1h", "--state", "handed")
    (row,) = list(csv.DictReader(io.StringIO(out)))
    assert (row["person"], row["text"]) == ("ana", "'=come\nnow")
    _, local, _ = ask("ledger", "--json", "--since", "1h")
    _, remote, _ = ask("ledger", "--json", "--since", "1h", remote=True)
    assert json.loads(local) == json.loads(remote) != []
    assert ask("ledger", "--json", "--until", "1h")[1] == "[]\n"


def test_a_bare_name_is_the_person_else_the_group_and_the_answers_are_printed(ask: Ask) -> None:
    code, out, told = ask("send", "--to", "ana", "--text", "come", "--wait", "20s")
    assert (code, "nobody had to answer" in told) == (0, True)
    _, shown, _ = ask("ledger", "--message", out.strip(), "--json")
    assert json.loads(shown)["message"]["receiver"] == "peer:ana"

    _, link, _ = ask("peers", "inbox-link", "ana")
    inbox = link.strip()
    words = ["send", "--to", "guards", "--text", "who comes?", "--least", "1"]
    with ThreadPoolExecutor() as pool:
        answered = pool.submit(answer_when_asked, inbox, "who comes?", "yes")
        code, out, told = ask(*words, "--wait", "30s")
        assert answered.result() == 200
    lines = [line.split("\t") for line in out.splitlines()]
    assert (code, lines[1]) == (0, ["time", "person", "answer"])
    assert [line[1:] for line in lines[2:]] == [["ana", "yes"]]
    assert parse_time(lines[2][0])
    assert "done: 1 told, 1 answered" in told

    with ThreadPoolExecutor() as pool:
        answered = pool.submit(answer_when_asked, inbox, "and now?", "no")
        words = ["send", "--to", "guards", "--text", "and now?", "--answer-within", "20s"]
        code, out, _ = ask(*words, "--wait", "30s", "--json")
        assert answered.result() == 200
    shown = json.loads(out)
    (answer,) = shown["answers"]
    assert (answer["person"], answer["answer"], answer["declined"]) == ("ana", "no", True)
    assert (code, shown["outcome"]) == (1, "failed")


def answer_when_asked(inbox: str, text: str, answer: str) -> int:
    """Presses a button of the inbox as soon as the message with this text waits there."""
    for _ in range(600):
        page = urllib.request.urlopen(inbox, timeout=10).read().decode()
        for article in page.split("<article")[1:]:
            fields = dict(re.findall(r'name="(message|form)" value="([^"]+)"', article))
            if f">{text}<" in article and len(fields) == 2:
                form = urlencode(fields | {"answer": answer}).encode()
                return int(urllib.request.urlopen(inbox, form, timeout=10).status)
        time.sleep(0.05)
    raise AssertionError("the message did not come")


def test_what_was_not_decided_in_time_ends_with_one(ask: Ask) -> None:
    code, out, told = ask(
        "send", "--to", "collective:guards", "--text", "x", "--least", "1", "--wait", "700ms"
    )
    assert (code, "undecided: 1 told, 0 answered" in told) == (1, True)
    assert f"rapport ledger --message {out.strip()}" in told
    code, out, _ = ask("send", "--to", "peer:ben", "--text", "x", "--wait", "700ms", "--json")
    shown = json.loads(out)
    assert (code, shown["outcome"]) == (1, "undecided")
    code, out, told = ask("send", "--to", "peer:ana", "--text", "x")
    assert (code, len(out.split()), told) == (0, 1, "")


def test_wrong_use_names_what_would_be_right(ask: Ask) -> None:
    code, _, told = ask("send", "--to", "collective:gards", "--text", "x")
    assert (code, "did you mean 'guards'?" in told) == (2, True)
    code, _, told = ask("send", "--to", "gards", "--text", "x")
    assert (code, "did you mean collective:guards?" in told) == (2, True)
    code, _, told = ask("send", "--to", "anna", "--text", "x")
    assert (code, "did you mean 'ana'?" in told) == (2, True)
    code, _, told = ask("send", "--to", "person:ana", "--text", "x")
    assert (code, "write peer:NAME" in told) == (2, True)
    assert ask("send", "--to", "peer:ana", "--text", " ")[0] == 2
    assert ask("send", "--to", "peer:ana", "--text", "x", "--least", "2")[0] == 2
    assert ask("send", "--text", "x")[0] == 2
    code, _, told = ask("ledger", "--state", "handd")
    assert (code, "handed" in told) == (2, True)
    assert ask("ledger", "--json", "--csv")[0] == 2
    assert ask("ledger", "--message", "nothing")[0] == 2
    assert ask("ledger", "--limit", "0")[0] == 2


def test_who_is_asked_next_and_how_often_it_is_said_again_can_be_given(ask: Ask) -> None:
    words = ["send", "--to", "peer:ana", "--text", "come", "--answer-within", "2500ms"]
    steps = ["--then", "guards=200ms", "--then", "peer:ana"]
    code, out, _ = ask(*words, *steps, "--repeat", "1s", "--repeat-most", "2", "--wait", "20s")
    assert code == 1
    _, shown, _ = ask("ledger", "--message", out.strip(), "--json")
    happened = [line["state"] for line in json.loads(shown)["timeline"]]
    assert happened.count("escalated") == 2
    assert happened.count("handed") == 3
    code, _, told = ask("send", "--to", "peer:ana", "--text", "x", "--then", "collective:guards")
    assert (code, "--answer-within" in told) == (2, True)
    code, _, told = ask(*words, "--then", "gards")
    assert (code, "did you mean collective:guards?" in told) == (2, True)


def test_a_link_opens_an_inbox_and_is_made_by_command(ask: Ask) -> None:
    code, out, told = ask("peers", "inbox-link", "ana", "--days", "2")
    assert (code, "opens the inbox of ana until" in told) == (0, True)
    with urllib.request.urlopen(out.strip()) as page:
        assert b"ana" in page.read()
    assert ask("peers", "inbox-link", "anna")[0] == 2
    assert ask("peers", "inbox-link", "ana", "--days", "0")[0] == 2


def test_the_ledger_is_followed_until_interrupted(ask: Ask, tmp_path: Path) -> None:
    assert ask("send", "--to", "peer:ana", "--text", "first", "--wait", "20s")[0] == 0
    words = [sys.executable, "-m", "rapport.cli.main", "ledger", "--follow", "--state", "handed"]
    with subprocess.Popen(
        [*words, "--site", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # A shell's background jobs ignore interrupts, and what they start does too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as following:
        assert following.stdout is not None
        assert following.stdout.readline().startswith(b"time\t")
        assert b"first" in following.stdout.readline()
        assert ask("send", "--to", "peer:ana", "--text", "second", "--wait", "20s")[0] == 0
        assert b"\thanded\t" in (line := following.stdout.readline())
        assert b"second" in line
        following.send_signal(signal.SIGINT)
        assert following.wait(20) == 0


def test_a_person_added_at_a_running_node_is_reached_at_once(ask: Ask) -> None:
    assert ask("peers", "add", "zoe", "inbox:")[0] == 0
    assert ask("peers", "join", "guards", "zoe")[0] == 0
    code, _, told = ask("send", "--to", "peer:zoe", "--text", "x", "--wait", "20s")
    assert (code, "1 told" in told) == (0, True)
