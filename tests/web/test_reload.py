"""A running node takes its site's files over, or nothing of them: people, collectives, actions,
interpretations, policies. [UX-2, PO-9, CO-3]
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rapport.cli.main import run as command
from rapport.communication.directory import PEOPLE_CHANGED
from rapport.core.times import format_time

pytestmark = pytest.mark.slow

SIRENS = """
[peers.zoe]
addresses = ["inbox:"]
[collectives.wardens]
members = ["zoe", "lea"]
delivery = "to-all-members"
[actions."call wardens"]
send_to = "collective:wardens"
text = "look after {A} in {R}"
[actions."note it"]
append = "notes"
type = "note"
"""
POLICY = """concepts
  person A (status='guest')
  room R (security='restricted')
conditions
  A is inside R
actions
  call wardens
  note it
"""
QUESTION = """
[peers.joe]
addresses = ["inbox:"]
[collectives.night]
members = ["joe"]
"""


def run(scenario: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 240))


def add(api: Any, text: str) -> Path:
    file: Path = api.node.site.directory / "site.toml"
    file.write_text(file.read_text() + text)
    return file


async def refused(api: Any) -> list[tuple[str, str]]:
    """The codes and messages with which a reload is refused."""
    answer = await api.call("POST", "/reload")
    assert answer.status == 400, answer.body
    return [(one["code"], one["message"]) for one in answer.json()["problems"]]


async def told(api: Any, peer: str) -> list[Any]:
    """The rows of a person's messages, once there are some."""
    for _ in range(200):
        found = (await api.call("GET", f"/ledger?person={peer}")).json()
        rows = [row for row in found if row["address"]]
        if rows and all(row["state"] not in ("queued",) for row in rows):
            return rows
        await asyncio.sleep(0.1)
    raise AssertionError(f"nobody told {peer}")


async def see_a_guest(api: Any) -> None:
    at = format_time(api.node.clock.now_ms())
    body = {"reader": "r1", "tag": "E200-01", "dx": 2.0, "dy": 3.0, "t": at}
    assert (await api.call("POST", "/sources/readers", body)).status == 200


def send(receiver: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "TASK",
        "subtype": "COME",
        "sender": "component:app",
        "receiver": receiver,
        "content": "please come",
        **more,
    }


def test_new_people_and_actions_are_in_force_when_it_is_answered(
    served_node: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            site = add(api, SIRENS).parent
            (site / "watch.dpl").write_text(POLICY)
            done = (await api.call("POST", "/reload")).json()
            assert done["people"] == [
                "peer zoe added",
                "collective wardens added",
                "collective wardens joined: lea, zoe",
            ]
            assert done["actions"] == ["call wardens", "note it"]
            assert [(one["name"], one["what"]) for one in done["policies"]] == [
                ("watch", "registered")
            ]
            assert (await api.call("GET", "/peers/zoe")).json()["origin"] == "site"
            assert (await api.call("POST", "/messages", send("peer:zoe"))).status == 202
            await told(api, "zoe")
            await see_a_guest(api)
            notes = await api.call("GET", "/channels/notes/events?wait=20s")
            assert len(notes.json()["events"]) == 1
            rows = await told(api, "zoe")
            while len(rows) < 2:
                await asyncio.sleep(0.1)
                rows = await told(api, "zoe")
            log = await api.node.channels.channel("log").read_after(0, limit=1_000)
            changes = [one.event for one in log if one.event.type == PEOPLE_CHANGED]
            assert [one.subject for one in changes][:2] == ["peer:zoe", "collective:wardens"]
            again = ["reload", "--site", str(site), "--url", api.url]
            assert await asyncio.to_thread(command, again) == 0
            assert "everything is as it was" in capsys.readouterr().out

    run(scenario)


def test_a_fault_anywhere_leaves_everything_as_it_was(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            file = add(api, "")
            whole = file.read_text()
            policy = POLICY.split("  note it")[0].replace("call wardens", "raise alarm")
            before = (api.node.site, set(api.node.policy.policies()))
            for text, code in (
                (whole + SIRENS.replace('"zoe", "lea"', '"zoa"'), "collective.unknown_member"),
                (whole + SIRENS.replace("{A}", "{A"), ""),
                (whole + SIRENS + "[collectives.more]\nmembers = 7\n", ""),
                (whole.replace('["*.dpl"]', '["*.dpl", "more/*.dpl"]'), "policy"),
            ):
                file.write_text(text)
                if code == "policy":
                    (file.parent / "more").mkdir()
                    (file.parent / "more" / "fresh.dpl").write_text(policy.replace("inside", "in"))
                problems = (await api.call("POST", "/reload")).json()["problems"]
                assert problems
                assert any(one["line"] for one in problems), problems
                assert (await api.call("GET", "/peers/zoe")).status == 404
                assert (api.node.site, set(api.node.policy.policies())) == before

    run(scenario)


def test_what_needs_a_restart_is_named_and_nothing_else_is_taken(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            file = add(api, SIRENS)
            text = file.read_text()
            text = text.replace('lateness = "5s"', 'lateness = "6s"')
            text = text.replace('sender = "rapport@', 'sender = "other@')
            file.write_text(text + "[node]\nport = 9\n[channels]\nexport = true\n")
            codes = await refused(api)
            assert {message for code, message in codes if code == "reload.needs_restart"} == {
                f"needs a restart: [{name}] has changed"
                for name in ("adapters.mail", "channels", "node", "site")
            }
            assert (await api.call("GET", "/peers/zoe")).status == 404
            assert {code for code, _ in codes} == {"reload.needs_restart"}

    run(scenario)


def test_who_is_gone_and_was_asked_stays_asked(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node(site_text=QUESTION) as api:
            wished = send("peer:joe", wishes={"done_when": "answered"})
            (id,) = (await api.call("POST", "/messages", wished)).json()["ids"]
            await told(api, "joe")
            file = add(api, "")
            file.write_text(file.read_text().replace(QUESTION, ""))
            done = (await api.call("POST", "/reload")).json()
            assert done["people"] == ["peer joe removed", "collective night removed"]
            assert ["'joe' is gone" in one for one in done["warnings"]] == [True]
            assert (await api.call("GET", "/peers/joe")).status == 404
            link = api.node._parts.communication.link_for(id, "joe").removeprefix(api.url)
            assert (await api.call("POST", link, {"answer": "coming"})).status == 200
            for _ in range(100):
                shown = (await api.call("GET", f"/ledger/messages/{id}")).json()["message"]
                if shown["state"] == "closed":
                    break
                await asyncio.sleep(0.1)
            assert (shown["state"], shown["answered_by"]) == ("closed", "joe")
            assert (await api.call("POST", "/messages", wished)).status == 404

    run(scenario)


def test_a_policy_that_was_registered_here_is_not_left_without_its_receiver(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node(site_text=QUESTION) as api:
            policy = POLICY.split("  call wardens")[0] + '  tell\n    to night\n    say "look"\n'
            text = {"Content-Type": "text/plain"}
            brought = await api.call("POST", "/policies/here", policy.encode(), text)
            assert brought.status == 200, brought.body
            file = add(api, "")
            file.write_text(file.read_text().replace(QUESTION, ""))
            assert [code for code, _ in await refused(api)] == ["policy.unknown_receiver"]
            assert (await api.call("GET", "/peers/joe")).status == 200
            assert (await api.call("DELETE", "/policies/here")).status == 200
            assert (await api.call("POST", "/reload")).status == 200

    run(scenario)


def test_an_interpretation_that_policies_use_is_missed(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            file = add(api, "")
            head, _, rest = file.read_text().partition("[sources.cameras]")
            source, _, rest = rest.partition("[sources.doors]")
            between, _, rest = rest.partition("[interpretations.cameras]")
            _, _, rest = rest.partition("[interpretations.door-log]")
            assert source
            file.write_text(f"{head}[sources.doors]{between}[interpretations.door-log]{rest}")
            done = (await api.call("POST", "/reload")).json()
            assert done["interpretations"] == ["cameras"]
            (warning,) = done["warnings"]
            assert "'cameras' is gone" in warning
            assert "secure-building" in warning

    run(scenario)


def test_only_who_may_change_the_node_may_ask(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node(token="secret") as api:
            assert (await api.call("POST", "/reload")).status == 401
            known = {"Authorization": "Bearer secret"}
            assert (await api.call("POST", "/reload", headers=known)).status == 200

    run(scenario)
