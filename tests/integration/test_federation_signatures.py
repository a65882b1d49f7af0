"""A signature outlives a link between real nodes, and a changed byte does not pass for one.
[CH-11, CH-18]
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rapport.cli.main import run
from rapport.core.codec import to_cloudevent
from rapport.core.event import Event, make_event
from rapport.kernel.signing_keys import KeyRing, SigningKey, sign_event, verify_event
from support.processes.node import NodeProcess
from support.written_log import WrittenLog

pytestmark = pytest.mark.slow

SITE = '[site]\nname = "{name}"\n\n[concepts.sample.attributes]\nmass = "number"\n'
LINK = '\n[links.a]\nurl = "http://{}:{}"\nreceive = ["shared"]\n'
KEYS = '\n[access.keys]\nscale = "{key}"\n'


class Pair:
    """Node B receives from node A, and knows the key that A's events are signed with."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.key = SigningKey.new()
        self.here, self.there = folder / "b", folder / "a"
        for site in (self.here, self.there):
            site.mkdir()
            (site / "site.toml").write_text(SITE.format(name=site.name))
        self.a = stack.enter_context(NodeProcess(self.there))
        self.b = stack.enter_context(NodeProcess(self.here))
        self.a.start()
        assert self.a.doors is not None
        with (self.here / "site.toml").open("a") as file:
            key = self.key.public.as_text()
            file.write(LINK.format(*self.a.doors) + KEYS.format(key=key))
        self.b.start()

    def signed(self, name: str) -> Event:
        mass = {"mass": 12, "unit": "kg", "by": "Ærø"}
        event = make_event(source="scale", id=name, type="weighed", time=1_000, data=mass)
        return sign_event(event, self.key)

    def publish(self, channel: str, *events: Event) -> None:
        ask(self.a, f"/channels/{channel}/events", [to_cloudevent(event) for event in events])

    def held(self, node: NodeProcess, channel: str) -> list[str]:
        page = ask(node, f"/channels/{channel}/events?after=0&limit=100")
        return [event["id"] for event in page["events"]]


def ask(node: NodeProcess, path: str, body: Any = None) -> Any:
    assert node.doors is not None
    data = None if body is None else msgspec.json.encode(body)
    request = urllib.request.Request("http://{}:{}{}".format(*node.doors, path), data=data)
    request.add_header("Content-Type", "application/cloudevents-batch+json")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return msgspec.json.decode(answer.read())


def wait_until(condition: Callable[[], bool], seconds: float = 40) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        threading.Event().wait(0.1)
    return True


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(tmp_path, stack)


def test_a_signature_is_good_at_the_next_node_and_a_changed_byte_is_found_there(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    good, other = pair.signed("good"), pair.signed("changed")
    changed = msgspec.structs.replace(other, data=other.data.replace(b"12", b"13"))
    pair.publish("shared", good, changed)
    assert wait_until(lambda: sorted(pair.held(pair.b, "shared")) == ["changed", "good"])
    pair.a.stop()
    pair.b.stop()

    keys = KeyRing([pair.key.public])
    kept = {one.event.id: one.event for one in WrittenLog(pair.here / ".rapport" / "log")["shared"]}
    assert kept["good"].data == good.data
    assert verify_event(kept["good"], keys).state == "ok"
    assert verify_event(kept["changed"], keys).state == "bad"
    for offset in range(len(good.data)):  # and any other byte, changed after it was stored
        byte = good.data[offset] ^ 1
        data = good.data[:offset] + bytes([byte]) + good.data[offset + 1 :]
        other = msgspec.structs.replace(kept["good"], data=data)
        assert verify_event(other, keys).state == "bad", offset

    verify = ["access", "verify", "--site", str(pair.here), "--json"]
    assert run([*verify, "good"]) == 0
    (proof,) = json.loads(capsys.readouterr().out)
    assert (proof["channel"], proof["verdict"]["state"]) == ("shared", "ok")
    assert proof["verdict"]["key"] == "scale"
    assert run([*verify, "changed"]) == 1
    (proof,) = json.loads(capsys.readouterr().out)
    assert proof["verdict"]["state"] == "bad"
