"""How a query would be answered can be asked at a endpoint and from the terminal. [CH-4]"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from rapport.cli.main import run

INDEX = '[channels.mine]\nindex = ["data.room", "type"]\n'
CASES = [
    ("data.room = 'lab'", "looked up: data.room"),
    ("data.room = 'lab' AND data.n > 3", "looked up: data.room"),
    ("data.n > 3", "answered by reading"),
    ("", "answered by reading"),
]


@pytest.mark.slow
def test_a_endpoint_says_what_of_a_query_is_looked_up(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node(site_text=INDEX) as api:
            for condition, plan in CASES:
                answer = await api.call("GET", f"/channels/mine/plan?query={quote(condition)}")
                assert answer.status == 200
                assert answer.json()["plan"].startswith(plan), condition
            bad = await api.call("GET", "/channels/mine/plan?query=data.room%20%3D")
            assert (bad.status, bad.json()["title"]) == (400, "query.unexpected")
            await api.node.channels.interceptors.declare(
                "hide", "mine", "drop", {"where": "data.n = 1"}, at="delivery"
            )
            hidden = await api.call("GET", f"/channels/mine/plan?query={quote(CASES[0][0])}")
            assert "interceptors" in hidden.json()["plan"]

    asyncio.run(scenario())


def test_the_terminal_says_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "site.toml").write_text(f'[site]\nname = "a"\n{INDEX}')
    for condition, plan in CASES[:3]:
        command = ["read", "mine", "--site", str(tmp_path), "--explain-query", condition]
        assert run(command) == 0
        assert capsys.readouterr().out.startswith(plan)
