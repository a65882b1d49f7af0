"""Limits of size hold for channels that nothing is published to any more. [CH-14]"""

from __future__ import annotations

import asyncio
from pathlib import Path

from rapport.channel.backends.local import open_embedded
from rapport.channel.config import channels_from_site
from rapport.core.event import Event
from rapport.kernel.clock import ManualClock
from rapport.kernel.toml import TomlFile

RULES = b"[channels.burst]\nkeep_bytes = 100_000\n"


def test_a_burst_is_cut_to_its_limit_by_one_sweep_without_new_events(tmp_path: Path) -> None:
    async def scenario() -> None:
        channels = open_embedded(tmp_path, ManualClock(0))
        declared, problems = channels_from_site(TomlFile.parse(RULES, name="site.toml"))
        assert problems == []
        channels.use_rules(declared)
        burst = channels.channel("burst")
        for number in range(0, 1_000, 10):
            events = [
                Event("s", str(number + one), "t", "", 0, b'"' + b"x" * 1_000 + b'"')
                for one in range(10)
            ]
            await burst.append(events)
        (swept,) = await channels.sweeper.sweep_all()
        assert 30_000 <= swept.kept_bytes <= 100_000  # the newest stay, in pieces of 64 KiB
        assert swept.trimmed > 0
        assert burst.last_position() == 1_000
        await channels.close()

    asyncio.run(scenario())
