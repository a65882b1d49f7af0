"""docs/how-to/media.md: what it tells to write is a site without a fault. [CO-16]"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

import pytest

from rapport.communication.adapters.adapter_config import COMMON_KEYS, adapter_names
from rapport.communication.adapters.folder import FOLDER_INPUT_KEYS, FOLDER_KEYS
from rapport.communication.adapters.ftp import FTP_INPUT_KEYS, FTP_SERVER_KEYS
from rapport.communication.adapters.imap import IMAP_PUSH_KEYS
from rapport.communication.adapters.mail import MAIL_KEYS
from rapport.communication.adapters.mqtt import MQTT_INPUT_KEYS, MQTT_KEYS
from rapport.communication.config import communication_from_site
from rapport.kernel.plugins import Plugins
from rapport.kernel.toml import TomlFile

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "media.md"
SECRETS = {
    "broker.secret": "pass",
    "ben.apprise": "tgram://123:abc/chat",
    "sms.secret": "0123456789abcdef0123",
}


def test_the_tables_of_the_page_make_a_site(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    tables = "\n".join(re.findall(r"```toml\n(.*?)```", page, re.DOTALL))
    (tmp_path / "site.toml").write_text(f'[site]\nname = "hall"\n{tables}')
    for name, secret in SECRETS.items():
        (tmp_path / name).write_text(secret)
    declared, problems = communication_from_site(
        TomlFile.load(tmp_path / "site.toml"), tmp_path, adapters=adapter_names(Plugins())
    )
    assert problems == []
    assert {one.name: one.adapter for one in declared.inputs} == {
        "panels": "mqtt",
        "sms": "webhook",
    }
    assert declared.adapters() == ("apprise", "inbox", "mqtt", "ws")
    assert declared.inputs[0].settings.client == "rapport-hall-panels"


def keys_under(heading: str) -> set[str]:
    """The keys in code marks of the first column below a heading, and of the words before it."""
    page = PAGE.read_text(encoding="utf-8")
    part = re.split(r"\n#{2,3} ", page.split(f"\n### {heading}", 1)[1], maxsplit=1)[0]
    cells = [line.split("|")[1] for line in part.splitlines() if line.startswith("| `")]
    return {key for cell in cells for key in re.findall(r"`(\w+)`", cell)}


@pytest.mark.parametrize(
    ("heading", "keys"),
    [
        ("Mail out (SMTP)", MAIL_KEYS),
        ("Inputs", COMMON_KEYS),
        ("Mail in (IMAP)", IMAP_PUSH_KEYS),
        ("Folder out", FOLDER_KEYS),
        ("Folder in", FOLDER_INPUT_KEYS),
        ("FTP out", FTP_SERVER_KEYS),
        ("FTP in", {*FTP_INPUT_KEYS} - {*FTP_SERVER_KEYS} - {*FOLDER_INPUT_KEYS}),
        ("MQTT out", MQTT_KEYS),
        ("MQTT in", MQTT_INPUT_KEYS),
    ],
)
def test_the_page_has_exactly_the_keys_that_the_site_file_knows(
    heading: str, keys: Collection[str]
) -> None:
    assert keys_under(heading) == set(keys)
