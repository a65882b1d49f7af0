"""`rapport doctor` asks the context brokers that a site names. [CX-4, UX-3]"""

from __future__ import annotations

from pathlib import Path

import pytest

from rapport.site.doctor import examine_site
from support.processes.node import NodeProcess
from support.servers.ports import free_port

pytestmark = pytest.mark.slow

SITE = """
[site]
name = "labs"
[concepts.room.attributes]
status = "text"
[context]
listen = "127.0.0.1:{own}"
join = ["127.0.0.1:{other}"]
"""


def test_the_site_s_own_broker_and_those_it_joins_are_asked(tmp_path: Path) -> None:
    own, other = free_port(), free_port()
    (tmp_path / "site.toml").write_text(SITE.format(own=own, other=other))
    before = {one.part: one for one in examine_site(tmp_path)}
    found = before[f"[context] 127.0.0.1:{own}"]
    assert "not reached" in found.state
    assert "rapport up" in found.hint
    with NodeProcess(tmp_path) as node:
        node.start()
        while_up = {one.part: one for one in examine_site(tmp_path)}
    answered = while_up[f"[context] 127.0.0.1:{own}"]
    assert "answers: 0 neighbours, 0 records" in answered.state
    assert "not reached" in while_up[f"[context] 127.0.0.1:{other}"].state
