"""docs/how-to/context-keys.md is true: its commands print what it says. [CX-9]"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rapport.transport.keys import load_keys
from support.pages import carry_out

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "context-keys.md"
BLOCK = re.compile(r"```sh\n(.*?)```\n(?:```text\n(.*?)```\n)?", re.DOTALL)


def is_as_said(told: str, said: str) -> bool:
    """Whether it is what the page says, … standing for anything within a line."""
    return re.fullmatch(re.escape(said).replace("…", ".*"), told) is not None


@pytest.mark.slow
def test_the_commands_of_the_page_print_what_it_says(tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) == 4
    parts = [
        f'{{\n{block}}} > "$TOLD/told{number}" 2>&1' for number, (block, _) in enumerate(blocks)
    ]
    carry_out("\n".join(parts), tmp_path)
    for number, (_commands, said) in enumerate(blocks):
        told = (tmp_path / f"told{number}").read_text()
        assert not said or is_as_said(told, said), told
    ring = load_keys(tmp_path / "context-keys.toml")
    assert [(key.owner, key.kind) for key in ring] == [
        ("brokers", "network"),
        ("weather-station", "client"),
        ("brokers", "network"),
        ("weather-station", "client"),
    ]
    assert [key.owner for key in load_keys(tmp_path / "weather-station.toml")] == [
        "weather-station"
    ]
