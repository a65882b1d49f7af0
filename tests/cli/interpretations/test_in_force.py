"""`rapport read --as` and `rapport mediate show`: what is in force, by files and log, without a
node and beside one. [ME-6, ME-9, ME-12]
"""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from rapport.cli.main import run
from support.processes.node import NodeProcess

pytestmark = pytest.mark.slow

SITE = """
[site]
name = "city"
[concepts.station.attributes]
temperature = "number"
[concepts.station.units]
temperature = "degC"
[sources.weather]
concept = "station"
attribute = "temperature"
interpretation = "us"
[interpretations.us]
units = { "station.temperature" = "degF" }
[node]
port = 9
"""
FRENCH = """
[interpretations.fr]
units = { "station.temperature" = "K" }
"""
US_IN_KELVIN = FRENCH.replace("fr", "us")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    directory = tmp_path / "site"
    directory.mkdir()
    (directory / "site.toml").write_text(SITE)
    return directory


class Command:
    """Runs commands on a site; what they write."""

    def __init__(self, site: Path, capfdbinary: Any) -> None:
        self._site, self._capture = site, capfdbinary

    def __call__(self, *words: str, code: int = 0) -> str:
        self._capture.readouterr()
        assert run([*words, "--site", str(self._site)]) == code, self._capture.readouterr().err
        out, err = self._capture.readouterr()
        self.err = err.decode()
        return str(out.decode())

    def declare(self, text: str, *more: str) -> None:
        path = self._site.parent / "declared.toml"
        path.write_text(text)
        self("interpretation", "declare", str(path), *more)


def test_before_the_first_start_the_files_are_shown(site: Path, capfdbinary: Any) -> None:
    assert "def " in Command(site, capfdbinary)("mediate", "show", "weather")


def test_a_change_on_record_is_shown_without_a_node(site: Path, capfdbinary: Any) -> None:
    command = Command(site, capfdbinary)
    before = command("mediate", "show", "weather")
    command.declare(US_IN_KELVIN)
    after = command("mediate", "show", "weather")
    assert after != before
    assert "us in: us station => station" in after
    assert command.err == ""


def test_a_changed_file_is_told_and_counts(site: Path, capfdbinary: Any) -> None:
    command = Command(site, capfdbinary)
    before = command("mediate", "show", "weather")
    command.declare(US_IN_KELVIN)
    (site / "site.toml").write_text(SITE.replace('"degF"', '"K"'))
    shown = command("mediate", "show", "weather")
    assert shown != before
    assert "shown as in the files: us" in command.err


def test_beside_a_running_node_its_changes_are_seen(site: Path, capfdbinary: Any) -> None:
    command = Command(site, capfdbinary)
    with NodeProcess(site) as node:
        node.start()
        assert node.doors is not None
        url = "http://{}:{}".format(*node.doors)
        command.declare(FRENCH, "--url", url)
        body = json.dumps([{"key": "s1", "temperature": 77}]).encode()
        asked = urllib.request.Request(
            f"{url}/sources/weather", body, {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(asked, timeout=20).close()
        urllib.request.urlopen(f"{url}/channels/events/events?wait=20s", timeout=30).close()
        said = json.loads(command("read", "events", "--as", "fr", "--json"))
        assert said["type"] == "fr station"
        assert said["data"]["temperature"] == pytest.approx(298.15)
        before = command("mediate", "show", "weather")
        command.declare(US_IN_KELVIN, "--url", url)
        assert command("mediate", "show", "weather") != before
        command("read", "events", "--as", "french", code=2)
        assert "fr" in command.err
