"""The endpoints of policies: looking, checking, changing, rights, bad input. [PO-9]"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

POLICY = """concepts
  person A (status='guest')
  room R (security='restricted')
conditions
  A is inside R
actions
  raise alarm
"""
TEXT = {"Content-Type": "text/plain; charset=utf-8"}


def run(scenario: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_policy_lives_from_registering_to_deleting_over_the_endpoints(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            before = (await api.call("GET", "/policies")).json()
            assert {row["state"] for row in before} == {"running"}
            done = await api.call("POST", "/policies/new", POLICY.encode(), TEXT)
            assert (done.status, done.json()["what"]) == (200, "registered")
            assert "new" in api.node.policy.policies()
            again = await api.call("POST", "/policies/new", POLICY.encode(), TEXT)
            assert (again.status, again.json()["title"]) == (409, "policy.exists")
            other = POLICY.replace("'guest'", "'employee'").encode()
            shadowed = await api.call("POST", "/policies/new?how=shadow", other, TEXT)
            assert shadowed.json()["what"] == "shadowed"
            promoted = await api.call("POST", "/policies/new/promote")
            assert promoted.json()["version"] == shadowed.json()["version"]
            stale = await api.call(
                "POST", "/policies/new?how=replace&expects=x", POLICY.encode(), TEXT
            )
            assert (stale.status, stale.json()["title"]) == (409, "state.stale_version")
            assert (await api.call("POST", "/policies/new/pause")).json()["changed"]
            shown = (await api.call("GET", "/policies/new")).json()
            assert (shown["state"], shown["text"]) == ("paused", other.decode())
            assert (await api.call("POST", "/policies/new/resume")).json()["changed"]
            assert (await api.call("DELETE", "/policies/new")).json()["what"] == "deleted"
            gone = await api.call("GET", "/policies/new")
            assert (gone.status, gone.json()["title"]) == (404, "policy.unknown")
            history = (await api.call("GET", "/policies/new/history")).json()
            assert [one["what"] for one in history] == [
                "registered",
                "shadowed",
                "promoted",
                "paused",
                "resumed",
                "deleted",
            ]
            assert "+  person A (status='employee')" in history[2]["diff"]
            assert (await api.call("GET", "/policies")).json() == before

    run(scenario)


def test_a_faulty_policy_is_refused_with_every_problem_at_its_place(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            bad = POLICY.replace("inside", "insde").replace("status", "statsu").encode()
            refused = await api.call("POST", "/policies/new", bad, TEXT)
            assert refused.status == 400
            problems = refused.json()["problems"]
            assert {problem["line"] for problem in problems} == {2, 5}
            assert all(problem["hint"] and problem["column"] for problem in problems)
            checked = (await api.call("POST", "/policies/new/check", bad, TEXT)).json()
            assert (checked["version"], checked["problems"]) == ("", problems)
            fine = (await api.call("POST", "/policies/new/check", POLICY.encode(), TEXT)).json()
            assert fine["version"]
            for path, status in (
                ("/policies/new", 400),
                ("/policies/..%2Fnew", 400),
                ("/policies/a%20b", 400),
            ):
                answer = await api.call("POST", path, b"\xff\xfe", TEXT)
                assert answer.status == status, (path, answer.body)
            assert (await api.call("POST", "/policies/new/fly")).status == 400

    run(scenario)


def test_changing_needs_the_right_to_and_looking_any(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node(token="t" * 40) as api:
            for method, path in (
                ("GET", "/policies"),
                ("POST", "/policies/new"),
                ("POST", "/policies/new/check"),
                ("POST", "/policies/new/pause"),
                ("POST", "/policies"),
                ("DELETE", "/policies/new"),
            ):
                assert (await api.call(method, path)).status in (401, 403), path
            own = {"Authorization": f"Bearer {'t' * 40}"}
            assert (await api.call("GET", "/policies", None, own)).status == 200

    run(scenario)


def test_a_reload_takes_policies_from_files_and_marks_what_it_broke(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            site = api.node.site.directory
            (site / "fresh.dpl").write_text(POLICY)
            done = (await api.call("POST", "/policies")).json()
            assert [(one["name"], one["what"]) for one in done] == [("fresh", "registered")]
            file = site / "site.toml"
            whole = file.read_text()
            file.write_text(whole.replace("[relationships.inside]", "[relationships.within_walls]"))
            done = (await api.call("POST", "/policies")).json()
            assert {one["what"] for one in done} == {"broken"}
            shown = (await api.call("GET", "/policies/fresh")).json()
            assert (shown["state"], shown["problems"][0]["line"]) == ("broken", 5)
            assert "fresh" not in api.node.policy.policies()
            file.write_text(whole)
            done = (await api.call("POST", "/policies")).json()
            assert {one["what"] for one in done} == {"rebuilt"}
            (site / "fresh.dpl").write_text("nonsense")
            refused = await api.call("POST", "/policies")
            assert refused.status == 400
            assert "fresh" in api.node.policy.policies()

    run(scenario)


def test_metrics_and_overview_tell_what_each_policy_did(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            text = (await api.call("GET", "/metrics")).body.decode()
            assert 'rapport_policy_events_total{policy="' in text
            assert "rapport_policy_seconds_total" in text
            overview = (await api.call("GET", "/overview")).json()
            assert overview["policies"][0]["state"] == "running"
            life = api.node.policies.life
            for number in range(15):
                await life.register(f"many-{number}", POLICY)
            await life.shadow("many-7", POLICY.replace("guest", "employee"))
            (api.node.site.directory / "secure-building.dpl").unlink()
            file = api.node.site.directory / "site.toml"
            file.write_text(file.read_text().replace("[relationships.within]", "[relationships.x]"))
            near = POLICY.replace("  room R", "  person B (status='employee')\n  room R")
            near = near.replace("inside R\n", "inside R\n  A is within 5m of B\n")
            await life.register("near", near)
            await api.call("POST", "/policies")
            overview = (await api.call("GET", "/overview")).json()
            assert (len(overview["policies"]), overview["policies_in_all"]) == (12, 16)
            first, second, *_ = overview["policies"]
            assert (first["name"], first["state"], second["name"]) == ("near", "broken", "many-7")
            assert second["tally"] == {"both": 0, "only_running": 0, "only_shadow": 0}

    run(scenario)
