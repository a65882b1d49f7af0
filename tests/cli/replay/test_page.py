"""docs/how-to/replay.md does what it says. [PO-8, UX-3]"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.pages import carry_out
from support.servers.ports import free_port

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "replay.md"
BLOCK = re.compile(r"```sh\n(.*?)```\n```text\n(.*?)```\n", re.DOTALL)


@pytest.mark.slow
def test_the_page_on_replaying_prints_what_it_says(tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) == 4
    script = "\n".join(
        f'{{\n{commands}}} > "$TOLD/told{number}" 2> "$TOLD/said{number}"'
        for number, (commands, _said) in enumerate(blocks)
    )
    carry_out(script.replace("[site]", f"[node]\nport = {free_port()}\n[site]", 1), tmp_path)
    for number, (commands, said) in enumerate(blocks):
        told = [
            line.rstrip()
            for name in ("told", "said")
            for line in (tmp_path / f"{name}{number}").read_text(encoding="utf-8").splitlines()
        ]
        assert sorted(told) == sorted(said.splitlines()), commands
