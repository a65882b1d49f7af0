"""Files of a site changed over HTTP: shown, checked, written, taken over, undone. [CN-14]"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rapport.core.errors import Problem, SiteError
from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.node.wiring import make_node
from rapport.site.site import load_site
from rapport.web.app import serving
from web.conftest import Answer, NodeApi
from web.test_site import ROLES, served, token_of

WARM = "too-warm.dpl"


def run(scenario: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 120))


async def send(
    api: NodeApi, method: str, path: str, text: str | None = None, role: str = "editor"
) -> Answer:
    headers = {"Authorization": f"Bearer {token_of(role)}", "Content-Type": "text/plain"}
    return await api.call(method, path, None if text is None else text.encode(), headers)


async def opened(api: NodeApi, name: str, role: str = "editor") -> tuple[str, str]:
    """The text of a file and its digest."""
    found = (await send(api, "GET", f"/site/files/text?name={name}", role=role)).json()
    return found["text"], found["digest"]


async def save(
    api: NodeApi, name: str, text: str, digest: str = "", role: str = "editor"
) -> Answer:
    return await send(api, "PUT", f"/site/files/text?name={name}&expects={digest}", text, role)


async def propose(
    api: NodeApi, name: str, text: str, digest: str = "", role: str = "editor"
) -> Answer:
    path = f"/site/files/change?name={name}&expects={digest}"
    return await send(api, "POST", path, text, role)


async def changes(api: NodeApi, role: str = "editor") -> list[dict[str, Any]]:
    found = (await send(api, "GET", "/site/changes", role=role)).json()
    return list(found["changes"])


async def in_force(api: NodeApi, policy: str = "too-warm") -> str:
    return str((await send(api, "GET", f"/policies/{policy}")).json()["text"])


def all_files(directory: Path) -> dict[str, bytes]:
    """The files of the site outside its data directory."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and ".rapport" not in path.parts
    }


def test_a_policy_is_changed_shown_taken_over_listed_and_undone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path) as api:
            before = all_files(tmp_path)
            text, digest = await opened(api, WARM)
            other = text.replace("-12 degC", "-15 degC")
            proposed = (await propose(api, WARM, other, digest)).json()
            assert proposed["difference"].splitlines()[:2] == [f"--- a/{WARM}", f"+++ b/{WARM}"]
            assert "+  temperature of F above -15 degC for 2 min" in proposed["difference"]
            assert [one["severity"] for one in proposed["problems"]] == []
            assert not proposed["is_read_only"]
            assert all_files(tmp_path) == before, "a proposal changes nothing"

            done = (await save(api, WARM, other, digest)).json()
            assert done["in_force"]
            assert done["difference"] == proposed["difference"]
            assert (tmp_path / WARM).read_text() == other
            assert await in_force(api) == other

            [listed] = await changes(api)
            assert (listed["id"], listed["by"], listed["file"]) == (done["id"], "editorx", WARM)
            assert listed["difference"] == proposed["difference"]
            assert listed["may_undo"]
            event = (await api.node.channels.channel("site.changes").read_after(0))[0].event
            assert event.payload()["by"] == "editorx"
            assert (event.payload()["added"], event.payload()["removed"]) == (1, 1)

            undone = await send(api, "POST", f"/site/changes/{done['id']}/undo", "")
            assert undone.status == 200
            assert undone.json()["digest"] == digest
            assert all_files(tmp_path) == before
            assert await in_force(api) == text
            newest, oldest = await changes(api)
            assert (newest["undoes"], oldest["undone"]) == (done["id"], True)
            assert not oldest["may_undo"]
            again = await send(api, "POST", f"/site/changes/{done['id']}/undo", "")
            assert (again.status, again.json()["title"]) == (409, "site.changed")

    run(scenario)


def test_each_role_changes_what_it_may(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path) as api:
            least = {"site.toml": "admin", WARM: "editor", "freezers.csv": "editor"}
            for name, lowest in least.items():
                text, digest = await opened(api, name, "admin")
                for role in ROLES:
                    status = 200 if ROLES.index(role) >= ROLES.index(lowest) else 403
                    assert (await propose(api, name, text, digest, role)).status == status
                    assert (await save(api, name, text, digest, role)).status == status
            assert (await send(api, "GET", "/site/changes", role="operator")).status == 403
            assert await changes(api) == [], "the same text is no change"

            text, digest = await opened(api, "site.toml", "admin")
            done = await save(api, "site.toml", f"{text}# secret-address\n", digest, "admin")
            [seen] = await changes(api, "admin")
            assert "secret-address" in seen["difference"]
            [hidden] = await changes(api, "editor")
            assert (hidden["file"], hidden["difference"]) == ("site.toml", "")
            undo = f"/site/changes/{done.json()['id']}/undo"
            assert (await send(api, "POST", undo, "", "editor")).status == 403
            assert (await send(api, "POST", undo, "", "admin")).status == 200
            event = (await api.node.channels.channel("site.changes").read_after(0))[0].event
            assert b"secret-address" not in event.data

    run(scenario)


def test_a_file_that_changed_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path) as api:
            text, digest = await opened(api, WARM)
            theirs = text.replace("-12", "-13")
            (tmp_path / WARM).write_text(theirs)
            for answer in (
                await save(api, WARM, text.replace("-12", "-15"), digest),
                await propose(api, WARM, text.replace("-12", "-15"), digest),
                await save(api, WARM, text.replace("-12", "-15")),
            ):
                assert (answer.status, answer.json()["title"]) == (409, "state.stale_version")
                [problem] = answer.json()["problems"]
                assert "-  temperature of F above -13 degC" in problem["excerpt"]
                assert "+  temperature of F above -15 degC" in problem["excerpt"]
            assert (tmp_path / WARM).read_text() == theirs
            _, digest = await opened(api, WARM)
            done = (await save(api, WARM, text.replace("-12", "-15"), digest)).json()
            (tmp_path / WARM).write_text(theirs)
            refused = await send(api, "POST", f"/site/changes/{done['id']}/undo", "")
            assert refused.status == 409
            assert (tmp_path / WARM).read_text() == theirs

    run(scenario)


def test_what_the_check_refuses_is_not_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path) as api:
            before = all_files(tmp_path)
            text, digest = await opened(api, WARM)
            wrong = text.replace("temperature", "temperatur")
            [problem] = (await propose(api, WARM, wrong, digest)).json()["problems"]
            assert (problem["file"], problem["line"], problem["severity"]) == (WARM, 4, "error")
            refused = await save(api, WARM, wrong, digest)
            assert (refused.status, refused.json()["problems"]) == (400, [problem])
            # A table's row that a policy cannot do without, and a site file that is no TOML.
            text, digest = await opened(api, "freezers.csv")
            refused = await save(api, "freezers.csv", text.replace("id,", "number,"), digest)
            assert refused.status == 400
            assert refused.json()["problems"][0]["file"] in ("freezers.csv", "site.toml")
            text, digest = await opened(api, "site.toml", "admin")
            refused = await save(api, "site.toml", f"{text}\n[", digest, "admin")
            assert refused.json()["problems"][0]["line"] == text.count("\n") + 2
            assert all_files(tmp_path) == before
            assert await changes(api) == []

    run(scenario)


def test_what_the_node_refuses_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with served(tmp_path) as api:
            before = all_files(tmp_path)
            text, digest = await opened(api, WARM)
            other = text.replace("-12", "-15")
            seen: list[str] = []

            async def refuse(by: str) -> None:
                seen.append((tmp_path / WARM).read_text())
                raise SiteError([Problem(code="reload.no", message="not now")])

            with monkeypatch.context() as patched:
                patched.setattr(api.node.site_changes, "_reload", refuse)
                refused = await save(api, WARM, other, digest)
            assert (refused.status, refused.json()["title"], seen) == (400, "reload.no", [other])
            assert all_files(tmp_path) == before
            assert await changes(api) == []
            assert (await save(api, WARM, other, digest)).status == 200

    run(scenario)


def test_what_only_a_start_takes_over_stays_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path) as api:
            text, digest = await opened(api, "site.toml", "admin")
            other = text.replace('lateness = "1s"', 'lateness = "3s"')
            done = (await save(api, "site.toml", other, digest, "admin")).json()
            assert (done["in_force"], done["is_written"]) == (False, True)
            assert [one["code"] for one in done["restart"]] == ["reload.needs_restart"]
            undone = await send(api, "POST", f"/site/changes/{done['id']}/undo", "", "admin")
            assert undone.json()["in_force"]
            assert (tmp_path / "site.toml").read_text() == text

    run(scenario)


def test_a_node_that_dies_between_writing_and_reloading_finds_its_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(by: str) -> None:
        raise RuntimeError("the process is gone")

    async def scenario() -> None:
        async with served(tmp_path) as api:
            text, digest = await opened(api, WARM)
            other = text.replace("-12", "-15")
            found = api.node.site_changes
            with monkeypatch.context() as dead:
                dead.setattr(found, "_reload", die)
                dead.setattr(found, "_put_back", lambda *_: None)
                with pytest.raises(RuntimeError):
                    await found.apply(WARM, other, expects=digest, by="ana")
                dead.setattr("rapport.node.site_changes.replace_file", lambda *_: None)
                rows, digest = await opened(api, "freezers.csv")
                with pytest.raises(RuntimeError):  # dies before the file is written
                    await found.apply("freezers.csv", rows + "f9,x\n", expects=digest, by="ben")
        node = make_node(load_site(tmp_path), NodeSettings(port=0), SystemClock())
        try:
            async with serving(node) as url:
                await node.start()
                api = NodeApi(node, url)
                [listed] = await changes(api)
                assert (listed["file"], listed["by"], listed["may_undo"]) == (WARM, "ana", True)
                assert await in_force(api) == other
                [stored] = await node.channels.channel("site.changes").read_after(0)
                assert stored.event.payload()["by"] == "ana"
                undone = await send(api, "POST", f"/site/changes/{listed['id']}/undo", "")
                assert undone.status == 200
                assert await in_force(api) == text
        finally:
            await node.stop()

    run(scenario)


def test_changes_survive_a_restart_and_can_still_be_undone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path) as api:
            text, digest = await opened(api, WARM)
            done = (await save(api, WARM, text.replace("-12", "-15"), digest)).json()
        node = make_node(load_site(tmp_path), NodeSettings(port=0), SystemClock())
        try:
            async with serving(node) as url:
                await node.start()
                api = NodeApi(node, url)
                [listed] = await changes(api)
                assert listed["difference"] == done["difference"]
                undo = await send(api, "POST", f"/site/changes/{done['id']}/undo", "")
                assert undo.status == 200
                assert (tmp_path / WARM).read_text() == text
        finally:
            await node.stop()

    run(scenario)


def test_nothing_but_the_files_of_the_site_is_changed(tmp_path: Path) -> None:
    async def scenario() -> None:
        site = tmp_path / "site"
        async with served(site) as api:
            (tmp_path / "outside").mkdir()
            (site / "elsewhere").symlink_to(tmp_path / "outside")
            (site / "link.dpl").symlink_to(tmp_path / "outside" / "link.dpl")
            before = all_files(tmp_path)
            text, _ = await opened(api, WARM)
            names = {
                "../x.dpl": 400,
                "%2E%2E/x.dpl": 400,
                "elsewhere/x.dpl": 400,
                "elsewhere/../x.dpl": 400,
                "link.dpl": 400,
                "/etc/x.dpl": 400,
                ".rapport/x.dpl": 400,
                ".x.dpl": 400,
                "./x.dpl": 400,
                "a%00.dpl": 400,
                "a%5C..%5Cx.dpl": 400,
                "missing/x.dpl": 400,
                "": 400,
                "admin.csv": 400,
                "gateway.token": 400,
                ".rapport/node-id": 400,
                "notes.txt": 400,
                "x.py": 400,
                "site.toml/x.dpl": 400,
                "a" * 300 + ".dpl": 400,
            }
            for name, status in names.items():
                for act in (propose, save):
                    answer = await act(api, name, text, role="admin")
                    assert answer.status == status, (name, answer.body)
            assert all_files(tmp_path) == before
            assert os.listdir(tmp_path / "outside") == []
            assert (await send(api, "POST", "/site/changes/00000009/undo", "")).status == 404
            assert (await send(api, "POST", "/site/changes/..%2Fx/undo", "")).status == 404
            long = await save(api, WARM, "x" * 300_000, (await opened(api, WARM))[1])
            assert (long.status, long.json()["title"]) == (413, "site.file_too_large")

    run(scenario)


def test_a_new_policy_is_made_and_its_undo_removes_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path) as api:
            text, _ = await opened(api, WARM)
            proposed = (await propose(api, "too-cold.dpl", text)).json()
            assert proposed["difference"].startswith("--- /dev/null\n+++ b/too-cold.dpl\n")
            assert not (tmp_path / "too-cold.dpl").exists()
            done = await save(api, "too-cold.dpl", text)
            assert done.status == 200
            assert await in_force(api, "too-cold") == text
            assert (await save(api, "too-cold.dpl", text + "\n")).status == 409
            id = done.json()["id"]
            assert (await send(api, "POST", f"/site/changes/{id}/undo", "")).status == 200
            assert not (tmp_path / "too-cold.dpl").exists()
            assert (await send(api, "GET", "/policies/too-cold")).status == 404

    run(scenario)


def test_a_read_only_site_answers_with_the_patch_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        line = 'lateness = "1s"'
        async with served(tmp_path, (line, f"{line}\nread_only = true")) as api:
            before = all_files(tmp_path)
            text, digest = await opened(api, WARM)
            other = text.replace("-12", "-15")
            proposed = (await propose(api, WARM, other, digest)).json()
            assert proposed["is_read_only"]
            answer = await save(api, WARM, other, digest)
            assert answer.status == 202
            assert answer.headers["content-type"] == "text/x-patch; charset=utf-8"
            assert answer.body.decode() == proposed["difference"]
            refused = await save(api, WARM, "concepts", digest)
            assert refused.status == 400, "what has errors is no patch either"
            assert all_files(tmp_path) == before
            assert await in_force(api) == text
            assert await changes(api) == []

    run(scenario)

    async def unwritable() -> None:
        async with served(tmp_path / "other") as api:
            text, digest = await opened(api, WARM)
            done = (await save(api, WARM, text.replace("-12", "-15"), digest)).json()
            real = os.access

            def access(path: Any, mode: int) -> bool:
                return mode != os.W_OK and real(path, mode)

            monkeypatch.setattr("rapport.site.file_changes.os.access", access)
            answer = await save(api, WARM, text, done["digest"])
            assert answer.status == 202
            undo = await send(api, "POST", f"/site/changes/{done['id']}/undo", "")
            assert (undo.status, undo.body) == (202, answer.body)
            assert await in_force(api) == text.replace("-12", "-15")

    run(unwritable)
