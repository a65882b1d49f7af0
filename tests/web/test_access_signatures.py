"""Signatures from the producer to the reading, over real HTTP, and looked at afterwards."""

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from rapport.channel.access.identities import Access
from rapport.channel.access.signatures import find_node_key, open_keys
from rapport.cli.main import run
from rapport.client import Publisher
from rapport.core.codec import to_cloudevent
from rapport.core.event import Event
from rapport.core.signature import RAW_SIGNED_BY, RAW_VERDICT, SIGNATURE, SIGNED_BY
from rapport.kernel.signing_keys import KeyRing, PublicKey, SigningKey, sign_event, verify_event

Open = Callable[..., AbstractAsyncContextManager[Any]]
KEY, STRANGER = SigningKey.new(), SigningKey.new()
RULES = f"""
[channels.strict]
signed = "required"
[channels.mild]
signed = "checked"
[access.keys.gateway]
key = "{KEY.public.as_text()}"
sources = ["door-*"]
"""


def seen(id: str = "1", source: str = "door-3") -> Event:
    return Event(source=source, id=id, type="t", subject="", time=1, data=b'{"a": 1}')


def sent(event: Event) -> dict[str, Any]:
    told = to_cloudevent(event)
    return {**told, "data": json.loads(bytes(told["data"]))}


GOOD = sign_event(seen(), KEY)
CASES = [
    ("strict", GOOD, None, ""),
    ("strict", seen(), None, "signature.missing"),
    ("strict", sign_event(seen(), STRANGER), None, "signature.unknown_key"),
    ("strict", sign_event(seen(source="lift"), KEY), None, "signature.bad"),
    ("strict", GOOD, {"subject": "x"}, "signature.bad"),
    ("strict", GOOD, {"signature": "forged"}, "signature.bad"),
    ("mild", GOOD, None, ""),
    ("mild", seen(), None, ""),
    ("mild", sign_event(seen(), STRANGER), None, ""),
    ("mild", GOOD, {"subject": "x"}, "signature.bad"),
    ("other", GOOD, {"subject": "x"}, ""),
]


@pytest.mark.slow
def test_channels_take_what_their_rule_accepts_and_say_why_not(served_node: Open) -> None:
    async def scenario() -> None:
        async with served_node(site_text=RULES) as api:
            for number, (channel, event, change, code) in enumerate(CASES):
                # The data go as they were signed: JSON written anew may have other spaces.
                body = json.dumps({**sent(event), "data": None, **(change or {})})
                raw = body.replace('"data": null', '"data": {"a": 1}').encode()
                answer = await api.call("POST", f"/channels/{channel}/events", raw)
                assert (answer.status == 200) is (code == ""), (number, answer.body)
                if code:
                    assert (answer.status, answer.json()["title"]) == (400, code)
                    assert answer.json()["hint"]
            assert api.node.channels.channel("strict").last_position() == 1

    asyncio.run(scenario())


def test_one_bad_event_refuses_the_whole_batch(served_node: Open) -> None:
    async def scenario() -> None:
        async with served_node(site_text=RULES) as api:
            events = [sign_event(seen(str(number)), KEY) for number in range(20)]
            bodies = [json.dumps({**sent(one), "data": None}) for one in events]
            bodies[13] = bodies[13].replace('"type": "t"', '"type": "u"')
            raw = f"[{','.join(bodies)}]".replace('"data": null', '"data": {"a": 1}').encode()
            answer = await api.call("POST", "/channels/strict/events", raw)
            assert answer.status == 400
            assert "event 13" in answer.json()["detail"]
            assert api.node.channels.channel("strict").last_position() == 0

    asyncio.run(scenario())


def test_a_device_that_cannot_sign_cannot_use_a_channel_that_demands_it(served_node: Open) -> None:
    rules = RULES.replace("[channels.strict]", '[channels."raw.readers"]')

    async def scenario() -> None:
        async with served_node(site_text=rules) as api:
            answer = await api.call("POST", "/sources/readers", {"a": 1})
            assert answer.json()["title"] == "signature.missing"

    asyncio.run(scenario())


def test_a_publisher_signs_before_it_keeps_and_bad_ones_are_set_aside(
    served_node: Open, tmp_path: Path
) -> None:
    KEY.save(tmp_path / "gateway.pem")
    STRANGER.save(tmp_path / "stranger.pem")

    async def scenario() -> None:
        async with served_node(site_text=RULES) as api:

            def publish(name: str) -> tuple[bool, list[str]]:
                with Publisher(
                    tmp_path / name,
                    api.url,
                    channel="strict",
                    source="door-3",
                    sign_with=tmp_path / f"{name}.pem",
                ) as publisher:
                    publisher.publish(type="t", data={"a": [1, "é"]})
                    done = publisher.flush(20)
                    return done, [one.reason.code for one in publisher.rejected()]

            assert await asyncio.to_thread(publish, "gateway") == (True, [])
            refused = await asyncio.to_thread(publish, "stranger")
            assert refused == (True, ["signature.unknown_key"])
            (stored,) = await api.node.channels.channel("strict").read_after(0)
            assert stored.event.headers[SIGNED_BY] == KEY.fingerprint
            ring = KeyRing([PublicKey("gateway", KEY.public.raw)])
            assert verify_event(stored.event, ring).state == "ok"

    asyncio.run(scenario())


@pytest.mark.slow
def test_what_the_node_makes_of_a_signed_event_is_signed_by_the_node(
    served_node: Open, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signing = RULES.replace("[access.keys.gateway]", "[access]\nsign = true\n[access.keys.gateway]")
    data = b'{"reader":"r1","tag":"E200-01","dx":1.0,"dy":0.5,"t":"2026-03-02T09:00:00Z"}'
    raw = Event(source="door-3", id="e1", type="readers.raw", subject="", time=1, data=data)

    async def scenario() -> tuple[Event, Event]:
        async with served_node(site_text=signing) as api:
            node = api.node
            signed = sign_event(raw, KEY)
            await node.append("raw.readers", [signed])
            assert await node.channels.channel("raw.readers").wait_after(0, timeout_ms=20_000)
            kept = await until_settled(node)
            return signed, kept

    async def until_settled(node: Any) -> Event:
        for channel in ("events", "quarantine"):
            if await node.channels.channel(channel).wait_after(0, timeout_ms=3_000):
                (stored,) = await node.channels.channel(channel).read_after(0)
                assert channel == "events", stored.event.data
                return stored.event
        raise AssertionError("neither read nor rejected")

    signed, reading = asyncio.run(scenario())
    site = tmp_path / "site"
    node_key = find_node_key(site / ".rapport")
    assert node_key is not None
    ring = open_keys(Access(), site, node_key)
    assert verify_event(reading, ring).state == "ok"
    assert reading.headers[SIGNED_BY] == node_key.fingerprint
    assert reading.headers[RAW_VERDICT] == "ok"
    assert reading.headers[RAW_SIGNED_BY] == KEY.fingerprint
    assert reading.headers["rawsignature"] == signed.headers[SIGNATURE]
    capsys.readouterr()
    assert run(["access", "verify", "e1", "--site", str(site), "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["channel"], first["verdict"]["key"]) == ("raw.readers", "gateway")
    assert (second["channel"], second["verdict"]["key"], second["said"]) == ("events", "node", "ok")
    assert run(["access", "keys", "--site", str(site)]) == 0
    assert node_key.as_text() in capsys.readouterr().out
