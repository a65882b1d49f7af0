"""docs/how-to/reach-people.md is right: its site and policy say the sentence, its rules decide as
told. [CO-8, CO-9, PO-10]"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from rapport.channel.backends.local import open_memory
from rapport.communication.actions import Action
from rapport.communication.answers import AnswerData, record_answer
from rapport.communication.assembly import Assembly, AssemblyOptions
from rapport.communication.config import CommunicationConfig, communication_from_site
from rapport.communication.delivery_state import NextReceiver
from rapport.communication.links import answer_token
from rapport.communication.privacy import (
    AllowedDelivery,
    Hold,
    PrivacyFacts,
    PrivacyRule,
    Refuse,
    Verdict,
    verdict,
)
from rapport.communication.texts import same_phrase
from rapport.core.detection import Detection
from rapport.core.message import Identifier
from rapport.core.times import parse_time
from rapport.kernel.clock import ManualClock
from rapport.kernel.toml import TomlFile
from rapport.policy.language.diagnostics import Diagnostics
from rapport.policy.language.formatter import format_policy
from rapport.policy.language.parser import parse_policy
from rapport.site.actions import OwnActions, check_deliveries

PAGE = (Path(__file__).parents[2] / "docs/how-to/reach-people.md").read_text(encoding="utf-8")
SITE, _ROSTER, RULES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
(POLICY,) = re.findall(r"```dpl\n(.*?)```", PAGE, re.DOTALL)
(FUNCTION,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def people_of(text: str, directory: Path) -> CommunicationConfig:
    declared, problems = communication_from_site(
        TomlFile.parse(text.encode(), name="site.toml"), directory
    )
    assert [problem for problem in problems if problem.severity == "error"] == []
    return declared


def test_the_sentence_of_the_coordinator_is_one_policy_and_its_people(tmp_path: Path) -> None:
    people = people_of(SITE, tmp_path)
    faults = Diagnostics("water", POLICY)
    check_deliveries(parse_policy(POLICY, name="water"), people, ["G"], faults)
    assert faults.problems() == ()
    own = OwnActions(people, lambda _name, _version: POLICY)
    assert own.of("water", "1").begin.get(same_phrase("call the volunteers")) == Action(
        phrase="call the volunteers",
        send_to=Identifier("collective", "volunteers"),
        text="Water is rising at {G}: please come to the depot",
        done_when="answered",
        least=3,
        peer_delivery="preferred",
        answer_within_ms=600_000,
        escalate=(NextReceiver("collective:next-town"),),
        urgent=False,
    )


def test_the_policy_stands_in_its_canonical_form() -> None:
    assert format_policy(POLICY, name="water") == POLICY


def said(
    rules: tuple[PrivacyRule, ...], now: str, *, urgent: bool = False, **given: str
) -> Verdict:
    told = {"type": "NOTIFICATION", "subtype": "x", "sender": "component:policy"} | given
    now_ms = parse_time(now)
    facts = PrivacyFacts(
        **told, urgent=urgent, now_ms=now_ms, sent_ms=now_ms, recent=lambda _count: ()
    )
    return verdict(rules, facts)


def test_nobody_is_woken_unless_it_is_urgent(tmp_path: Path) -> None:
    people = people_of(SITE, tmp_path).peers
    night = "2026-01-12T23:00:00Z"
    assert said(people["ana"].privacy, night) == Hold(parse_time("2026-01-13T06:00:00Z"))
    assert said(people["ben"].privacy, night) == Refuse("quiet hours")
    assert said(people["carla"].privacy, night) == AllowedDelivery()
    for name in ("ana", "ben"):
        assert said(people[name].privacy, night, urgent=True) == AllowedDelivery()


@pytest.mark.parametrize(
    ("now", "given", "expected"),
    [
        ("2026-01-12T12:00:00Z", {}, AllowedDelivery()),
        ("2026-01-10T12:00:00Z", {"urgent": True}, AllowedDelivery()),  # a Saturday
        ("2026-01-10T12:00:00Z", {}, Hold(parse_time("2026-01-11T23:00:00Z"))),
        ("2026-01-12T12:00:00Z", {"sender": "component:ads-7"}, Refuse("no adverts, please")),
        (
            "2026-01-12T12:00:00Z",
            {"type": "NEWSLETTER"},
            Hold(parse_time("2026-01-13T07:00:00Z"), "the receiver does not want it"),
        ),
        ("2026-08-05T12:00:00Z", {}, Refuse("quiet hours")),
        ("2026-12-30T12:00:00Z", {}, Refuse("quiet hours")),
        ("2026-01-12T23:00:00Z", {}, Hold(parse_time("2026-01-13T06:00:00Z"))),
    ],
)
def test_the_rules_decide_as_their_comments_say(now, given, expected, tmp_path: Path) -> None:
    assert said(people_of(RULES, tmp_path).peers["ana"].privacy, now, **given) == expected


def test_the_function_decides_as_told(tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text(FUNCTION)
    text = (
        '[peers.ana]\naddresses = ["inbox:"]\n[[peers.ana.privacy]]\nask = "rules:in_a_meeting"\n'
    )
    rules = people_of(text, tmp_path).peers["ana"].privacy
    made: dict = {}
    exec(FUNCTION, made)
    functions = {"rules:in_a_meeting": made["in_a_meeting"]}
    meeting = parse_time("2026-01-12T14:10:00Z")
    for now_ms, expected in (
        (meeting, Hold(meeting + 3_600_000, "until it suits the receiver")),
        (meeting - 3_600_000, AllowedDelivery()),
    ):
        facts = PrivacyFacts(type="A", subtype="B", sender="peer:x", urgent=False, now_ms=now_ms)
        assert verdict(rules, facts, functions) == expected


class Drill:
    """The page's people and policy at work: what would go out to each medium, and answers."""

    def __init__(self, directory: Path, now: str) -> None:
        self.clock = ManualClock(parse_time(now))
        self.channels = open_memory(self.clock)
        people = people_of(SITE, directory)
        self.assembly = Assembly(
            self.channels,
            self.channels.records,
            self.clock,
            people,
            AssemblyOptions(
                phrases={"water": ["call the volunteers"]},
                own_actions=OwnActions(people, lambda _name, _version: POLICY).of,
                site=directory,
            ),
        )

    async def rise(self) -> None:
        """The water does."""
        now_ms = self.clock.now_ms()
        found = Detection(
            policy="water", time=now_ms, bindings={"G": "bridge"}, causes=((now_ms, "e1"),)
        )
        await self.assembly.engine.open()
        await self.channels.channel("detections").append([found.to_event(source="policy")])
        await self.assembly.engine.settle()

    async def wait(self, minutes: int) -> None:
        self.clock.set_ms(self.clock.now_ms() + minutes * 60_000)
        await self.assembly.engine.settle()

    async def answer(self, peer: str) -> None:
        (message,) = {data["message"] for _, data in await self.lines() if data.get("peer")}
        token = answer_token(self.assembly.secret, message, peer)
        data = AnswerData(message=message, peer=peer, text="I come", token=token)
        await record_answer(self.channels, self.assembly.secret, data, now_ms=self.clock.now_ms())
        await self.assembly.engine.settle()

    async def lines(self) -> list[tuple[str, dict[str, Any]]]:
        stored = await self.channels.channel("log").read_after(0, limit=1_000)
        prefix = "rapport.delivery."
        return [
            (each.event.type.removeprefix(prefix), each.event.payload())
            for each in stored
            if each.event.type.startswith(prefix)
        ]

    async def results(self) -> list[str]:
        """How the message ended, if it did."""
        return [data["result"] for _, data in await self.lines() if data.get("result")]

    async def states(self, *wanted: str) -> list[tuple[str, str]]:
        """State and person, with the medium where there is one, of the lines so far."""
        return [
            (state, f"{data.get('peer', '')} {data.get('adapter', '')}".strip())
            for state, data in await self.lines()
            if state in wanted
        ]


def test_three_answers_stop_everything(tmp_path: Path) -> None:
    async def scenario() -> None:
        drill = Drill(tmp_path, "2026-01-12T09:00:00Z")
        await drill.rise()
        assert sorted(await drill.states("queued")) == [
            ("queued", "ana mail"),
            ("queued", "ben inbox"),
            ("queued", "carla mail"),
            ("queued", "dan mail"),
        ]
        for peer in ("dan", "ana"):
            await drill.answer(peer)
        assert await drill.states("closed", "escalated") == []
        await drill.answer("ben")
        await drill.wait(60)
        assert await drill.results() == ["done"]
        assert await drill.states("escalated") == []

    asyncio.run(scenario())


def test_the_next_town_is_asked_after_ten_minutes_and_at_night_nobody_is_woken(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        drill = Drill(tmp_path, "2026-01-12T22:00:00Z")
        await drill.rise()
        assert sorted(await drill.states("queued", "held", "refused")) == [
            ("held", "ana"),
            ("queued", "carla mail"),
            ("queued", "dan mail"),
            ("refused", "ben"),
        ]
        await drill.answer("carla")
        await drill.wait(9)
        assert await drill.states("escalated") == []
        await drill.wait(1)
        assert ("queued", "eva mail") in await drill.states("queued")
        await drill.answer("eva")
        assert await drill.results() == ["done"]
        await drill.wait(600)  # the morning: nobody is told any more
        assert ("queued", "ana mail") not in await drill.states("queued")

    asyncio.run(scenario())
