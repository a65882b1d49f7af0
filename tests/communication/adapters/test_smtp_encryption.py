"""Mail over an encrypted connection, from the first byte or after STARTTLS. [CO-16]"""

from __future__ import annotations

import asyncio
import ssl
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import aiosmtplib
import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

from rapport.communication.adapters.mail import (
    SMTP_PORTS,
    Encryption,
    MailSettings,
    SmtpConnections,
    read_mail_settings,
)
from rapport.core.errors import Problem
from rapport.kernel.clock import SystemClock
from rapport.kernel.config_fields import Fields
from rapport.kernel.toml import TomlFile
from support.servers.certificates import write_certificate
from support.servers.ports import free_port


class _Mailbox:
    """What the server took, and whether it was encrypted."""

    def __init__(self) -> None:
        self.encrypted: list[bool] = []

    async def handle_DATA(self, server: Any, _session: Any, _envelope: Any) -> str:
        self.encrypted.append(server.transport.get_extra_info("cipher") is not None)
        return "250 taken"


def serve(mailbox: _Mailbox, encryption: Encryption, certificate: Path) -> Controller:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    how: dict[str, Any] = (
        {"ssl_context": context}
        if encryption == "tls"
        else {"tls_context": context, "require_starttls": True}
    )
    allowed = AuthResult(success=True)
    return Controller(
        mailbox,
        hostname="127.0.0.1",
        port=free_port(),
        authenticator=lambda *_args: allowed,
        auth_require_tls=encryption != "tls",
        **how,
    )


def settings_of(text: str) -> tuple[MailSettings, list[Problem]]:
    problems: list[Problem] = []
    section = TomlFile.parse(text.encode(), name="site.toml").section("adapters", "mail")
    settings = read_mail_settings(Fields(section, problems), Path())
    return settings, problems


@pytest.mark.slow
@pytest.mark.parametrize("encryption", ["tls", "starttls"])
def test_a_mail_goes_out_encrypted_to_a_server_that_somebody_vouches_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encryption: Encryption
) -> None:
    certificate, mailbox = write_certificate(tmp_path), _Mailbox()
    server = serve(mailbox, encryption, certificate)
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "a@example.org", "b@example.org", "drill"

    async def hand_over() -> None:
        settings = MailSettings(
            host="127.0.0.1", port=server.port, encryption=encryption, user="a", password="b"
        )
        connections = SmtpConnections(settings, SystemClock())
        try:
            await connections.send(mail)
        finally:
            await connections.close()

    server.start()
    try:
        with pytest.raises((ssl.SSLError, aiosmtplib.SMTPException, OSError)):
            asyncio.run(hand_over())
        assert mailbox.encrypted == []
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        asyncio.run(hand_over())
    finally:
        server.stop()
    assert mailbox.encrypted == [True]


@pytest.mark.parametrize("encryption", SMTP_PORTS)
def test_each_encryption_has_its_usual_port(encryption: Encryption) -> None:
    settings, problems = settings_of(f'[adapters.mail]\nencryption = "{encryption}"\n')
    assert (settings.encryption, settings.port) == (encryption, SMTP_PORTS[encryption])
    assert problems == []


def test_starttls_of_older_sites_still_says_how_to_encrypt() -> None:
    settings, problems = settings_of("[adapters.mail]\nstarttls = true\nport = 25\n")
    assert (settings.encryption, settings.port, problems) == ("starttls", 25, [])


def test_a_password_in_the_clear_is_refused_but_on_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MAIL_PASSWORD", "secret")
    said = '[adapters.mail]\nhost = "{}"\npassword = "env:MAIL_PASSWORD"\n'
    assert settings_of(said.format("127.0.0.1"))[1] == []
    (problem,) = settings_of(said.format("mail.example.org"))[1]
    assert problem.code == "adapter.not_encrypted"
