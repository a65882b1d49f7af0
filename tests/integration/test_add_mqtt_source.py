"""From a freezer on a real broker to the first alert in three commands. [CN-6, CH-12]"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rapport.cli.main import run
from rapport.core.times import format_time
from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.node.wiring import make_node
from rapport.site.site import load_site
from support.servers.mqtt import Device, mqtt_broker, mqtt_name  # noqa: F401
from support.servers.nats import NatsServer
from web.test_new_sources import site_file
from web.test_policy_editor import cold_store

pytestmark = pytest.mark.slow
MINUTE_MS = 60_000


def test_three_commands_lead_from_an_mqtt_freezer_to_the_first_alert(
    tmp_path: Path,
    mqtt_broker: NatsServer,  # noqa: F811
    mqtt_name: str,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    site, root = tmp_path / "home", f"z{mqtt_name}"
    address = f"mqtt://127.0.0.1:{mqtt_broker.mqtt_port}/{root}/#"
    now_ms = SystemClock().now_ms()

    def reading(minutes_ago: int, value: float) -> dict[str, object]:
        seen = format_time(now_ms - minutes_ago * MINUTE_MS)
        return {"temperature": value, "linkquality": 96, "last_seen_time": seen}

    with Device(mqtt_broker.mqtt_port, client_id=f"{mqtt_name}-device") as device:
        device.publish(f"{root}/chest", reading(60, -18.5), retain=True)
        device.publish(f"{root}/bridge/state", {"state": "online"}, retain=True)
        assert run(["init", str(site), "--template", "home"]) == 0
        capsys.readouterr()
        arguments = ["add", address, "--site", str(site), "--listen", "2s", "--yes"]
        assert run([*arguments, "--name", mqtt_name]) == 0
        said = capsys.readouterr().out
        assert len(said.splitlines()) <= 10
        assert f"{root}/{{device}} (1: chest)" in said
        assert "first reading: freezer.temperature of chest is -18.5" in said
        assert run(["check", "--site", str(site)]) == 0

        async def alert() -> Any:
            node = make_node(load_site(site), NodeSettings(port=0), SystemClock())
            detections = node.channels.channel("detections")
            try:
                await node.start()
                while any(one.counts.trouble for one in node.bridges.status()):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                for minutes in range(40, 20, -2):
                    await asyncio.to_thread(device.publish, f"{root}/chest", reading(minutes, -8.5))
                read = 0
                while True:  # steps of time and other policies' detections stand there too
                    assert await detections.wait_after(read, timeout_ms=30_000)
                    for stored in await detections.read_after(read):
                        read, found = stored.position, stored.event.payload()
                        about = (found.get("policy"), found.get("bindings"))
                        if about == ("too-warm", {"F": "chest"}):
                            return found
            finally:
                await node.stop()

        found = asyncio.run(asyncio.wait_for(alert(), 60))
    assert found["values"]["temperature of F"]["value"] == -8.5


def test_a_broker_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["init", str(tmp_path / "home"), "--template", "home"]) == 0
    arguments = ["--site", str(tmp_path / "home"), "--listen", "1s"]
    assert run(["add", "mqtt://127.0.0.1:1/a/#", *arguments]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err
    assert run(["add", "mqtt://me:secret@127.0.0.1:1/a/#", *arguments]) == 2
    assert "secret@" not in capsys.readouterr().err


def test_a_broker_is_listened_to_over_http_and_what_was_heard_becomes_a_source(
    tmp_path: Path,
    mqtt_broker: NatsServer,  # noqa: F811
    mqtt_name: str,  # noqa: F811
) -> None:
    root = f"y{mqtt_name}"
    address = f"mqtt://127.0.0.1:{mqtt_broker.mqtt_port}/{root}/#"

    async def scenario() -> None:
        async with cold_store(tmp_path) as api:
            before = site_file(api)
            where = {"address": address, "seconds": 1}
            found = (await api.call("POST", "/site/sources/listen", where)).json()["sources"]
            assert [(one["origin"], one["things"]) for one in found] == [
                (f"{root}/{{device}}", ["chest", "shed"])
            ]
            body = {"heard": found[0]["heard"], "choices": {"units": {"temperature": "degC"}}}
            draft = (await api.call("POST", "/site/sources/guess", {**body, "name": "z"})).json()
            keys = {(one["key"], one["value"][0]) for one in draft["readings"]}
            assert keys == {("chest", -18.5), ("shed", -17.0)}
            assert site_file(api) == before
            written = await api.call("PUT", "/site/sources/z", body)
            assert written.status == 200
            assert not written.json()["in_force"], "streams and brokers count from a start on"
            site = load_site(api.node.site.directory)
            assert site.file.section("mqtt").values["z"]["in"][0]["topic"] == f"{root}/{{device}}"
            assert (await api.call("DELETE", "/site/sources/z")).status == 200
            assert site_file(api) == before

    with Device(mqtt_broker.mqtt_port, client_id=f"{mqtt_name}-device") as device:
        for thing, value in (("chest", -18.5), ("shed", -17.0)):
            device.publish(f"{root}/{thing}", {"temperature": value}, retain=True)
        asyncio.run(asyncio.wait_for(scenario(), 60))
