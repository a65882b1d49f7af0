"""The page of the site: problems, files, identities, log, doctor, and who may see them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rapport import __version__
from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.kernel.telemetry import LOG_FILE
from rapport.node.wiring import make_node
from rapport.site.site import load_site
from rapport.web.app import serving
from support.freezer_site import warm_night, write_freezer_site
from web.conftest import Answer, NodeApi

ROLES = ("viewer", "operator", "editor", "admin")


def token_of(role: str) -> str:
    return f"{role}-0123456789abcdefXYZ-token"


@asynccontextmanager
async def served(directory: Path, replace: tuple[str, str] = ("", "")) -> AsyncIterator[NodeApi]:
    """A site with an identity for each role; `replace`: a piece of the site file and another."""
    write_freezer_site(directory)
    text = (directory / "site.toml").read_text()
    (directory / "site.toml").write_text(text.replace(*replace, 1))
    with (directory / "site.toml").open("a") as file:
        for role in ROLES:
            (directory / f"{role}.csv").write_text(token_of(role))
            file.write(f'\n[access.{role}x]\nrole = "{role}"\ntoken = "file:{role}.csv"\n')
    node = make_node(load_site(directory), NodeSettings(port=0), SystemClock())
    try:
        async with serving(node) as url:
            await node.start()
            yield NodeApi(node, url)
    finally:
        await node.stop()


async def ask(api: NodeApi, path: str, role: str = "admin", method: str = "GET") -> Answer:
    body = b"{}" if method == "POST" else None
    return await api.call(method, path, body, {"Authorization": f"Bearer {token_of(role)}"})


def run(scenario: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_each_role_sees_what_it_may(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path) as api:
            least = {
                "/site": "viewer",
                "/site/check": "editor",
                "/site/files": "editor",
                "/site/files/text?name=too-warm.dpl": "editor",
                "/site/files/text?name=site.toml": "admin",
                "/site/access": "admin",
                "/site/log": "admin",
            }
            for path, lowest in least.items():
                for role in ROLES:
                    status = (await ask(api, path, role)).status
                    may = ROLES.index(role) >= ROLES.index(lowest)
                    assert status == (200 if may else 403), (path, role)

    run(scenario)


def test_the_status_counts_readings_and_bytes_by_family_of_channels(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path) as api:
            body = warm_night(api.node.clock.now_ms())
            bearer = {"Authorization": f"Bearer {token_of('admin')}"}
            assert (await api.call("POST", "/sources/freezers", body, bearer)).status == 200
            events = api.node.channels.channel("events")
            while events.last_position() < 120:
                assert await events.wait_after(events.last_position(), timeout_ms=20_000)
            status = (await ask(api, "/site", "viewer")).json()
            assert (status["name"], status["version"]) == ("cold-store", __version__)
            assert status["figures"]["readings"] == 120
            usage = {(one["part"], one["is_channels"]): one for one in status["usage"]}
            segment = tmp_path / ".rapport/log/logs/raw.freezers"
            size = sum(path.stat().st_size for path in segment.iterdir())
            assert usage["raw", True]["bytes"] == size > 0
            assert usage["indexes", False]["files"] > 0

    run(scenario)


def test_problems_of_the_files_have_place_and_hint_and_a_reload_is_refused_with_them(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with served(tmp_path) as api:
            before = (await ask(api, "/site/check")).json()["problems"]
            assert {one["severity"] for one in before} == {"warning"}
            text = (tmp_path / "too-warm.dpl").read_text()
            (tmp_path / "too-warm.dpl").write_text(text.replace("temperature", "temperatur"))
            with (tmp_path / "site.toml").open("a") as file:
                file.write('\n[peers.zoe]\naddresses = ["nobody-knows:secret-address"]\n')
            for role in ("editor", "admin"):
                problems = (await ask(api, "/site/check", role)).json()["problems"]
                [policy] = [one for one in problems if one["file"] == "too-warm.dpl"]
                assert (policy["line"], policy["severity"]) == (4, "error")
                assert "temperature" in policy["hint"]
                lines = [one["excerpt"] for one in problems if one["file"] == "site.toml"]
                assert any("secret-address" in line for line in lines) is (role == "admin")
            assert (await ask(api, "/reload", "editor", "POST")).status == 403
            refused = await ask(api, "/reload", "admin", "POST")
            assert refused.status == 400
            assert {one["file"] for one in refused.json()["problems"]} >= {"too-warm.dpl"}

    run(scenario)


def test_identities_are_listed_with_their_roles_and_without_tokens(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path) as api:
            answer = await ask(api, "/site/access")
            found = {one["name"]: one for one in answer.json()["identities"]}
            assert found["editorx"]["role"] == "editor"
            assert found["editorx"]["tokens"] == 1
            assert found["adminx"]["admin"]
            assert b"0123456789" not in answer.body
            assert b".csv" not in answer.body

    run(scenario)


def test_files_are_those_of_the_site_and_never_its_secrets(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path) as api:
            # A token that lies where a table is read from stays hidden.
            with (tmp_path / "site.toml").open("a") as file:
                file.write('\n[interpretations]\nfiles = ["*.csv", ".rapport/*", "../*"]\n')
            listed = (await ask(api, "/site/files", "editor")).json()["files"]
            names = [one["name"] for one in listed]
            assert names == [
                "site.toml",
                "freezers.csv",
                "persons.csv",
                "rooms.csv",
                "too-warm.dpl",
            ]
            text = (await ask(api, "/site/files/text?name=freezers.csv", "editor")).json()
            assert text["text"] == (tmp_path / "freezers.csv").read_text()
            assert text["is_whole"]
            for name in ("admin.csv", "gateway.token", ".rapport/node-id", "../x", "/etc/passwd"):
                answer = await ask(api, f"/site/files/text?name={name}")
                assert answer.status == 404, name
            (tmp_path / "rooms.csv").write_bytes(b"id\n\xff\n")
            refused = await ask(api, "/site/files/text?name=rooms.csv")
            assert (refused.status, refused.json()["title"]) == (400, "site.not_text")

    run(scenario)


def test_the_newest_entries_of_the_log_come_with_their_details(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path) as api:
            assert (await ask(api, "/site/log")).json() == {"entries": []}
            lines = [
                f'{{"event": "number {number}", "level": "{level}", "timestamp": "T", "n": 1}}\n'
                for number, level in enumerate(("info", "warning", "debug", "error"))
            ]
            (tmp_path / ".rapport" / f"{LOG_FILE}.1").write_text("".join(lines[:2]))
            log = tmp_path / ".rapport" / LOG_FILE
            log.write_text("".join(lines[2:]) + '{"event": "half an ent')
            entries = (await ask(api, "/site/log?lines=2")).json()["entries"]
            assert [one["event"] for one in entries] == ["number 1", "number 3"]
            assert entries[1] == {
                "time": "T",
                "level": "error",
                "event": "number 3",
                "details": {"n": "1"},
            }
            warned = (await ask(api, "/site/log?level=error")).json()["entries"]
            assert [one["event"] for one in warned] == ["number 3"]
            assert (await ask(api, "/site/log?lines=5000")).status == 400

    run(scenario)


def test_the_doctor_looks_at_the_installation_and_the_disk(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path) as api:
            assert (await ask(api, "/site/doctor", "editor")).status == 403
            found = (await ask(api, "/site/doctor")).json()["findings"]
            states = {one["part"]: one["state"] for one in found}
            assert states["rapport"] == __version__
            assert "GiB free" in states["disk space"]
            assert any("writable" in state for state in states.values())

    run(scenario)
