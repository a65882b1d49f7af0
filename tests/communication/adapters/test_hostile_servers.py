"""Servers that lie, ramble or fall silent: an error of ours each time, soon, and nothing worse."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.communication.adapters.ftp import FtpFolder, FtpServer
from rapport.communication.adapters.imap import FetchedMail, ImapSettings, Mailbox
from rapport.core.errors import RapportError
from support.examples import examples


@contextmanager
def rambling(*said):
    """A server that says these things, one for each line it hears, and then hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            connection, _ = listening.accept()
            with connection, connection.makefile("rb") as heard:
                for words in said:
                    try:
                        connection.sendall(words)
                        heard.readline(10_000)
                    except OSError:
                        return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        socket.create_connection(listening.getsockname()).close()  # in case nobody came
        thread.join(10)


def use_mailbox(port):
    mailbox = Mailbox(
        ImapSettings(port=port, encryption="none", user="u", password="hunter2", timeout_ms=200)
    )
    try:
        mailbox.open()
        for uid in mailbox.uids_after(0)[:3]:
            mailbox.fetch(uid)
        mailbox.wait(0.01)
    finally:
        mailbox.close()


GREETING = b"* OK hi\r\n"
CAPABLE = b"* CAPABILITY IMAP4rev1 IDLE\r\n"
LOGIN = [GREETING, CAPABLE + b"AAAA0 OK\r\n", b"AAAA1 OK\r\n"]


@pytest.mark.parametrize(
    "said",
    [
        [b""],
        [b"SSH-2.0-OpenSSH\r\n"],
        [b"* BYE go away\r\n"],
        [b"x" * 1_000_000],
        [GREETING, b"* CAPABILITY " + b"{99999999999}\r\n"],
        [GREETING, b"\xff\xfe\0\r\n" * 10],
        [GREETING, CAPABLE + b"AAAA0 NO hunter2\r\n", b"AAAA1 NO your password is hunter2\r\n"],
        [GREETING, b"* CAPABILITY IMAP4rev1 LOGINDISABLED\r\n+ OK\r\n"],
    ],
)
def test_an_imap_server_that_is_none_is_an_error_without_the_password(said):
    with rambling(*said) as port, pytest.raises(RapportError) as raised:
        use_mailbox(port)
    assert "hunter2" not in f"{raised.value} {raised.value.hint}"


@contextmanager
def answering(answers):
    """An IMAP server that says these things about commands, by the words in them, and then OK."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            connection, _ = listening.accept()
            with connection, connection.makefile("rb") as heard:
                connection.sendall(GREETING)
                for line in heard:
                    said = [words for about, words in answers.items() if about in line]
                    connection.sendall(b"".join([*said, line.split()[0], b" OK done\r\n"]))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        thread.join(10)


@pytest.mark.parametrize(
    "fetched",
    [
        b"* 1 FETCH (UID 1 RFC822.SIZE 5 BODY[]<0> {5}\r\nhello)\r\n",
        b"* 1 FETCH (UID 1 BODY[]<0> {5}\r\nhello RFC822.SIZE 5)\r\n",
        b"* 2 FETCH (FLAGS ())\r\n* 1 FETCH (BODY[]<0> {5}\r\nhello RFC822.SIZE 5 UID 1)\r\n",
    ],
    ids=["size first", "size last", "news of another mail before"],
)
def test_a_mail_is_read_in_whatever_order_the_server_says_its_parts(fetched):
    """The standard leaves the order to the server."""
    with answering({b"CAPABILITY": CAPABLE, b"FETCH": fetched}) as port:
        mailbox = Mailbox(ImapSettings(port=port, encryption="none", user="u", timeout_ms=5_000))
        mailbox.open()
        try:
            found = mailbox.fetch(1)
        finally:
            mailbox.close()
    assert found == FetchedMail(1, b"hello", cut=False)


lines = st.lists(
    st.sampled_from(
        [
            b"* OK\r\n",
            b"* 5 EXISTS\r\n",
            b"* SEARCH 1 2 x 99999999999999999999\r\n",
            b"* 1 FETCH (RFC822.SIZE 5 BODY[]<0> {5}\r\nhello)\r\n",
            b"* 1 FETCH (RFC822.SIZE x BODY[] {-1}\r\n",
            b"* 1 FETCH {3}\r\nabc{2}\r\nxy\r\n",
            b"* OK [UIDVALIDITY x]\r\n",
            b"* CAPABILITY IMAP4rev1 IDLE AUTH=PLAIN\r\n",
            b"* LIST {2}\r\n",
            b"+ \r\n",
            b"+ !!!not base64\r\n",
            b"AAAA0 OK\r\nAAAA1 OK\r\nAAAA2 OK\r\n",
            b"AAAA3 OK\r\nAAAA4 OK\r\nAAAA5 OK\r\n",
            b"AAAA1 NO\r\n",
            b"\r\n",
        ]
    )
    | st.binary(max_size=20),
    max_size=6,
).map(b"".join)


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(st.lists(lines, max_size=8))
def test_whatever_an_imap_server_says_only_errors_of_ours_come_out(said):
    with rambling(GREETING, *said) as port:
        try:
            use_mailbox(port)
        except RapportError as error:
            assert error.code.startswith(("imap.", "feature."))


replies = st.lists(
    st.sampled_from(
        [
            b"220 hi\r\n",
            b"331 password\r\n",
            b"230 in\r\n",
            b"200 ok\r\n",
            b"227 (127,0,0,1,0,1)\r\n",
            b"229 (|||1|)\r\n",
            b"227 nonsense\r\n",
            b"530 hunter2\r\n",
            b"220-never\r\n",
            b"\r\n",
            b"999\r\n",
        ]
    )
    | st.binary(max_size=20),
    max_size=3,
).map(b"".join)


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(st.lists(replies, max_size=8))
def test_whatever_an_ftp_server_says_only_errors_of_ours_come_out(said):
    with rambling(*said) as port:
        server = FtpServer(
            host="127.0.0.1", port=port, user="u", password="hunter2", timeout_ms=200
        )
        try:
            with FtpFolder(server) as folder:
                folder.files(10)
                folder.fetch("a", 10)
        except RapportError as error:
            assert error.code.startswith("ftp.")
            assert "hunter2" not in f"{error} {error.hint}"
