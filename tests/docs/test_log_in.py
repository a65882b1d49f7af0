"""The page about logging in is true: its settings are read, its Python runs, its limits hold."""

from __future__ import annotations

import re
from pathlib import Path

from rapport.communication.config import ArrivalConfig, arrivals_from_site
from rapport.communication.sessions.passwords import OF_ORIGIN, OF_PEER
from rapport.kernel.toml import TomlFile

PAGE = (Path(__file__).parents[2] / "docs/how-to/log-in.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_its_python_runs() -> None:
    for block in blocks("python"):
        exec(compile(block, "log-in.md", "exec"), {})


def test_its_settings_are_the_defaults() -> None:
    [text] = blocks("toml")
    assert arrivals_from_site(TomlFile.parse(text.encode(), name="site.toml")) == (
        ArrivalConfig(),
        [],
    )


def test_its_limits_are_those_in_force() -> None:
    assert (OF_PEER.free, OF_PEER.longest_ms) == (5, 60_000)
    assert (OF_ORIGIN.free, OF_ORIGIN.longest_ms) == (20, 300_000)
    assert ArrivalConfig().arriving.most_held == 100
