"""Actions that act: events appended, web addresses called, attributes set; once, whatever fails."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json

import pytest

from rapport.communication.actions import Action, DeclaredActions, EffectTemplate
from rapport.communication.adapters.append import AppendAdapter
from rapport.communication.adapters.base import Confirmed
from rapport.communication.adapters.webhook import WebhookAdapter, WebhookSettings
from rapport.communication.config import check_actions, communication_from_site
from rapport.communication.detection_actions import hops_of
from rapport.core.detection import Detection
from rapport.core.errors import InvalidInput, StoreUnavailable
from rapport.core.event import make_event
from rapport.core.message import Identifier
from rapport.kernel.toml import TomlFile
from rapport.scenarios.webhook_sink import WebhookSink

ALARM = EffectTemplate(
    kind="append",
    target="raw.alarms",
    type="alarm.raised",
    subject="room/{R}",
    data={"guest": "{A}", "about": ["{policy}", {"level": 2}], "silent": False},
)


class Appending:
    """Appends to the room's channels, or fails as its script says."""

    def __init__(self, room, *script):
        self.room, self.script = room, list(script)

    async def __call__(self, name, events):
        fault = self.script.pop(0) if self.script else None
        if isinstance(fault, Exception):
            raise fault
        appended = await self.room.channels.channel(name).append(events)
        if fault == "die after":
            raise StoreUnavailable("the answer was lost")
        return appended


def acting(room, effect=ALARM, *script):
    room.actions = {
        "raise alarm": Action(
            phrase="raise alarm",
            send_to=Identifier("component", "raise alarm"),
            text="",
            effect=effect,
        )
    }
    room.adapters["append"] = AppendAdapter(Appending(room, *script))


async def held(room, channel):
    return [stored.event for stored in await room.channels.channel(channel).read_after(0)]


def test_an_event_is_appended_with_the_values_of_the_detection(room):
    async def scenario():
        acting(room)
        await room.start()
        detection = await room.detect("5", room="r1")
        await room.settle()
        (event,) = await held(room, "raw.alarms")
        assert (event.source, event.type, event.subject) == ("alarms", "alarm.raised", "room/r1")
        assert event.payload() == {
            "guest": "5",
            "about": ["secure-building", {"level": 2}],
            "silent": False,
        }
        ledger = await room.ledger()
        (message,) = ledger.messages()
        assert event.causes() == (message.message,)
        assert (message.state, message.result) == ("closed", "done")
        assert message.text == "append alarm.raised about room/r1 to raw.alarms"
        assert message.detection == detection.id()
        (row,) = ledger.rows()
        assert (row.state, row.reason) == ("confirmed", "raw.alarms 1")

    asyncio.run(scenario())


def test_a_second_try_is_the_same_event(room):
    async def scenario():
        acting(room, ALARM, StoreUnavailable("not now"), "die after")
        await room.start()
        await room.detect()
        await room.settle()
        assert await held(room, "raw.alarms") == []
        await room.pass_time(2_000)
        first = await held(room, "raw.alarms")
        await room.restart()
        await room.pass_time(10_000)
        assert await held(room, "raw.alarms") == first
        (message,) = (await room.ledger()).messages()
        assert message.result == "done"

    asyncio.run(scenario())


def test_a_channel_that_refuses_the_event_ends_the_action_with_the_reason(room):
    async def scenario():
        acting(room, ALARM, InvalidInput("unsigned", code="signature.missing"))
        await room.start()
        await room.detect()
        await room.settle()
        ledger = await room.ledger()
        (message,) = ledger.messages()
        assert (message.state, message.result) == ("closed", "failed")
        failed = [row.reason for row in ledger.rows(state="failed")]
        assert "signature.missing: unsigned" in failed
        told = [event.type for event in await held(room, "control")]
        assert "rapport.control.comerror" in told

    asyncio.run(scenario())


def test_actions_that_lead_to_each_other_end_after_the_allowed_hops(room):
    async def scenario():
        acting(room, EffectTemplate(kind="append", target="raw.x", type="x", most_hops=3))
        await room.start()
        await room.channels.channel("raw.x").append(
            [make_event(source="x", id="first", type="x", time=1)]
        )
        cause = "first"
        for _round in range(5):
            await room.detect(event=cause)
            await room.settle()
            newest = (await held(room, "raw.x"))[-1]
            if newest.id == cause:
                break
            cause = newest.id
        assert [hops_of(event) for event in await held(room, "raw.x")] == [0, 1, 2, 3]
        failed = [row.reason for row in (await room.ledger()).rows(state="failed")]
        assert any("action.too_many_hops: 3 actions" in reason for reason in failed)

    asyncio.run(scenario())


def test_a_web_address_is_called_once_signed_with_the_detection_as_key(room):
    async def scenario():
        async with WebhookSink() as sink:
            acting(room, EffectTemplate(kind="webhook", target=sink.url, type="door.lock"))
            adapter = WebhookAdapter(WebhookSettings(secret="shared"), lambda m, p: "")
            room.adapters["webhook"] = adapter
            sink.status = 503
            await room.start()
            detection = await room.detect()
            await room.settle()
            sink.status = 200
            await room.pass_time(3_000)
            await adapter.close()
            first, second = sink.posted
            assert first.body == second.body
            signed = hmac.new(b"shared", second.body, hashlib.sha256).hexdigest()
            assert second.headers["x-rapport-signature"] == f"sha256={signed}"
            assert second.headers["idempotency-key"] == detection.id()
            body = json.loads(second.body)
            assert (body["type"], body["detection"]) == ("door.lock", detection.id())
            assert body["data"]["bindings"] == {"A": "5", "R": "r1"}
            (message,) = (await room.ledger()).messages()
            assert message.result == "done"
            assert sink.url not in message.text

    asyncio.run(scenario())


def test_a_delivery_without_an_effect_is_nothing_to_append(room):
    from rapport.testing.suites.adapter import make_delivery

    async def scenario():
        outcome = await AppendAdapter(Appending(room)).send(make_delivery("append:raw.x"))
        assert not isinstance(outcome, Confirmed)
        assert not outcome.retry

    asyncio.run(scenario())


def test_what_a_policy_says_itself_goes_before_the_site(room):
    async def scenario():
        own = Action(
            phrase="raise alarm",
            send_to=Identifier("collective", "guards"),
            text="both of you: {A}",
            reach="to-all-members",
        )
        asked = []

        def own_actions(policy, version):
            asked.append((policy, version))
            return DeclaredActions({"raise alarm": own})

        room.own_actions = own_actions
        await room.start()
        detection = await room.detect()
        await room.settle()
        (message,) = (await room.ledger()).messages()
        assert message.text == "both of you: 5"
        assert message.result == "done"
        assert asked == [(detection.policy, detection.version)]

    asyncio.run(scenario())


# --- the site file ---


def read(text, tmp_path):
    return communication_from_site(TomlFile.parse(text.encode(), name="site.toml"), tmp_path)


def test_every_kind_of_action_is_read(tmp_path):
    declared, problems = read(
        """
[actions."note it"]
append = "raw.alarms"
type = "alarm.raised"
data = { room = "{R}" }
most_hops = 2
[actions."lock the door"]
webhook = "https://example.org/lock"
ttl = "1 min"
[actions."mark the room"]
set = "room.alarm"
of = "{R}"
value = true
[actions."lock the room"]
most_hops = 1
[actions."lock the room".context]
entity = "room/{R}"
scope = "status"
values = { locked = true, by = "{policy}" }
valid = "10 min"
""",
        tmp_path,
    )
    assert problems == []
    note, lock, mark, close = (declared.actions[phrase].effect for phrase in declared.actions)
    assert (note.target, note.type, note.most_hops) == ("raw.alarms", "alarm.raised", 2)
    assert (lock.kind, lock.target) == ("webhook", "https://example.org/lock")
    assert declared.actions["lock the door"].ttl_ms == 60_000
    assert (mark.target, mark.subject) == ("context.wishes", "room/{R}")
    assert mark.type == "rapport.context.wish"
    assert mark.data == {
        "entity": "room/{R}",
        "scope": "alarm",
        "values": {"alarm": True},
        "valid_ms": 3_600_000,
    }
    assert close.data == {
        "entity": "room/{R}",
        "scope": "status",
        "values": {"locked": True, "by": "{policy}"},
        "valid_ms": 600_000,
    }
    assert declared.adapters() == ("inbox", "webhook")
    assert declared.appends()


WRONG = {
    'append = "detections"\ntype = "x"': ("action.reserved_channel", 2),
    'append = "a b"\ntype = "x"': ("channel.bad_name", 2),
    'append = "raw.x"': ("site.missing_key", 1),
    'append = "raw.x"\ntype = "x"\nwebhook = "https://e.org/"': ("action.two_kinds", 4),
    'append = "raw.x"\ntype = "x"\nurgent = true': ("action.misplaced_key", 4),
    'append = "raw.x"\ntype = "x"\ndata = 5': ("site.wrong_type", 4),
    'append = "raw.x"\ntype = "x"\ndata = { a = ["{"] }': ("action.bad_template", 4),
    'append = "raw.x"\ntype = "x"\nmost_hops = 0': ("site.out_of_range", 4),
    'webhook = "ftp://e.org"': ("action.bad_webhook", 2),
    'set = "alarm"\nof = "{R}"\nvalue = 1': ("site.wrong_type", 2),
    'set = "room.alarm"\nvalue = 1': ("site.missing_key", 1),
    'set = "room.alarm"\nof = "{R}"': ("action.no_value", 1),
    'set = "room.alarm"\nof = "{R}"\nvaleu = 1\nvalue = 2': ("site.unknown_key", 4),
    'set = "room.alarm"\nof = "{R}"\nvalue = 1\nvalid = "no"': ("site.bad_duration", 5),
    "context = 5": ("site.wrong_type", 2),
    'context.entity = "{R}"\ncontext.scope = "s"\ncontext.values = { a = 1 }': (
        "site.wrong_type",
        2,
    ),
    'context.entity = "room/{R}"\ncontext.values = { a = 1 }': ("site.missing_key", 2),
    'context.entity = "room/{R}"\ncontext.scope = "s"': ("action.no_value", 2),
}


@pytest.mark.parametrize("keys", WRONG)
def test_a_wrong_action_is_reported_at_its_place(keys, tmp_path):
    _declared, problems = read(f"[actions.act]\n{keys}\n", tmp_path)
    (problem,) = problems
    assert (problem.code, problem.line) == WRONG[keys]
    assert problem.hint


def test_fields_that_the_policy_lacks_and_calls_that_share_a_key_are_reported(tmp_path):
    text = """[actions.one]
webhook = "https://example.org/"
data = { who = "{B}" }
[actions.two]
webhook = "https://example.org/"
"""
    declared, _ = read(text, tmp_path)
    file = TomlFile.parse(text.encode(), name="site.toml")
    problems = check_actions(file, declared, {"watch": ("one", "Two")}, {"watch": ("A",)})
    assert [(problem.code, problem.line) for problem in problems] == [
        ("action.unknown_field", 3),
        ("action.calls_twice", 5),
    ]


def test_what_is_too_old_is_not_appended_and_the_ledger_says_so(room):
    async def scenario():
        acting(room)
        await room.start()
        found = Detection(
            policy="secure-building",
            time=room.clock.now_ms() - 600_001,
            bindings={"A": "1", "R": "r1"},
            causes=((5, "e"),),
        )
        await room.channels.channel("detections").append([found.to_event(source="policy")])
        await room.settle()
        assert not await held(room, "raw.alarms")
        (row,) = (await room.ledger()).rows()
        assert (row.peer, row.state) == ("component:raise alarm", "skipped")
        assert "10 min ago, limit 10min" in row.reason

    asyncio.run(scenario())


def test_the_same_detection_gives_the_same_event_however_late(room):
    async def scenario():
        acting(room)
        await room.start()
        now_ms = room.clock.now_ms()
        found = Detection(
            policy="secure-building",
            time=now_ms,
            bindings={"A": "1", "R": "r1"},
            causes=((5, "e"),),
        )
        for _time in range(2):
            await room.channels.channel("detections").append([found.to_event(source="policy")])
            await room.settle()
            await room.pass_time(1_000)
        assert len(await held(room, "raw.alarms")) == 1

    asyncio.run(scenario())
