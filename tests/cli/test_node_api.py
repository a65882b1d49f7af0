"""What a command says when no node, or something else, stands where it asks."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rapport.cli.main import run
from rapport.cli.node_api import Remote, read_token
from rapport.core.errors import InvalidInput, Unavailable

HTML = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\n<html>"
CUT_SHORT = b'HTTP/1.1 200 OK\r\nContent-Length: 60\r\nConnection: close\r\n\r\n{"a":'
ABSENT = b"HTTP/1.1 404 File not found\r\nContent-Length: 6\r\nConnection: close\r\n\r\n<html>"
PROXY = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 6\r\nConnection: close\r\n\r\n<html>"
STRANGER = (
    b"HTTP/1.1 401 Unauthorized\r\nConnection: close\r\n\r\n"
    b'{"title":"access.not_authenticated","hint":"send the header"}'
)
UNKNOWN = (
    b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n"
    b'{"title":"name.unknown","problems":[{"code":"name.unknown","message":"there is none"}]}'
)
OTHER = b"220 mail.example.org ESMTP\r\n"


@contextmanager
def _answering(answer: bytes) -> Iterator[str]:
    """The address of a server that gives one answer to whatever is asked, and leaves."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _address = server.accept()
            with peer:
                peer.recv(65_536)
                peer.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (HTML, "node.not_one"),
        (ABSENT, "node.not_one"),
        (PROXY, "node.not_one"),
        (OTHER, "node.not_one"),
        (CUT_SHORT, "node.gone"),
    ],
    ids=["a web page", "no web page", "a proxy", "another protocol", "cut short"],
)
def test_what_is_no_node_is_told(answer: bytes, code: str) -> None:
    with _answering(answer) as url, pytest.raises(Unavailable) as caught:
        Remote(url).get("/overview")
    assert caught.value.code == code
    assert url in caught.value.message
    assert caught.value.hint


def test_who_has_to_say_who_they_are_is_told_how_at_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with _answering(STRANGER) as url:
        assert run(["links", "--url", url]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error[access.not_authenticated] ")
    assert "--token-file" in told
    assert "header" not in told


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["push", "cancel", "x"], "rapport push list shows what there is"),
        (["dead-letters", "show", "x"], "rapport dead-letters list shows what there is"),
        (["channel", "intercept", "list", "x"], "rapport channel intercept list shows what"),
        (["mediate", "release", "x"], "rapport mediate quarantine shows what there is"),
    ],
    ids=str,
)
def test_a_name_that_a_node_does_not_know_is_told_with_where_the_names_are(
    words: list[str],
    hint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with _answering(UNKNOWN) as url:
        assert run([*words, "--url", url]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error[name.unknown] there is none\nhint: {hint}")


def test_a_node_that_hangs_up_on_a_large_request_is_not_said_to_be_absent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            peer, _address = server.accept()
            peer.recv(1_000)
            peer.close()  # unread bytes make it a reset

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(Unavailable) as caught:
            Remote(f"http://127.0.0.1:{server.getsockname()[1]}").post("/x", b"x" * 20_000_000)
        thread.join()
    assert caught.value.code == "node.gone"
    assert "max_body_bytes" in caught.value.hint


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8484",
        "ftp://x",
        "http://",
        "http://a b",
        "http://x:abc",
        "http://[::1",
        "http://x\n",
    ],
    ids=["no scheme", "ftp", "nothing", "space", "no port", "bracket", "line break"],
)
def test_addresses_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Remote(url)
    assert caught.value.code == "url.bad"


@pytest.mark.parametrize("raw", [b"first\nsecret-two", b"s\xe2\x82\xact", b"\xff\xfe\x00"])
def test_a_token_that_cannot_be_sent_is_refused_and_not_shown(
    tmp_path: Path, raw: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    file.write_bytes(raw)
    with pytest.raises(InvalidInput):
        read_token(file)
    (tmp_path / "site.toml").write_text('[site]\nname = "x"\n')
    assert run(["reload", "--site", str(tmp_path), "--token-file", str(file)]) == 2
    assert "secret-two" not in capsys.readouterr().err


def test_the_node_of_a_site_may_have_an_address_with_colons(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text('[node]\nhost = "::1"\nport = 1\n')
    with pytest.raises(Unavailable) as caught:
        Remote.of_site(tmp_path, None).get("/overview")
    assert "http://[::1]:1" in caught.value.message


def test_a_node_on_this_machine_is_asked_past_any_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with _answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n[]") as url:
        assert Remote(url).get("/x") == []
    with pytest.raises(Unavailable) as caught:
        Remote("http://node.example.org").get("/x")
    assert "refused" in caught.value.message  # by the proxy


def test_a_node_elsewhere_is_asked_without_a_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAPPORT_SITE", raising=False)
    assert run(["links", "--url", "http://127.0.0.1:1"]) == 1
    assert "node.unreachable" in capsys.readouterr().err
    assert run(["links"]) == 1
    assert "site.unreadable" in capsys.readouterr().err


def test_a_site_that_is_named_and_not_there_is_told_also_with_a_url(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["links", "--site", str(tmp_path), "--url", "http://127.0.0.1:1"]) == 1
    assert "site.unreadable" in capsys.readouterr().err


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_a_password_in_an_address_is_refused_and_not_repeated(
    scheme: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["links", "--url", f"{scheme}ana:s3cret@127.0.0.1:1"]) == 2
    told = capsys.readouterr().err
    assert "url.bad" in told
    assert "--token-file" in told
    assert "s3cret" not in told


@pytest.mark.parametrize(
    ("url", "token"),
    [
        (None, "own"),
        ("http://localhost:9", "own"),
        ("http://127.0.0.1:1", "own"),
        ("http://node.example:80", "own"),
        ("http://10.1.2.3:8484", "own"),
        ("http://elsewhere.example:8484", ""),
        ("https://node.example.net", ""),
    ],
)
def test_the_token_of_the_own_node_is_told_to_no_other_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str | None, token: str
) -> None:
    monkeypatch.delenv("RAPPORT_TOKEN", raising=False)
    (tmp_path / "token").write_text("own\n")
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "site.toml").write_text(
        '[site]\nname = "s"\n[node]\nhost = "10.1.2.3"\npublic_url = "http://node.example"\n'
        'token_file = "token"\n'
    )
    assert Remote.of_site(tmp_path, url).token == token
