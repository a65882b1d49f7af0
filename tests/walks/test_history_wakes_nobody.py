"""Last year's files are imported beside a running node: found, marked, shown, and nobody is
notified unless that is asked for. [PO-7, PO-10, ME-13]
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from rapport.cli.main import run
from support.processes.node import NodeProcess

pytestmark = pytest.mark.slow

SITE = """
[site]
name = "weather"
lateness = "0s"
[concepts.station.attributes]
temperature = "number"
[concepts.station.units]
temperature = "degC"
[sources.stations]
concept = "station"
attribute = "temperature"
id = "id"
time = "at"
key = "station"
value = "value"
[policies]
files = ["*.dpl"]
[peers.ana]
addresses = ["inbox:"]
[actions."call the fire brigade"]
send_to = "peer:ana"
text = "{S} is too hot"
"""
HOT = """concepts
  station S
conditions
  temperature of S above 30 degC for 2 hours
actions
  call the fire brigade
"""
FIRST, SECOND, THIRD = (1_741_600_000_000 + 3_600_000 * n for n in (0, 1, 24 * 30))


def _rows(directory: Path, name: str, *rows: tuple[str, int, float]) -> Path:
    path = directory / name
    path.write_text(
        "".join(
            json.dumps({"id": f"{station}-{at}", "station": station, "at": at, "value": value})
            + "\n"
            for station, at, value in rows
        )
    )
    return path


def _until(condition: Callable[[], Any]) -> Any:
    for _ in range(600):
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not come")


def test_files_in_any_order_are_found_and_marked_and_wake_nobody_unless_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "site.toml").write_text(SITE)
    (site / "hot.dpl").write_text(HOT)
    late = _rows(tmp_path, "second.jsonl", ("s1", FIRST + 3 * 3_600_000, 20.0))
    early = _rows(tmp_path, "first.jsonl", ("s1", FIRST, 31.0), ("s1", SECOND, 32.0))
    other = _rows(tmp_path, "third.jsonl", ("s2", THIRD, 33.0), ("s2", THIRD + 9_000_000, 20.0))
    with NodeProcess(site) as node:
        node.start()
        assert node.doors is not None
        url = f"http://{node.doors[0]}:{node.doors[1]}"

        def got(path: str) -> Any:
            with urlopen(url + path, timeout=20) as answer:
                return json.loads(answer.read())

        def detections() -> list[dict[str, Any]]:
            found = got("/channels/detections/events?limit=1000")["events"]
            return [one for one in found if one["type"] == "rapport.policy.detected"]

        def import_file(path: Path, *more: str) -> None:
            words = ["import", str(path), "--source", "stations", "--site", str(site)]
            assert run([*words, "--url", url, *more]) == 0

        import_file(late)
        import_file(early)
        (found,) = _until(detections)
        assert (found["history"], found["data"]["time"]) == ("true", FIRST + 2 * 3_600_000)
        rows = _until(lambda: got("/ledger"))
        assert [(row["peer"], row["state"]) for row in rows] == [("ana", "skipped")]
        assert "found in imported history, for 2025-03-10T11:46:40.000Z" in rows[0]["reason"]

        import_file(other, "--notify")
        _until(lambda: len(detections()) == 2)
        asked = _until(lambda: [row for row in got("/ledger") if row["state"] == "handed"])
        assert [row["peer"] for row in asked] == ["ana"]
        kinds = {one["type"] for one in got("/channels/detections/events?limit=1000")["events"]}
        assert "rapport.policy.late" not in kinds
    capsys.readouterr()
    assert run(["explain", found["id"], "--site", str(site)]) == 0
    shown = capsys.readouterr().out
    assert "imported as history" in shown
    assert "1 of 1 conditions held" in shown
