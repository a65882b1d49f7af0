"""Readings carried by gossip: each arrives once and in order, whatever is lost, doubled or killed.
[EN-14]
"""

from __future__ import annotations

import errno
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import Corrupt, InvalidInput
from rapport.core.knowledge import Knowledge
from rapport.ensemble.device_readings import (
    WINDOW,
    WINDOW_BYTES,
    Backlog,
    Collector,
    Confirming,
    Reader,
    Receipt,
    new_readings,
    parse_device_knowledge,
    reading_id,
)
from rapport.ensemble.model.host import Host
from rapport.kernel.clock import Chance, Now


class Line:
    """A device and a node that hear of each other only what is let through."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.time_ms, self.version = path, 1_000, 0
        self.noted: list[int] = []
        self.log: dict[str, int] = {}
        """What the node's channel holds: by id, each once, as channels do."""
        self.missing = 0
        self.held: list[Knowledge] = []
        self.start_device()
        self.start_node(keeps=False)

    def start_device(self) -> None:
        self.reader = Reader(id="door", backlog=Backlog(self.path, most=200))
        self.device = self._host(self.reader)

    def start_node(self, *, keeps: bool) -> None:
        receipts = self.collector.receipts if keeps else {}
        self.collector = Collector(id="hall", receipts=receipts)
        self.node = self._host(self.collector)

    def _host(self, component: Any) -> Host:
        host = Host(component.id, [Confirming], Chance(1))
        host.add(component, self.now())
        return host

    def now(self) -> Now:
        return Now(self.time_ms, float(self.time_ms))

    def note(self) -> None:
        self.noted.append(len(self.noted) + 1)
        self.reader.note({"n": self.noted[-1]}, self.time_ms)

    def run(self) -> None:
        self.time_ms += 600
        self.device.run(self.now())
        assert len(self.reader.readings) <= WINDOW

    def say(self, host: Host, component: str) -> Knowledge:
        self.version += 1
        told = host.snapshot(component)
        assert told is not None
        return Knowledge(component, host.node, told.roles, self.version, self.time_ms, told.values)

    def to_node(self, knowledge: Knowledge) -> None:
        if not self.node.replace(knowledge, self.now()):
            return
        told = parse_device_knowledge(knowledge.values)
        fresh = new_readings(told, self.collector.receipts.get("door", Receipt()))
        for one in fresh.readings:
            id = reading_id("door", told.life, one.number)
            self.log.setdefault(id, told_number(one.data))
        self.missing += fresh.missing
        if fresh.readings:
            receipts = {**self.collector.receipts, "door": fresh.receipt}
            self.node.assign("hall", {"receipts": receipts}, self.now())

    def heal(self) -> None:
        for _ in range(2 * len(self.noted) // WINDOW + 4):
            self.run()
            self.to_node(self.say(self.device, "door"))
            self.device.replace(self.say(self.node, "hall"), self.now())
        self.run()


def told_number(data: str) -> int:
    return int(data.split(":")[1].rstrip("}"))


STEPS = st.lists(
    st.sampled_from(
        [
            "note",
            "note",
            "arrives",
            "lost",
            "twice",
            "held",
            "released",
            "confirmed",
            "device restarts",
            "node restarts",
            "node forgets",
        ]
    ),
    max_size=60,
)


def step(line: Line, what: str) -> None:
    match what:
        case "note":
            line.note()
        case "arrives" | "twice":
            line.run()
            told = line.say(line.device, "door")
            for _ in range(1 + (what == "twice")):
                line.to_node(told)
        case "lost":
            line.run()
            line.say(line.device, "door")
        case "held":
            line.held.append(line.say(line.device, "door"))
        case "released" if line.held:
            line.to_node(line.held.pop(0))
        case "confirmed":
            line.device.replace(line.say(line.node, "hall"), line.now())
        case "device restarts":
            line.reader.backlog.close()
            line.start_device()
        case "node restarts" | "node forgets":
            line.start_node(keeps=what == "node restarts")


@given(STEPS)
def test_every_reading_arrives_once_and_in_order_whatever_happens(steps: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        line = Line(Path(folder) / "backlog")
        for what in steps:
            step(line, what)
        line.heal()
        assert list(line.log.values()) == line.noted
        assert (len(line.reader.backlog), line.reader.readings) == (0, [])
        line.reader.backlog.close()


def test_a_device_without_a_file_begins_a_new_life_and_doubles_no_name() -> None:
    line = Line(None)
    for what in ("note", "arrives", "note", "device restarts", "note"):
        step(line, what)
    line.heal()
    assert list(line.log.values()) == [1, 3]  # the second was only in the memory that is gone


def test_a_backlog_is_bounded_and_what_is_dropped_is_counted_on_both_sides() -> None:
    line = Line(None)
    for _ in range(250):
        line.note()
    line.heal()
    assert list(line.log.values()) == line.noted[50:]
    assert (line.reader.dropped, line.missing) == (50, 50)
    assert line.reader.noted == 250


def test_what_travels_at_a_time_is_bounded_in_bytes() -> None:
    backlog = Backlog(life="l")
    for number in range(20):
        backlog.note({"n": number, "text": "x" * 3_000}, number)
    chosen = backlog.first(WINDOW, WINDOW_BYTES)
    assert [one.number for one in chosen] == [1, 2, 3, 4, 5]


def test_a_torn_last_line_is_forgotten_and_a_torn_other_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "backlog"
    first = Backlog(path)
    for number in range(3):
        first.note({"n": number}, number)
    first.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    again = Backlog(path)
    assert (again.life, again.last, len(again)) == (first.life, 2, 2)
    again.close()
    path.write_bytes(whole.replace(b"[1,0", b"[x,0"))
    with pytest.raises(Corrupt) as refused:
        Backlog(path)
    assert refused.value.code == "ensemble.bad_backlog"


@pytest.mark.parametrize("is_left", [False, True], ids=["gone", "left in the file"])
def test_a_reading_that_a_full_disk_refused_leaves_nothing_that_a_restart_would_stumble_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_left: bool
) -> None:
    path = tmp_path / "backlog"
    backlog = Backlog(path)
    backlog.note({"n": 1}, 1)

    def is_full(file: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as full:
        full.setattr("rapport.ensemble.device_readings.os.fsync", is_full)
        for _ in range(2):
            with pytest.raises(OSError, match="no space"):
                backlog.note({"n": "refused"}, 2)
    whole = path.read_bytes()
    assert backlog.note({"n": 2}, 3).number == 2
    backlog.close()
    if is_left:  # as versions before left it
        path.write_bytes(whole + b"".join(path.read_bytes().splitlines(keepends=True)[-1:]))
    after = Backlog(path)
    assert [(one.number, told_number(one.data)) for one in after.first(9, 999)] == [(1, 1), (2, 2)]
    after.close()


def test_a_node_that_knows_only_a_life_before_does_not_hide_what_another_has() -> None:
    line = Line(None)
    line.note()
    line.run()
    for version in (1, 2, 3):
        for node, receipt in (("hall", (line.reader.life, 1)), ("yard", ("a life before", 7))):
            values = {"receipts": {"door": receipt}}
            said = Knowledge(node, node, ("Collecting",), version, line.time_ms, values)
            assert line.device.replace(said, line.now())
        line.run()
    assert line.reader.confirmed == Receipt(line.reader.life, 1)
    assert not line.reader.readings


def test_a_file_of_which_nobody_ever_confirms_anything_stays_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "rapport.ensemble.device_readings.os.fsync", lambda file: None
    )  # it takes long
    path, most = tmp_path / "backlog", 50
    with closing(Backlog(path, most=most)) as backlog:
        for number in range(4_000):
            backlog.note(number, number)
            assert len(backlog) <= most
    assert len(path.read_bytes().splitlines()) < 2 * most + 1_100
    with closing(Backlog(path, most=most)) as again:
        assert [one.number for one in again.first(100, 10_000)] == list(range(3_951, 4_001))
        assert (again.life, again.last) == (backlog.life, 4_000)


def test_a_disk_that_is_full_when_the_file_is_made_anew_refuses_no_reading_that_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "backlog"

    def is_full(source: Any, target: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with closing(Backlog(path, most=1)) as backlog:
        with monkeypatch.context() as full:
            full.setattr("rapport.ensemble.device_readings.os.fsync", lambda file: None)
            full.setattr("rapport.ensemble.device_readings._LINES_TO_SPARE", 5)
            full.setattr("rapport.ensemble.device_readings.os.replace", is_full)
            noted = [backlog.note(number, number).number for number in range(7)]
            with pytest.raises(OSError, match="no space"):
                backlog.note("refused", 7)
        noted.append(backlog.note("after", 8).number)
    assert noted == list(range(1, 9))
    with closing(Backlog(path, most=1)) as again:
        assert [one.number for one in again.first(100, 10_000)] == [8]


def test_a_file_that_was_confirmed_often_stays_small(tmp_path: Path) -> None:
    path = tmp_path / "backlog"
    backlog = Backlog(path)
    noted = backlog.note({"n": 1}, 1).number
    backlog._lines = 10_000  # as if so much had been written
    backlog.confirm(Receipt(backlog.life, noted))
    backlog.close()
    assert len(path.read_bytes().splitlines()) == 1
    again = Backlog(path)
    assert again.last == 1
    again.close()


@pytest.mark.parametrize(
    "values",
    [
        {"life": "", "readings": [[1, 1, "{}"]]},
        {"life": "a", "readings": [[2, 1, "{}"], [1, 1, "{}"]]},
        {"life": "a", "readings": [[1, 1, "{}"], [1, 1, "{}"]]},
        {"life": "a", "readings": [[-1, 1, "{}"]]},
        {"life": "a", "readings": [[2**60, 1, "{}"]]},
        {"life": "a", "readings": [[1, 2**60, "{}"]]},
        {"life": "a", "readings": [["1", 1, "{}"]]},
        {"life": "a"},
        {},
    ],
    ids=[
        "no life",
        "disorder",
        "doubled",
        "negative",
        "endless",
        "no time",
        "text",
        "none",
        "empty",
    ],
)
def test_knowledge_that_says_nothing_sensible_of_readings_is_refused(
    values: dict[str, Any],
) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_device_knowledge(values)
    assert refused.value.code == "ensemble.bad_readings"


@pytest.mark.parametrize(
    ("data", "code"),
    [({"x": object()}, "ensemble.bad_reading"), ("x" * 5_000, "ensemble.reading_too_large")],
    ids=["no JSON", "too large"],
)
def test_readings_that_cannot_travel_are_refused_where_they_are_noted(data: Any, code: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Backlog().note(data, 0)
    assert refused.value.code == code


@pytest.mark.parametrize("time_ms", [1.7e18, -(2**53), float("nan"), None, True, "now"], ids=repr)
def test_a_time_that_no_node_takes_is_refused_where_it_is_noted(
    tmp_path: Path, time_ms: Any
) -> None:
    with closing(Backlog(tmp_path / "backlog")) as backlog, pytest.raises(InvalidInput) as refused:
        backlog.note({}, time_ms)
    assert (refused.value.code, bool(refused.value.hint)) == ("ensemble.bad_reading", True)
    with closing(Backlog(tmp_path / "backlog")) as after:
        assert len(after) == 0


def test_a_time_with_parts_of_a_millisecond_travels_without_them(tmp_path: Path) -> None:
    reader = Reader(id="door", backlog=Backlog(tmp_path / "backlog"))
    reader.note({}, 1_772_442_845_300.7)
    reader.backlog.close()
    with closing(Backlog(tmp_path / "backlog")) as after:
        (kept,) = after.first(9, 999)
    assert (kept.time_ms, type(kept.time_ms)) == (1_772_442_845_300, int)
