"""Back-tests that are started over HTTP: queue, result, roles, cancellation, a node that died."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rapport.kernel.clock import SystemClock
from rapport.node.history_runs import (
    MOST_WAITING,
    OVER,
    HistoryRequest,
    HistoryRun,
    HistoryRuns,
)
from rapport.site.pipeline import is_held
from support.freezer_site import warm_night
from web.conftest import NodeApi
from web.test_site import ask, served, token_of

# A command that reports its progress, notes its group, and works until it is ended.
ENDLESS = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(f"{os.getpid()} {child.pid}", flush=True)
sys.stderr.write('rapport-progress {"done": 5, "total": 10}\\n')
sys.stderr.flush()
time.sleep(600)
"""
REQUEST = {"policy": "too-warm", "history": "lake"}


def run(scenario: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 240))


async def send(api: NodeApi, body: Any, role: str = "editor") -> Any:
    bearer = {"Authorization": f"Bearer {token_of(role)}"}
    return await api.call("POST", "/history/runs", body, bearer)


async def until(api: NodeApi, id: str, *states: str) -> Any:
    """The run once it has one of these states."""
    while True:
        found = (await ask(api, f"/history/runs/{id}", "viewer")).json()
        if found["run"]["state"] in states:
            return found
        await asyncio.sleep(0.05)


async def until_true(check: Callable[[], bool]) -> None:
    while True:
        if check():
            return
        await asyncio.sleep(0.05)


async def with_readings(api: NodeApi) -> None:
    bearer = {"Authorization": f"Bearer {token_of('admin')}"}
    body = warm_night(api.node.clock.now_ms())
    assert (await api.call("POST", "/sources/freezers", body, bearer)).status == 200
    events = api.node.channels.channel("events")
    while events.last_position() < 120:
        assert await events.wait_after(events.last_position(), timeout_ms=20_000)


@asynccontextmanager
async def endless(directory: Path) -> AsyncIterator[HistoryRuns]:
    """Runs whose command never ends by itself."""
    runs = HistoryRuns(
        directory / "data/history",
        directory,
        SystemClock(),
        check_policy=lambda name: name,
        recordings=lambda: {},
        command=(sys.executable, "-c", ENDLESS),
    )
    await runs.open()
    task = asyncio.ensure_future(runs.run())
    try:
        yield runs
    finally:
        task.cancel()
        await asyncio.wait({task})


def processes(directory: Path, id: str) -> list[int]:
    """What the command and its child wrote about themselves; empty before."""
    path = directory / "data/history" / id / "result.json"
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_back_test_over_the_log_is_run_and_its_result_survives_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path) as api:
            await with_readings(api)
            started = await send(api, {"policy": "too-warm", "history": "log"})
            assert started.status == 201
            id = started.json()["id"]
            found = await until(api, id, *OVER)
            assert found["run"]["state"] == "done", found["run"]
            assert found["run"]["by"] == "editorx"
            [version] = found["result"]["tallies"]
            assert found["result"]["events"] == 120
            assert version["detections"] == sum(version["days"].values()) == 1
            assert version["who"] == [{"alias": "F", "top": [["f2", 1]], "others": 0}]
            report = await ask(api, f"/history/runs/{id}/report", "viewer")
            assert b"too-warm" in report.body
            assert report.headers["content-disposition"].startswith("attachment")
            kept = tmp_path / ".rapport/history" / id
            assert {path.stat().st_mode & 0o777 for path in kept.glob("*.json")} == {0o600}
        async with served(tmp_path) as api:
            again = (await ask(api, f"/history/runs/{id}", "viewer")).json()
            assert again == found
            assert (await ask(api, f"/history/runs/{id}", "editor", "DELETE")).status == 200
            assert (await ask(api, f"/history/runs/{id}", "viewer")).status == 404
            assert not kept.exists()

    run(scenario)


def test_two_policies_are_compared_over_a_period(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path) as api:
            await with_readings(api)
            colder = (tmp_path / "too-warm.dpl").read_text().replace("-12", "-8")
            text = {"Authorization": f"Bearer {token_of('editor')}", "Content-Type": "text/plain"}
            done = await api.call("POST", "/policies/much-too-warm", colder.encode(), text)
            assert done.status == 200
            now_ms = api.node.clock.now_ms()
            body = {
                "policy": "too-warm",
                "compare": "much-too-warm",
                "since": now_ms - 86_400_000,
                "until": now_ms,
            }
            found = await until(api, (await send(api, body)).json()["id"], *OVER)
            assert found["run"]["state"] == "done", found["run"]
            difference = found["result"]["comparison"]
            assert (difference["both"], difference["only_first"]) == (0, 1)
            assert [one["label"] for one in found["result"]["tallies"]] == [
                "too-warm",
                "much-too-warm",
            ]

    run(scenario)


def test_a_run_that_finds_no_history_fails_with_the_words_of_the_command(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path) as api:
            found = await until(api, (await send(api, REQUEST)).json()["id"], *OVER)
            assert found["run"]["state"] == "failed"
            assert "lake" in found["run"]["message"]
            assert found["result"] is None
            id = found["run"]["id"]
            assert (await ask(api, f"/history/runs/{id}/report", "viewer")).status == 404

    run(scenario)


def test_only_editors_start_and_cancel_and_everybody_sees(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path) as api:
            for role in ("viewer", "operator"):
                assert (await send(api, REQUEST, role)).status == 403
            id = (await send(api, REQUEST)).json()["id"]
            for role in ("viewer", "operator"):
                assert (await ask(api, f"/history/runs/{id}", role, "DELETE")).status == 403
            listed = (await ask(api, "/history/runs", "viewer")).json()
            assert [one["id"] for one in listed["runs"]] == [id]
            assert (await ask(api, "/history/runs/none", "viewer")).status == 404

    run(scenario)


def test_arguments_that_no_run_may_have_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path) as api:
            wrong: list[tuple[dict[str, Any], int, str]] = [
                ({"policy": "--out=/tmp/x"}, 400, "history.bad_request"),
                ({"policy": "../other.dpl"}, 400, "history.bad_request"),
                ({"policy": "too-warm; rm"}, 400, "history.bad_request"),
                ({"policy": "nobody"}, 404, "policy.unknown"),
                ({"policy": "too-warm", "compare": "-x"}, 400, "history.bad_request"),
                ({"policy": "too-warm", "since": 5, "until": 5}, 400, "history.bad_request"),
                ({"policy": "too-warm", "since": -1}, 400, "history.bad_request"),
                ({"policy": "too-warm", "zone": "../x"}, 400, "history.bad_request"),
                ({"policy": "too-warm", "history": "/etc"}, 400, "history.bad_request"),
                ({"policy": "too-warm", "history": "files"}, 404, "history.no_files"),
                ({"policy": "too-warm", "out": "x"}, 400, "history.bad_request"),
            ]
            for body, status, title in wrong:
                refused = await send(api, body)
                assert (refused.status, refused.json()["title"]) == (status, title), body
            assert (await ask(api, "/history/runs")).json()["runs"] == []

    run(scenario)


def test_a_cancellation_ends_the_whole_group_and_the_next_run_begins(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with endless(tmp_path) as runs:
            request = HistoryRequest(policy="p", history="lake")
            await runs.start("1", request, "ana")
            await runs.start("2", request, "ana")
            await until_true(lambda: runs.get("1").progress.done == 5)
            assert (runs.get("1").progress.total, runs.get("2").state) == (10, "waiting")
            group = processes(tmp_path, "1")
            assert len(group) == 2
            assert all(is_alive(one) for one in group)
            assert os.getpriority(os.PRIO_PROCESS, group[0]) == 19
            await runs.cancel("1")
            await until_true(lambda: runs.get("1").state == "cancelled")
            await until_true(lambda: not any(is_alive(one) for one in group))
            await until_true(lambda: len(processes(tmp_path, "2")) == 2)
            assert runs.get("2").state == "running"

    run(scenario)


def test_few_runs_wait_and_one_that_waits_is_cancelled_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path) as api:
            await api.node._tasks.stop("history.runs")
            ids = [(await send(api, REQUEST)).json()["id"] for _ in range(MOST_WAITING)]
            refused = await send(api, REQUEST)
            assert (refused.status, refused.json()["title"]) == (429, "history.queue_full")
            await ask(api, f"/history/runs/{ids[0]}", "editor", "DELETE")
            assert (await until(api, ids[0], *OVER))["run"]["state"] == "cancelled"
            assert (await send(api, REQUEST)).status == 201

    run(scenario)


def test_the_oldest_results_are_let_go(tmp_path: Path) -> None:
    async def scenario() -> None:
        request = HistoryRequest(policy="p", history="lake")
        for number in range(51):
            directory = tmp_path / "data/history" / f"{number:03}"
            directory.mkdir(parents=True)
            kept = HistoryRun(id=directory.name, request=request, by="ana", created=1, state="done")
            (directory / "run.json").write_bytes(msgspec.json.encode(kept))
        async with endless(tmp_path) as runs:
            await runs.start("new", request, "ana")
            assert "000" not in {one.id for one in runs.runs()}
            assert not (tmp_path / "data/history/000").exists()
            assert len(runs.runs()) == 51

    run(scenario)


def test_a_run_under_a_node_that_was_killed_is_ended_and_shown_as_broken_off(
    tmp_path: Path,
) -> None:
    # The node is another process, so that it can be killed.
    node = f"""
import asyncio, sys
from pathlib import Path
sys.path[:0] = {sys.path!r}
from web.test_history import endless, until_true
from rapport.node.history_runs import HistoryRequest

async def main():
    async with endless(Path({str(tmp_path)!r})) as runs:
        await runs.start("1", HistoryRequest(policy="p", history="lake"), "ana")
        await runs.start("2", HistoryRequest(policy="p", history="lake"), "ana")
        await until_true(lambda: runs.get("1").progress.done == 5)
        print("ready", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""
    killed = subprocess.Popen([sys.executable, "-c", node], stdout=subprocess.PIPE)
    assert killed.stdout is not None
    assert killed.stdout.readline() == b"ready\n"
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    killed.stdout.close()
    group = processes(tmp_path, "1")
    assert all(is_alive(one) for one in group)
    assert is_held(tmp_path / "data/history/run.lock")

    async def scenario() -> None:
        async with endless(tmp_path) as runs:
            assert [one.state for one in runs.runs()] == ["broken off", "broken off"]
            await until_true(lambda: not any(is_alive(one) for one in group))

    run(scenario)


def test_recorded_files_of_a_source_are_a_history(tmp_path: Path) -> None:
    async def scenario() -> None:
        rows = warm_night(SystemClock().now_ms())
        lines = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
        (tmp_path / "night.jsonl").write_bytes(lines)
        events = ('period = "1h"', 'period = "1h"\nevents = "night.jsonl"')
        async with served(tmp_path, replace=events) as api:
            assert (await ask(api, "/history/runs")).json()["recorded"] == ["freezers"]
            body = {"policy": "too-warm", "history": "files", "source": "freezers"}
            found = await until(api, (await send(api, body)).json()["id"], *OVER)
            assert found["run"]["state"] == "done", found["run"]
            assert found["result"]["tallies"][0]["detections"] == 1

    run(scenario)


@pytest.mark.long  # Spark at the lowest priority gets nothing done beside other tests
@pytest.mark.skipif(find_spec("pyspark") is None, reason="pyspark is not installed")
def test_a_report_of_the_lake_is_made_by_spark_and_given_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path) as api:
            await with_readings(api)
            id = (await send(api, {"kind": "report"})).json()["id"]
            found = await until(api, id, *OVER)
            assert found["run"]["state"] == "done", found["run"]
            assert found["result"] is None
            report = await ask(api, f"/history/runs/{id}/report", "viewer")
            assert report.headers["content-type"].startswith("text/html")
            assert b"<html" in report.body

    run(scenario)
