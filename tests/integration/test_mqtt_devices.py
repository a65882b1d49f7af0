"""Stock devices, a real broker and a node with the lines of the how-to. [CH-12, ME-13]"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from rapport.core.event import StoredEvent
from rapport.core.times import parse_time
from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.node.wiring import make_node
from rapport.site.site import load_site
from support.servers.mqtt import Device, mqtt_broker, mqtt_name  # noqa: F401
from support.servers.nats import NatsServer

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs/how-to/mqtt-devices.md"


def written_site(broker: NatsServer, client: str) -> str:
    """All lines that the how-to tells users to write, for this broker."""
    blocks = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    text = "\n".join(blocks).replace("127.0.0.1:1883", f"127.0.0.1:{broker.mqtt_port}")
    text = re.sub(r"(\[mqtt\.(.+)\]\n)", rf'\1client = "{client}-\2"\n', text)
    return text.replace("[site]\n", '[site]\nlateness = "2s"\n')


async def subscribe_once(site: Path) -> None:
    """The broker keeps for the site's bridges what comes from now on."""
    node = make_node(load_site(site), NodeSettings(port=0), SystemClock())
    try:
        await node.start()
        while any(one.counts.trouble for one in node.bridges.status()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    finally:
        await node.stop()


async def results(site: Path, count: int) -> tuple[list[StoredEvent], list[str]]:
    """Readings, and reasons of quarantine, once there are so many of both."""
    node = make_node(load_site(site), NodeSettings(port=0), SystemClock())
    channels = [node.channels.channel(name) for name in ("events", "quarantine")]
    try:
        await node.start()
        while sum(channel.last_position() for channel in channels) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        events, quarantined = [await channel.read_after(0) for channel in channels]
        return events, [one.event.payload()["reason"] for one in quarantined]
    finally:
        await node.stop()


def heard(site: Path, broker: NatsServer, name: str, said: list[tuple[str, bytes]]) -> Any:
    """What a node with the site of the how-to makes of messages that devices publish."""
    (site / "site.toml").write_text(written_site(broker, name))
    asyncio.run(subscribe_once(site))
    with Device(broker.mqtt_port, client_id=f"{name}-device") as device:
        for topic, payload in said:
            device.publish(topic, payload)
    return asyncio.run(asyncio.wait_for(results(site, len(said)), 30))


def test_zigbee2mqtt_tasmota_shelly_and_esphome_are_read_by_the_lines_of_the_how_to(
    tmp_path: Path,
    mqtt_broker: NatsServer,  # noqa: F811
    mqtt_name: str,  # noqa: F811
) -> None:
    measured = '{"Temperature":22.6,"Humidity":32.4}'
    sensor = f'{{"Time":"2026-03-02T18:25:03","AM2301":{measured},"TempUnit":"C"}}'.encode()
    said = [
        ("zigbee2mqtt/kitchen", b'{"temperature":27.34,"humidity":44.72,"linkquality":96}'),
        ("zigbee2mqtt/button", b'{"action":"single"}'),
        ("tele/TH16/SENSOR", sensor),
        ("shellies/shelly1-A4C138/relay/0", b"on"),
        ("shellies/shelly1-A4C138/relay/0", b"on"),
        ("shellies/shelly1-A4C138/relay/0", b"off"),
        ("shellyplusht-b8d61a8b17cc/status/temperature:0", b'{"id":0,"tC":19.8,"tF":67.6}'),
        ("livingroom/sensor/temperature/state", b"21.3"),
        ("livingroom/sensor/temperature/state", b"-18.4"),
        ("livingroom/sensor/temperature/state", b"nan"),
    ]
    events, codes = heard(tmp_path, mqtt_broker, mqtt_name, said)
    values = [
        (one.event.subject, one.event.type, one.event.payload()["value"][0]) for one in events
    ]
    assert sorted(values, key=str) == sorted(
        [
            ("room/kitchen", "room.temperature", 27.34),
            ("room/TH16", "room.temperature", 22.6),
            ("room/shelly1-A4C138", "room.lamp", "on"),
            ("room/shelly1-A4C138", "room.lamp", "on"),
            ("room/shelly1-A4C138", "room.lamp", "off"),
            ("room/shellyplusht-b8d61a8b17cc", "room.temperature", 19.8),
            ("room/livingroom", "room.temperature", 21.3),
            ("room/livingroom", "room.temperature", -18.4),
        ],
        key=str,
    )
    assert [value for _key, type, value in values if type == "room.lamp"] == ["on", "on", "off"]
    assert sorted(codes) == ["field.missing", "value.not_a_number"]
    assert parse_time("2026-03-02T17:25:03Z") in [one.event.time for one in events]
