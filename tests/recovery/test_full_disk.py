"""A disk that is full at any moment: an append that fails says so, nothing half-written is ever
read, and with room again everything goes on. [CH-5, CH-13, CH-14]
"""

from __future__ import annotations

import asyncio
import http.client
import json
import resource
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rapport.channel.agents.listener_directory import ListenedQuery, ListenerDirectory
from rapport.channel.agents.listener_state import ResumePoint
from rapport.channel.agents.outbox import Outbox
from rapport.channel.config import ChannelRules, ChannelsConfig
from rapport.channel.log.channels import LoggedChannels, LogParts
from rapport.channel.log.writer import ThreadWriter
from rapport.core.errors import ChannelUnavailable, StoreUnavailable
from rapport.core.event import Event
from rapport.kernel.clock import Chance, ManualClock
from rapport.store.history_index import MemoryHistory
from rapport.store.memory import MemoryRecordStore
from rapport.store.segment_store import SegmentLogStore
from support.faults.disk import ForgetfulDisk
from support.faults.full_disk import FullDisk
from support.processes.node import NodeProcess
from support.written_log import WrittenLog

pytestmark = pytest.mark.slow

STORE = Path("/data/store")
CHILD = Path(__file__).with_name("full_disk_child.py")
SESSION = ListenedQuery(channel="c", query="{}")
SITE = '[site]\nname = "lab"\n\n[concepts.sample.attributes]\nmass = "number"\n'
BATCHES = [
    [
        Event("s", f"{number}-{n}", "t", "", 0, b'"' + b"x" * (number * 53 % 400) + b'"')
        for n in range(1 + number % 3)
    ]
    for number in range(24)
]


def open_on(disk: FullDisk) -> LoggedChannels:
    channels = LoggedChannels(
        LogParts(
            clock=ManualClock(),
            log=SegmentLogStore(STORE, files=disk, segment_bytes=1_500),
            records=MemoryRecordStore(),
            history=MemoryHistory(),
            writer=ThreadWriter(name="writer-under-test"),
            pool=ThreadPoolExecutor(1),
        )
    )
    channels.use_rules(ChannelsConfig(rules=(ChannelRules(pattern="c", keep_bytes=6_000),)))
    return channels


async def append_all(channels: LoggedChannels) -> list[str]:
    """What was acknowledged; each refusal says why, and nothing of it is read."""
    acknowledged: list[str] = []
    for batch in BATCHES:
        try:
            await channels.channel("c").append(batch)
            acknowledged += [event.id for event in batch]
        except ChannelUnavailable as error:
            assert (error.code, error.status) == ("store.disk_full", 503)
            assert error.retry_after_seconds > 0
            assert error.hint
    assert await ids_in(channels) == acknowledged
    return acknowledged


async def ids_in(channels: LoggedChannels) -> list[str]:
    return [one.event.id for one in await channels.channel("c").read_after(0, limit=10_000)]


async def fill_and_free(disk: FullDisk, power: ForgetfulDisk) -> None:
    """One story: full from some step on, then free, then a power cut."""
    try:
        channels = open_on(disk)
    except StoreUnavailable as error:
        assert error.code == "store.disk_full"
        disk.free()
        channels = open_on(disk)
    acknowledged = await append_all(channels)
    disk.free()
    for batch in BATCHES:  # whoever was refused comes again; so do those who heard no answer
        await channels.channel("c").append(batch)
    everything = await ids_in(channels)
    assert everything[: len(acknowledged)] == acknowledged
    assert sorted(everything) == sorted(event.id for batch in BATCHES for event in batch)
    power.cut_power(Chance(disk.steps))
    channels = open_on(FullDisk(power))
    assert await ids_in(channels) == everything
    await channels.close()


def test_a_disk_full_at_any_step_of_appending_and_rolling_loses_nothing_acknowledged() -> None:
    room, refused = 0, 1
    while refused:
        power = ForgetfulDisk()
        disk = FullDisk(power, room)
        asyncio.run(fill_and_free(disk, power))
        room, refused = room + 1, disk.refused
    assert room > 60


async def sweep_on_a_full_disk(room: int) -> int:
    disk = FullDisk(ForgetfulDisk())
    channels = open_on(disk)
    for batch in BATCHES:
        await channels.channel("c").append(batch)
    before = await ids_in(channels)
    disk.fill(after=room)
    await channels.sweeper.sweep_all()
    left = await ids_in(channels)
    assert left == before[len(before) - len(left) :]
    disk.free()
    await channels.sweeper.sweep_all()
    assert 0 < len(await ids_in(channels)) < len(before)
    await channels.close()
    return disk.refused


def test_retention_frees_a_full_disk_or_is_put_off_and_never_leaves_a_hole() -> None:
    room = 0
    while asyncio.run(sweep_on_a_full_disk(room)):
        room += 1
    assert room > 0


def test_an_outbox_on_a_full_disk_refuses_at_the_call_and_goes_on_with_room() -> None:
    room, refused = 0, 1
    while refused:
        disk, accepted = FullDisk(ForgetfulDisk(), room), []
        try:
            outbox = Outbox(STORE, ManualClock(5), new_name="p", segment_bytes=900, files=disk)
        except StoreUnavailable as error:
            assert error.code == "store.disk_full"
            disk.free()
            outbox = Outbox(STORE, ManualClock(5), new_name="p", segment_bytes=900, files=disk)
        for batch in BATCHES[:12]:
            try:
                outbox.add(batch)
                accepted += [event.id for event in batch]
            except StoreUnavailable as error:
                assert error.code == "store.disk_full"
        disk.free()
        outbox.add(BATCHES[12])
        accepted += [event.id for event in BATCHES[12]]
        found = outbox.read_waiting(1, outbox.last, most_bytes=10**9)
        assert [one.event.id for one in found] == accepted
        outbox.close()
        room, refused = room + 1, disk.refused


def test_a_listeners_place_on_a_full_disk_stays_the_last_one_that_was_kept() -> None:
    room, refused = 0, 1
    while refused:
        disk = FullDisk(ForgetfulDisk())
        place = ListenerDirectory(STORE, SESSION, files=disk)
        place.save(ResumePoint("first", False, 1))
        disk.fill(after=room)
        try:
            place.save(ResumePoint("second", False, 2))
        except StoreUnavailable as error:
            assert error.code == "store.disk_full"
        disk.free()
        kept = place.saved
        place.close()
        again = ListenerDirectory(STORE, SESSION, files=disk)
        # The name may be new and its sync refused: then the newer place stands there.
        assert again.saved in (kept, ResumePoint("second", False, 2))
        again.save(ResumePoint("third", False, 3))
        again.close()
        room, refused = room + 1, disk.refused
    assert room > 3


def small_disk_command(mount_point: Path) -> list[str]:
    """Runs the child with a real, small file system of its own that nobody else sees."""
    inner = f'mount -t tmpfs -o size=3m tmpfs "{mount_point}" && exec "$0" "$@"'
    return ["unshare", "-rm", "sh", "-c", inner, sys.executable, str(CHILD), str(mount_point)]


def has_private_mounts() -> bool:
    if shutil.which("unshare") is None or shutil.which("mount") is None:
        return False
    tried = subprocess.run(
        ["unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /mnt"],
        capture_output=True,
        check=False,
    )
    return tried.returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not has_private_mounts(), reason="the system lets nobody mount a small disk")
def test_on_a_real_small_disk_that_is_really_full(tmp_path: Path) -> None:
    ran = subprocess.run(
        small_disk_command(tmp_path), capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told.pop("append") == ["store.disk_full", 503, True]
    assert told.pop("commit") == ["store.disk_full", 503]
    assert set(told.values()) == {True}, told


def post(node: NodeProcess, ids: list[str]) -> tuple[int, str | None, dict]:
    connection = http.client.HTTPConnection(*node.doors, timeout=20)
    events = [{"source": "s", "type": "t", "id": id, "data": "x" * 3_000} for id in ids]
    connection.request("POST", "/channels/lab/events", json.dumps(events))
    answer = connection.getresponse()
    told = answer.status, answer.getheader("Retry-After"), json.loads(answer.read())
    connection.close()
    return told


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of another process: Linux")
def test_a_running_node_whose_files_may_not_grow_says_503_and_goes_on_when_they_may(
    tmp_path: Path,
) -> None:
    (tmp_path / "site.toml").write_text(SITE)
    with NodeProcess(tmp_path) as node:
        node.start()
        assert post(node, ["a"])[0] == 200
        resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))
        acknowledged, refused = ["a"], []
        for number in range(40):
            ids = [f"{number}-{n}" for n in range(2)]
            status, retry_after, told = post(node, ids)
            if status == 200:
                acknowledged += ids
            else:
                refused.append((status, told["title"], bool(told["hint"])))
                assert int(retry_after or 0) >= 1
        assert set(refused) == {(503, "store.disk_failed", True)}
        everything = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(node.pid, resource.RLIMIT_FSIZE, everything)
        assert post(node, ["z"])[0] == 200
        assert node.stop()[0] == 0, node.told
        assert not any("Traceback" in line for line in node.told), node.told
    written = [one.event.id for one in WrittenLog(tmp_path / ".rapport" / "log")["lab"]]
    assert written == [*acknowledged, "z"]
