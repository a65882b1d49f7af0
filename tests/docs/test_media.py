"""docs/how-to/media.md: what it tells to write is a site without a fault. [CO-16]"""

from __future__ import annotations

import re
from pathlib import Path

from rapport.communication.adapters.build import adapter_names
from rapport.communication.declare import communication_from_site
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
