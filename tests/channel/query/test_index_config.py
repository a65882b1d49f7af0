"""What a site may declare for queries: indexed fields and scripts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rapport.channel.backends.stores import open_channels
from rapport.channel.config import channels_from_site
from rapport.channel.query.query_kinds import make_query
from rapport.core.event import Event, StoredEvent
from rapport.kernel.clock import ManualClock
from rapport.kernel.toml import TomlFile


def read(text: str) -> tuple[object, list[tuple[str, int]]]:
    declared, problems = channels_from_site(TomlFile.parse(text.encode(), name="site.toml"))
    return declared, [(problem.code, problem.line) for problem in problems]


def test_indexed_fields_and_scripts_are_read() -> None:
    file = TomlFile.parse(
        b'[channels."raw.*"]\nindex = ["subject", "data.order.@id"]\n'
        b'[channels.scripts]\nbusy = "scripts/busy.py:busy"\n',
        name="site.toml",
    )
    declared, problems = channels_from_site(file)
    assert problems == []
    assert declared.rules_for("raw.a").index == ("subject", "data.order.@id")
    assert declared.rules_for("scripts").index is None
    assert declared.scripts == {"busy": "scripts/busy.py:busy"}


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ('[channels]\nindex = ["room"]\n', "channel.bad_index", 2),
        ('[channels.events]\nindex = ["position"]\n', "channel.bad_index", 2),
        ('[channels.scripts]\nbusy = "busy"\n', "channel.bad_script", 2),
        ('[channels.scripts]\nbusy = "../busy.py:busy"\n', "channel.bad_script", 2),
    ],
)
def test_what_cannot_be_is_reported_at_its_place(text: str, code: str, line: int) -> None:
    assert read(text)[1] == [(code, line)]


def test_a_site_s_scripts_are_there_when_its_channels_are_open(tmp_path: Path) -> None:
    (tmp_path / "even.py").write_text(
        "def even(stored, arguments):\n    return stored.position % 2 == 0\n"
    )
    file = TomlFile.parse(b'[channels.scripts]\neven = "even.py:even"\n', name="site.toml")
    declared, _problems = channels_from_site(file)

    async def scenario() -> None:
        channels = open_channels(
            tmp_path / "log", ManualClock(0), declared, site=tmp_path, segment_bytes=1_000_000
        )
        query = make_query("script", {"name": "even"}, scripts=channels.source.scripts)
        assert not query.matches(StoredEvent(1, 1, Event("s", "1", "t", "", 0)))
        assert query.matches(StoredEvent(2, 1, Event("s", "1", "t", "", 0)))
        await channels.close()

    asyncio.run(scenario())


def test_two_sites_in_one_process_have_their_own_scripts(tmp_path: Path) -> None:
    async def scenario() -> None:
        opened = []
        for name in ("north", "south"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "own.py").write_text(
                "def own(stored, arguments):\n    return True\n"
            )
            text = f'[channels.scripts]\n{name} = "own.py:own"\n'
            declared, _ = channels_from_site(TomlFile.parse(text.encode(), name="site.toml"))
            site = tmp_path / name
            opened.append(
                open_channels(
                    site / "log", ManualClock(0), declared, site=site, segment_bytes=1_000_000
                )
            )
        assert [one.source.scripts.names() for one in opened] == [["north"], ["south"]]
        for one in opened:
            await one.close()

    asyncio.run(scenario())
