"""What docs/how-to/postgres.md shows works as it stands there. [CH-13]"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import psycopg

from rapport.channel.backends.stores import open_channels
from rapport.channel.config import channels_from_site
from rapport.core.event import Event
from rapport.kernel.toml import TomlFile

PAGE = (Path(__file__).parents[2] / "docs/how-to/postgres.md").read_text()


def shown(language: str) -> str:
    return "\n".join(re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL))


def test_the_page_can_be_followed(tmp_path, clock, postgres_server, monkeypatch):
    (tmp_path / "site.toml").write_text(f'name = "how-to"\n{shown("toml")}')
    declared, problems = channels_from_site(TomlFile.load(tmp_path / "site.toml"))
    assert problems == []
    dsn = postgres_server.new_database()
    monkeypatch.setenv("RAPPORT_PG", dsn)

    async def publish() -> None:
        channels = open_channels(
            tmp_path / "data", clock, declared, site=tmp_path, segment_bytes=20_000
        )
        channels.use_rules(declared)
        rooms = [b'{"room":"r1"}', b'{"room":"r2"}', b'{"room":"r1"}', b"no json"]
        events = [Event("s", str(number), "t", "", 0, data) for number, data in enumerate(rooms)]
        await channels.channel("readings").append(events)
        await channels.close()

    asyncio.run(publish())
    with psycopg.connect(dsn) as connection:
        found = connection.execute(shown("sql")).fetchall()
    assert [(room, count) for _day, room, count in found] == [("r1", 2), ("r2", 1)]
