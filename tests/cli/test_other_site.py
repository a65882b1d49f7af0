"""A command for a site does nothing at the node of another one. [UX-3]"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rapport.cli.main import run
from rapport.cli.node_api import Remote
from rapport.core.errors import Conflict, Unavailable
from support.processes.node import NodeProcess

EVENT = {"specversion": "1.0", "id": "1", "source": "s", "type": "t", "data": {}}
TOKEN = "k2v9Qm4Zr8Xw1Tb6Yc3Nd7Hf5Jg0Lp"


def _write_site(directory: Path, name: str, port: int = 0) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "site.toml").write_text(
        f'[site]\nname = "{name}"\n[concepts.person.attributes]\nstatus = "text"\n'
        f"[node]\nport = {port}\n"
    )
    return directory


@pytest.fixture(scope="module")
def med(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    """A running node of the site `med`, and its port."""
    site = _write_site(tmp_path_factory.mktemp("sites") / "med", "med")
    with NodeProcess(site) as node:
        node.start()
        assert node.doors is not None
        _write_site(site, "med", node.doors[1])
        yield site, node.doors[1]


@pytest.mark.parametrize("name", ["sec", "med"], ids=["another name", "the same name"])
def test_a_command_for_a_site_does_nothing_at_the_node_of_another(
    med: tuple[Path, int], tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two sites on one port; that of the command never ran."""
    _directory, port = med
    (tmp_path / "events.jsonl").write_text(json.dumps(EVENT) + "\n")
    sec = _write_site(tmp_path / "other", name, port)
    publish = ["publish", str(tmp_path / "events.jsonl"), "--channel", "things", "--site"]
    assert run([*publish, str(sec)]) != 0
    told = capsys.readouterr().err
    assert told.startswith("error[node.other_site] ")
    assert f"http://127.0.0.1:{port}" in told
    assert "'med'" in told
    assert f"'{name}'" in told
    assert str(sec) in told
    assert "site.toml" in told
    assert "--url" in told
    for words in (["reload"], ["policy", "list"], ["listen", "things"], ["peers", "list"]):
        assert run([*words, "--site", str(sec)]) != 0, words
        assert capsys.readouterr().err.startswith("error[node.other_site] "), words


def test_the_nodes_own_commands_reach_it_and_an_address_that_is_named_is_taken(
    med: tuple[Path, int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory, port = med
    (tmp_path / "events.jsonl").write_text(json.dumps({**EVENT, "id": "own"}) + "\n")
    publish = ["publish", str(tmp_path / "events.jsonl"), "--channel", "things"]
    sec = _write_site(tmp_path / "sec", "sec", port)
    assert run([*publish, "--site", str(directory)]) == 0
    assert json.loads(capsys.readouterr().out)["published"] == 1
    monkeypatch.chdir(sec)
    assert run([*publish, "--url", f"http://127.0.0.1:{port}"]) == 0
    assert json.loads(capsys.readouterr().out)["duplicates"] == 1


def test_no_token_is_shown_to_the_node_of_another_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[bytes] = []
    answer = b'{"site":"med","node":"00","directory":"00"}'
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(answer)
    monkeypatch.setenv("RAPPORT_TOKEN", TOKEN)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _address = server.accept()
            with peer:
                received.append(peer.recv(65_536))
                peer.sendall(head + answer)

        thread = threading.Thread(target=serve)
        thread.start()
        sec = _write_site(tmp_path / "sec", "sec", server.getsockname()[1])
        with pytest.raises(Conflict) as refused:
            Remote.of_site(sec, None, None).post("/reload", b"{}")
        thread.join()
    assert refused.value.code == "node.other_site"
    (request,) = received
    assert request.startswith(b"GET /identity ")
    assert TOKEN.encode() not in request


def test_a_second_node_on_the_same_port_says_whose_the_port_is(
    med: tuple[Path, int], tmp_path: Path
) -> None:
    _directory, port = med
    sec = _write_site(tmp_path / "sec", "sec", port)
    command = [sys.executable, "-m", "rapport.cli.main", "up", "--site", str(sec)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode != 0
    told = " ".join(ended.stderr.split())
    assert "error[web.cannot_listen]" in told
    assert f"127.0.0.1:{port}" in told
    assert "taken by the node of the site 'med'" in told
    assert "port in [node]" in told


def test_a_node_elsewhere_is_known_by_its_sites_name(med: tuple[Path, int], tmp_path: Path) -> None:
    """The files of a site on another machine than its node, which has a public address."""
    _directory, port = med
    for name, is_its_node in (("med", True), ("sec", False)):
        site = _write_site(tmp_path / name, name)
        with (site / "site.toml").open("a") as file:
            file.write(f'public_url = "http://127.0.0.1:{port}"\n')
        remote = Remote.of_site(site, None, None)
        if is_its_node:
            remote.verify()
        else:
            with pytest.raises(Conflict, match="'med'"):
                remote.verify()


def test_a_node_that_does_not_run_is_told_as_before(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as told:
        Remote.of_site(_write_site(tmp_path / "sec", "sec", 9), None, None).get("/overview")
    assert told.value.code == "node.unreachable"
    assert f"rapport up --site {tmp_path / 'sec'}" in told.value.hint
