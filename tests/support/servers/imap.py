"""A real IMAP server for tests: Dovecot on a free port of the loopback, without any rights. [CO-16]

A conftest takes the fixture: `from support.servers.imap import imap_server`. The program
comes from Debian (`dovecot-imapd`); when it is absent it is installed by root, for others the tests
are skipped and say the command.
"""

from __future__ import annotations

import base64
import fcntl
import getpass
import grp
import imaplib
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from rapport.core.errors import Unavailable
from support.servers.ports import free_port

INSTALL = ("apt-get", "install", "-y", "--no-install-recommends", "dovecot-imapd")
_SERVANT = "nobody"
"""Who runs the server when the tests run as root, whom Dovecot keeps from mail."""
_START_SECONDS, _STOP_SECONDS, _PAUSE_SECONDS = 20.0, 10, 0.05
PASSWORD = 'päss wörd"\\'
_CONFIGURATION = """
protocols = imap
listen = 127.0.0.1
base_dir = {home}/run
state_dir = {home}/state
log_path = {home}/server.log
ssl = {ssl}
{certificate}
disable_plaintext_auth = no
auth_mechanisms = plain login
auth_failure_delay = 0
default_internal_user = {user}
default_internal_group = {group}
default_login_user = {user}
first_valid_uid = 1
mail_location = maildir:~/Maildir
mail_max_userip_connections = 100
passdb {{
  driver = static
  args = password={{PLAIN.b64}}{password}
}}
userdb {{
  driver = static
  args = uid={uid} gid={gid} home={home}/people/%u
}}
namespace inbox {{
  inbox = yes
}}
service anvil {{
  chroot =
}}
service imap-login {{
  chroot =
  inet_listener imap {{
    port = {port}
  }}
  inet_listener imaps {{
    port = {tls_port}
    ssl = yes
  }}
}}
service stats {{
  chroot =
}}
"""


class ImapServer:
    """A server with mailboxes of its own; started again it goes on with the same mails and port.

    Calls block. `remove` leaves neither process nor directory behind.
    """

    def __init__(self, *, certificate: Path | None = None) -> None:
        """With a certificate and key (one PEM file) it encrypts after STARTTLS."""
        self._home = Path(tempfile.mkdtemp(prefix="rapport-imap-"))
        self.port = free_port()
        self.tls_port = free_port() if certificate else 0
        self._names = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._write_configuration(certificate)

    def start(self) -> None:
        """Returns when it greets; raises Unavailable when it does not."""
        self._process = subprocess.Popen(
            [dovecot_binary(), "-F", "-c", str(self._home / "dovecot.conf")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **self._as_user(),
        )
        for _look in range(int(_START_SECONDS / _PAUSE_SECONDS)):
            if self._greets():
                return
            if self._process.poll() is not None:
                break
            threading.Event().wait(_PAUSE_SECONDS)
        raise Unavailable(self.told()[-2_000:], code="testing.imap_did_not_start")

    def stop(self) -> None:
        """Ends it and cuts all connections; a server that is down stays so."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGTERM)
            process.wait(_STOP_SECONDS)

    def remove(self) -> None:
        """Ends it for good and deletes what it kept."""
        self.stop()
        shutil.rmtree(self._home, ignore_errors=True)

    def new_user(self) -> str:
        """A person with an empty mailbox; the password is `PASSWORD`."""
        return f"user{next(self._names)}"

    def deliver(self, user: str, mail: EmailMessage | bytes, folder: str = "INBOX") -> None:
        """Puts a mail into a mailbox, as if it had come."""
        raw = mail if isinstance(mail, bytes) else bytes(mail)
        connection = self._logged_in(user)
        try:
            answer, said = connection.append(folder, "", "", raw)
            assert answer == "OK", said
        finally:
            connection.logout()

    def mails(self, user: str, folder: str = "INBOX") -> list[tuple[str, bytes]]:
        """What lies in a folder: flags and bytes of each mail."""
        connection = self._logged_in(user)
        try:
            answer, count = connection.select(folder, readonly=True)
            if answer != "OK" or count == [b"0"]:
                return []
            found = connection.fetch("1:*", "(FLAGS BODY.PEEK[])")[1]
            return [(str(part[0]), part[1]) for part in found if isinstance(part, tuple)]
        finally:
            connection.logout()

    def renumber(self, user: str) -> None:
        """Gives every mail a new number, as a mailbox restored from a backup has them."""
        maildir = self._home / "people" / user / "Maildir"
        for index in maildir.glob("dovecot.index*"):
            index.unlink()
        numbers = maildir / "dovecot-uidlist"
        version, validity, *_rest = numbers.read_text().splitlines()[0].split()
        numbers.write_text(f"{version} V{int(validity[1:]) + 1} N1\n")

    def told(self) -> str:
        """What it wrote about itself."""
        log = self._home / "server.log"
        return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""

    def _logged_in(self, user: str) -> imaplib.IMAP4:
        connection = imaplib.IMAP4("127.0.0.1", self.port, timeout=10)
        connection.authenticate("PLAIN", lambda _: f"\0{user}\0{PASSWORD}".encode())
        return connection

    def _greets(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as probe:
                return probe.recv(4).startswith(b"* OK")
        except OSError:
            return False

    def _as_user(self) -> dict[str, Any]:
        if os.geteuid() != 0:
            return {}
        return {"user": _SERVANT, "group": _group(_SERVANT), "extra_groups": ()}

    def _write_configuration(self, certificate: Path | None) -> None:
        user = _SERVANT if os.geteuid() == 0 else getpass.getuser()
        known = pwd.getpwnam(user)
        tls = ""
        if certificate is not None:
            own = shutil.copy(certificate, self._home / "server.pem")
            tls = f"ssl_cert = <{own}\nssl_key = <{own}"
        text = _CONFIGURATION.format(
            home=self._home,
            port=self.port,
            tls_port=self.tls_port,
            user=user,
            group=_group(user),
            uid=known.pw_uid,
            password=base64.b64encode(PASSWORD.encode()).decode(),
            gid=known.pw_gid,
            ssl="yes" if certificate else "no",
            certificate=tls,
        )
        (self._home / "dovecot.conf").write_text(text, encoding="utf-8")
        if os.geteuid() == 0:
            for place in (self._home, *self._home.iterdir()):
                shutil.chown(place, known.pw_uid, known.pw_gid)


def dovecot_binary() -> str:
    """The server's program; raises Unavailable."""
    found = shutil.which("dovecot", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is None:
        raise Unavailable("there is no dovecot", code="testing.no_imap", hint=" ".join(INSTALL))
    return found


def ensure_dovecot() -> None:
    """Installs the program when root runs the tests; otherwise skips them, saying the command."""
    try:
        dovecot_binary()
        return
    except Unavailable as absent:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            pytest.skip(f"{absent.message}: run {absent.hint}")
    with (Path(tempfile.gettempdir()) / "rapport-dovecot.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several workers of one run may want it
        if shutil.which("dovecot") is None:
            quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
            subprocess.run(["apt-get", "update"], env=quiet, check=False, capture_output=True)
            subprocess.run(INSTALL, env=quiet, check=True, capture_output=True)


def _group(user: str) -> str:
    return grp.getgrgid(pwd.getpwnam(user).pw_gid).gr_name


@pytest.fixture(scope="session")
def imap_server() -> Iterator[ImapServer]:
    """The server of a test run, started by the first test that asks for it."""
    ensure_dovecot()
    server = ImapServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()
