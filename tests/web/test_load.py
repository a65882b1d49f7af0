"""The endpoints of the load: the report, and following it with a tolerated imprecision. [PO-14]"""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Callable
from typing import Any

from rapport.cli.load import steps_line
from rapport.cli.main import run as run_command
from rapport.web.event_stream import RETRY_MS


def run(scenario: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 60))


class Reader:
    """A stream of Server-Sent Events, read in a thread."""

    def __init__(self, url: str, path: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=20)
        self._connection.request("GET", path)
        self._answer = self._connection.getresponse()
        self.status = self._answer.status

    def line(self) -> str:
        return self._answer.readline().decode().rstrip("\n")

    def report(self) -> Any:
        while not (line := self.line()).startswith("data: "):
            assert not line.startswith("event: problem")
        return json.loads(line.removeprefix("data: "))

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


def test_what_policies_share_is_a_line_of_its_own() -> None:
    assert steps_line({"steps_wanted": 9, "steps_computed": 3}) == (
        "steps: 9 wanted, 3 computed (67% shared)"
    )
    assert steps_line({"steps_wanted": 0, "steps_computed": 0}) == ""
    assert steps_line({}) == ""  # of a node that does not count it


def test_the_report_names_every_policy_and_says_what_to_do(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            report = (await api.call("GET", "/load")).json()
            running = set(api.node.policy.policies())
            assert {one["policy"] for one in report["policies"]} == running
            assert report["state"] == "measuring"
            for one in report["policies"]:
                assert one["steps_computed"] <= one["steps_wanted"]
            assert 0 <= report["busy"] <= 1
            metrics = (await api.call("GET", "/metrics")).body.decode()
            assert "rapport_policy_busy_ratio" in metrics

    run(scenario)


def test_a_follower_is_told_at_first_and_when_it_asks_for_more_precision(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            load, behind = api.node.load, [0]
            api.node.policy.behind = lambda: behind[0]
            path = "/load/stream?imprecision=50&of=behind&how=max"
            reader = await asyncio.to_thread(Reader, api.url, path)
            assert reader.status == 200
            assert await asyncio.to_thread(reader.line) == f"retry: {RETRY_MS}"
            first = await asyncio.to_thread(reader.report)
            assert (first["value"], first["imprecision"], first["of"]) == (0, 50, "behind")
            behind[0] = 40
            load.measure()
            load.measure()  # within the imprecision: nobody is told
            change = f"/load/stream/{first['follower']}?imprecision=10"
            assert (await api.call("POST", change)).status == 200
            second = await asyncio.to_thread(reader.report)
            assert (second["value"], second["imprecision"]) == (40, 10)
            assert second["reported"] == 2
            assert second["offered"] > second["reported"]
            reader.close()

    run(scenario)


def test_wrong_wishes_are_refused_before_the_stream_begins(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            for path, status, title in (
                ("/load/stream?imprecision=-1", 400, "http.bad_request"),
                ("/load/stream?imprecision=nan", 400, ""),
                ("/load/stream?of=heat", 404, "load.unknown_value"),
                ("/load/stream?how=median", 404, "load.unknown_way"),
            ):
                answer = await api.call("GET", path)
                assert answer.status == status, (path, answer.body)
                assert not title.startswith("load") or answer.json()["title"] == title
            unknown = await api.call("POST", "/load/stream/nobody?imprecision=1")
            assert (unknown.status, unknown.json()["title"]) == (404, "load.unknown_follower")

    run(scenario)


def test_only_who_has_some_right_may_look(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node(token="secret") as api:
            assert (await api.call("GET", "/load")).status == 401
            assert (await api.call("GET", "/load/stream")).status == 401

    run(scenario)


def near(url: str) -> list[str]:
    """One node under two names, which stands for two."""
    return ["--node", url, "--node", url.replace("127.0.0.1", "localhost")]


def test_the_command_shows_the_report_and_follows(
    served_node: Callable[..., Any], capfdbinary: Any
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            where = ["--site", str(api.node.site.directory), "--url", api.url]
            assert await asyncio.to_thread(run_command, ["load", *where]) == 0
            shown, said = (part.decode() for part in capfdbinary.readouterr())
            assert shown.startswith("policy\tshare\tus/event\tread\tsteps wanted\tcomputed\n")
            assert "Measuring: ask again" in said
            follow = ["load", *where, "--imprecision", "5", "--count", "1"]
            assert await asyncio.to_thread(run_command, follow) == 0
            assert (
                b"\xc2\xb1 5 % busy (average), 1 reports of 1 values" in capfdbinary.readouterr()[0]
            )
            as_json = [*follow, "--json"]
            assert await asyncio.to_thread(run_command, as_json) == 0
            assert json.loads(capfdbinary.readouterr()[0])["imprecision"] == 5
            nodes = [*near(api.url), "--total", "sum", "--imprecision", "8", "--count", "1"]
            assert await asyncio.to_thread(run_command, ["load", *nodes, "--json"]) == 0
            report = json.loads(capfdbinary.readouterr()[0])
            assert (report["how"], report["imprecision"]) == ("sum of 2 nodes", 8)
            assert report["reported"] == 2
            assert await asyncio.to_thread(run_command, ["load", "--node", api.url]) == 2
            wrong = [*where, "--imprecision", "5", "--count", "0"]
            assert await asyncio.to_thread(run_command, ["load", *wrong]) == 2

    run(scenario)
