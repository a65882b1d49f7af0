"""`docs/walk.md` is what happens: the modules that one reading meets from its HTTP request to two
mails, recorded while it walks. `./run golden` writes the page anew.
"""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from rapport.core.times import format_time
from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.node.wiring import make_node
from rapport.scenarios.json_client import post_json
from rapport.scenarios.mail_server import LocalMailServer
from rapport.site.site import load_site
from rapport.web.app import serving

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "walk.md"
SOURCE = f"{ROOT / 'src' / 'rapport'}/"
MOST_MODULES = 72
"""The walk may become shorter, not longer."""
SITE = """
[site]
name = "cold-store"
lateness = "0s"
[concepts.freezer.attributes]
temperature = "number"
[sources.freezers]
concept = "freezer"
attribute = "temperature"
key = "freezer"
time = "at"
value = "celsius"
[policies]
files = ["*.dpl"]
[adapters.mail]
host = "127.0.0.1"
port = {port}
sender = "rapport@example.org"
encryption = "none"
[peers.ana]
addresses = ["mail:ana@example.org"]
[peers.ben]
addresses = ["mail:ben@example.org"]
[collectives]
staff = {{ members = ["ana", "ben"] }}
[actions."look after it"]
send_to = "collective:staff"
text = "{{F}} is warm"
"""
WARM = """concepts
  freezer F
conditions
  temperature of F above -12
actions
  look after it
"""
STEPS = {
    "web": "The HTTP endpoint reads the request and appends the reading to its raw channel.",
    "channel": "The channel stores it and wakes its readers.",
    "store": "Segments and records are written and synced.",
    "mediation": "The reading gets its canonical form.",
    "policy": "The policy is evaluated; a detection is appended.",
    "communication": "The detection becomes a message to each receiver and is sent by mail.",
    "node": "The running node joins the parts.",
    "tables": "Tables and context that policies look up.",
    "kernel": "Clock, tasks, telemetry.",
    "core": "Events, batches, messages and their codecs.",
    "units": "Times, units and coordinates.",
    "site": "What the site declares.",
}


class Recorder:
    """Notes the modules of ours whose functions are called, in every thread that starts while it
    is there; into the set `into`.
    """

    def __init__(self) -> None:
        self.into: set[str] = set()

    def __enter__(self) -> Recorder:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_error: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]

    def _note(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            name = frame.f_code.co_filename
            if name.startswith(SOURCE):
                self.into.add(name.removeprefix(SOURCE))


async def walk(directory: Path) -> set[str]:
    """The modules that every reading meets, from its request until both mails are there; what runs
    now and then by itself is met by some of them only.
    """
    clock = SystemClock()
    walks: list[set[str]] = []
    async with LocalMailServer() as mail:
        (directory / "site.toml").write_text(SITE.format(port=mail.port))
        (directory / "warm.dpl").write_text(WARM)
        with Recorder() as recorder:
            node = make_node(load_site(directory), NodeSettings(port=0), clock)
            async with serving(node) as url:
                await node.start()
                try:
                    for number in range(1, 6):
                        reading = {"freezer": f"f{number}", "celsius": -3.0}
                        recorder.into = met = set()
                        reading["at"] = format_time(clock.now_ms())
                        await post_json(f"{url}/sources/freezers", reading)
                        await asyncio.wait_for(mail.wait_for(2 * number), 30)
                        await clock.sleep(300)  # what came of it is noted, too
                        recorder.into = set()
                        walks.append(met)
                finally:
                    await node.stop()
    return set.intersection(*walks)


@pytest.fixture(scope="module")
def met(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    found = asyncio.run(walk(tmp_path_factory.mktemp("walk")))
    return {name for name in found if not name.startswith(("scenarios/", "testing/"))}


def written(met: set[str]) -> str:
    """The page."""
    packages = sorted({name.partition("/")[0] for name in met}, key=list(STEPS).index)
    lines = [
        "# The walk of one reading",
        "",
        "Recorded by `tests/docs/test_walk.py`: the modules of ours that one reading meets, from",
        "its HTTP request to the mails of two receivers. `./run golden` writes this page anew.",
        "",
        f"{len(met)} modules",
    ]
    for package in packages:
        lines += ["", f"## {package}", STEPS[package], ""]
        lines += [f"- `{name}`" for name in sorted(met) if name.startswith(f"{package}/")]
    return "\n".join(lines) + "\n"


def test_the_page_is_what_was_recorded(met: set[str], pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--rewrite-golden", default=False):
        PAGE.write_text(written(met), encoding="utf-8")
    listed = set(re.findall(r"^- `(.+)`$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert met == listed
    assert len(met) <= MOST_MODULES


def test_every_module_that_the_architecture_names_on_the_walk_is_met(met: set[str]) -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    steps = text.partition("## The walk")[2].partition("\n## ")[0]
    live = re.split(r"^6\. |^Imported files", steps, flags=re.MULTILINE)[0]
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", live))
    assert named <= met, named - met
