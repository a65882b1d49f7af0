"""A local folder as a medium: out atomically, in when complete, nothing twice, nothing lost."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.communication.adapters import folder
from rapport.communication.adapters.base import Failed, Sent
from rapport.communication.adapters.folder import (
    FileInputSettings,
    FolderAdapter,
    FolderInput,
    FolderInputSettings,
    FolderSettings,
    file_name,
    read_file,
)
from rapport.communication.arrivals import ArrivalResult
from rapport.core.errors import SourceUnavailable
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import ManualClock, SystemClock
from rapport.testing.suites.adapter import AdapterSuite, Medium, make_delivery

MESSAGE = b'{"type":"TASK","subtype":"DONE","sender":"peer:ana","content":"yes"}'


class TestFolder(AdapterSuite):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path):
        self.directory = tmp_path / "out"
        self.directory.mkdir()

    @asynccontextmanager
    async def open_medium(self):
        settings = FolderSettings(folders={"alarms": str(self.directory)})
        medium = Medium(FolderAdapter(settings), "folder:alarms")

        async def received():
            files = [json.loads(path.read_bytes()) for path in self.directory.glob("*.json")]
            return [(file["key"], file["content"]) for file in files]

        async def go_down():
            self.directory.rename(self.directory.with_name("away"))

        async def come_up():
            self.directory.with_name("away").rename(self.directory)

        medium.received, medium.go_down, medium.come_up = received, go_down, come_up
        yield medium


def test_a_file_is_a_message_that_can_be_read_again_and_carries_the_proof(tmp_path):
    settings = FolderSettings(folders={"alarms": str(tmp_path)})
    adapter = FolderAdapter(settings, lambda message, peer: "t0ken")
    delivery = make_delivery("folder:alarms")
    assert asyncio.run(adapter.send(delivery)) == Sent(file_name(delivery))
    (path,) = tmp_path.iterdir()
    message = Message.from_json(path.read_bytes())
    assert message.content == delivery.text
    assert message.receiver == Identifier("peer", "ana")
    assert json.loads(path.read_bytes())["answer"] == "t0ken"


@given(message=st.text(max_size=50), peer=st.text(max_size=50))
def test_no_name_leads_out_of_the_folder(message, peer):
    name = file_name(make_delivery("folder:alarms", message=message, peer=peer))
    assert Path(name).name == name
    assert name.removesuffix(".json").isalnum()


@pytest.mark.parametrize("target", ["../etc", "nowhere", "", "/tmp"])
def test_an_address_names_a_declared_folder_never_a_path(tmp_path, target):
    adapter = FolderAdapter(FolderSettings(folders={"alarms": str(tmp_path)}))
    outcome = asyncio.run(adapter.send(make_delivery(f"folder:{target}")))
    assert outcome == Failed("the site declares no such folder", retry=False)


def test_a_link_in_the_way_is_not_followed_and_a_long_text_is_not_written(tmp_path):
    adapter = FolderAdapter(FolderSettings(folders={"alarms": str(tmp_path)}, largest_text=100))
    outside = tmp_path.parent / "outside"
    delivery = make_delivery("folder:alarms")
    (tmp_path / file_name(delivery)).symlink_to(outside)
    assert isinstance(asyncio.run(adapter.send(delivery)), Sent)
    assert not outside.exists()
    assert not (tmp_path / file_name(delivery)).is_symlink()
    long = asyncio.run(adapter.send(make_delivery("folder:alarms", text="x" * 101)))
    assert long.reason.startswith("message.too_long")
    assert not long.retry


# --- in ---


def taken(messages):
    return [SimpleNamespace(id=one.id, accepted=True, reason="") for one in messages]


def an_input(directory, **files):
    files = {"settle_ms": 20} | files
    settings = FolderInputSettings(directory=str(directory), files=FileInputSettings(**files))
    return FolderInput(settings, SystemClock())


def test_messages_and_plain_text_are_taken_and_moved_when_they_are_durable(tmp_path):
    async def scenario():
        (tmp_path / "a.json").write_bytes(MESSAGE)
        (tmp_path / "b.txt").write_text("on my way\n")
        source = an_input(tmp_path, sender="peer:ben", type="REPLY", refers_to="m1")
        found = await source.pull()
        assert sorted((one.type, one.sender.name, one.content) for one in found) == [
            ("REPLY", "ben", "on my way"),
            ("TASK", "ana", "yes"),
        ]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.txt"]
        await source.pulled(found, taken(found))
        assert sorted(path.name for path in (tmp_path / "done").iterdir()) == ["a.json", "b.txt"]
        assert await source.pull() == []

    asyncio.run(scenario())


def test_files_read_before_a_crash_are_read_again_with_the_same_ids(tmp_path):
    async def scenario():
        (tmp_path / "a.json").write_bytes(MESSAGE)
        first = await an_input(tmp_path).pull()
        assert [one.id for one in await an_input(tmp_path).pull()] == [one.id for one in first]

    asyncio.run(scenario())


def test_the_same_words_dropped_again_are_another_message(tmp_path):
    async def scenario():
        source = an_input(tmp_path)
        ids = set()
        for number in range(2):
            (tmp_path / "a.json").write_bytes(MESSAGE)
            os.utime(tmp_path / "a.json", ns=(number, number))
            found = await source.pull()
            ids |= {one.id for one in found}
            await source.pulled(found, taken(found))
        assert len(ids) == 2
        assert sorted(path.name for path in (tmp_path / "done").iterdir()) == ["a-2.json", "a.json"]

    asyncio.run(scenario())


def test_a_file_that_is_still_written_waits_until_it_is_complete(tmp_path):
    async def scenario():
        clock = ManualClock()
        settings = FolderInputSettings(directory=str(tmp_path))
        source = FolderInput(settings, clock)
        (tmp_path / "a.json").write_bytes(MESSAGE[:20])
        pulling = asyncio.create_task(source.pull())
        await _until(lambda: clock._sleepers)
        (tmp_path / "a.json").write_bytes(MESSAGE)
        clock.set_ms(10_000)
        assert await pulling == []
        pulling = asyncio.create_task(source.pull())
        await _until(lambda: clock._sleepers)
        clock.set_ms(20_000)
        assert [one.content for one in await pulling] == ["yes"]

    asyncio.run(scenario())


async def _until(condition):
    for _look in range(2_000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise TimeoutError


def test_what_is_no_message_goes_to_bad_with_the_reason_and_harms_nothing_else(tmp_path):
    async def scenario():
        (tmp_path / "broken.json").write_bytes(MESSAGE[:-1])
        (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\xff")
        (tmp_path / "nobody.txt").write_text("hello")
        (tmp_path / "huge.json").write_bytes(b"{" + b" " * 2_000)
        (tmp_path / "good.json").write_bytes(MESSAGE)
        source = an_input(tmp_path, largest_file=1_000)
        found = await source.pull()
        assert [one.content for one in found] == ["yes"]
        bad = tmp_path / "bad"
        assert "message.not_a_message" in (bad / "broken.json.why").read_text()
        assert "neither JSON nor" in (bad / "picture.png.why").read_text()
        assert "input.no_sender" in (bad / "nobody.txt.why").read_text()
        assert "message.too_long" in (bad / "huge.json.why").read_text()
        assert (bad / "broken.json").read_bytes() == MESSAGE[:-1]

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["ö" * 125 + ".txt", "x" * 255, f"a.{'b' * 250}"])
def test_a_name_as_long_as_names_can_be_keeps_nothing_back(tmp_path, name):
    async def scenario():
        source = an_input(tmp_path)
        for count in (1, 2):
            (tmp_path / name).write_bytes(b"no message")
            (tmp_path / "good.json").write_bytes(MESSAGE)
            found = await source.pull()
            assert [one.content for one in found] == ["yes"]
            await source.pulled(found, taken(found))
            why = [one for one in (tmp_path / "bad").iterdir() if one.suffix == ".why"]
            assert len(why) == count
            assert all(one.with_suffix("").read_bytes() == b"no message" for one in why)
        (tmp_path / name).write_bytes(MESSAGE)
        found = await source.pull()
        await source.pulled(found, taken(found))
        assert not (tmp_path / name).exists()

    asyncio.run(scenario())


def test_a_file_that_may_not_be_read_keeps_nothing_back(tmp_path, monkeypatch):
    def forbidding(directory, name, most):
        if name == "private.json":
            raise PermissionError(13, "Permission denied")
        return read_file(directory, name, most)

    async def scenario():
        (tmp_path / "private.json").write_bytes(MESSAGE)
        (tmp_path / "good.json").write_bytes(MESSAGE)
        assert len(await an_input(tmp_path).pull()) == 1
        why = (tmp_path / "bad" / "private.json.why").read_text()
        assert why.startswith("folder.unreadable")

    monkeypatch.setattr(folder, "read_file", forbidding)  # root may read everything
    asyncio.run(scenario())


@pytest.mark.parametrize(("place", "content"), [("bad", b"\xff"), ("done", MESSAGE)])
def test_files_that_cannot_be_moved_keep_back_no_others_and_are_reported_once(
    tmp_path, place, content
):
    """More of them than a look takes, all older than the one that matters."""

    async def looked(source):
        try:
            found = await source.pull()
            await source.pulled(found, taken(found))
        except SourceUnavailable as error:
            assert error.code == "folder.unavailable"
            return "failed"
        return len(found)

    async def scenario():
        (tmp_path / place).symlink_to("nowhere")  # no folder can be made there
        for number in range(5):
            (tmp_path / f"{number}.json").write_bytes(content)
            os.utime(tmp_path / f"{number}.json", ns=(number, number))
        (tmp_path / "good.json").write_bytes(MESSAGE.replace(b"yes", b"later"))
        source, seen = an_input(tmp_path, most_files=2), []
        pull = source.pull

        async def noted():
            found = await pull()
            seen.extend(one.content for one in found)
            return found

        source.pull = noted
        looks = [await looked(source) for _ in range(5)]
        assert "later" in seen
        assert looks[3:] == [0, 0]  # left alone
        assert seen.count("yes") in (0, 5)
        (tmp_path / place).unlink()
        assert await looked(an_input(tmp_path)) in (0, 5, 6)  # a restart begins anew
        assert [path.name for path in tmp_path.iterdir() if path.suffix == ".json"] == []

    asyncio.run(scenario())


def test_a_file_that_the_disk_does_not_give_keeps_back_no_others(tmp_path, monkeypatch):
    def broken(directory, name, most):
        if name.startswith("broken"):
            raise OSError(5, "Input/output error")
        return read_file(directory, name, most)

    async def scenario():
        for number in range(3):
            (tmp_path / f"broken{number}.json").write_bytes(MESSAGE)
            os.utime(tmp_path / f"broken{number}.json", ns=(number, number))
        (tmp_path / "good.json").write_bytes(MESSAGE)
        source = an_input(tmp_path, most_files=2)
        looks = [len(await source.pull()) for _ in range(3)]
        assert sum(looks) >= 1
        monkeypatch.undo()
        assert len(await source.pull()) == 2  # and it is tried again

    monkeypatch.setattr(folder, "read_file", broken)
    asyncio.run(scenario())


def test_a_refused_message_goes_to_bad_and_one_too_fast_stays(tmp_path):
    async def scenario():
        (tmp_path / "a.json").write_bytes(MESSAGE)
        source = an_input(tmp_path)
        found = await source.pull()
        fast = [ArrivalResult(accepted=False, reason="message.too_fast")]
        await source.pulled(found, fast)
        assert (tmp_path / "a.json").exists()
        found = await source.pull()
        await source.pulled(found, [ArrivalResult(accepted=False, reason="no.right")])
        assert (tmp_path / "bad" / "a.json.why").read_text() == "no.right"

    asyncio.run(scenario())


def test_one_too_fast_goes_before_those_that_came_after_it(tmp_path):
    async def scenario():
        for second, name in enumerate(("a", "b", "c")):
            (tmp_path / name).write_text(name)
            os.utime(tmp_path / name, (second, second))
        source = an_input(tmp_path, sender="peer:ana")
        found = await source.pull()
        fast = ArrivalResult(accepted=False, reason="message.too_fast")
        await source.pulled(found, [ArrivalResult(accepted=True), fast, fast])
        (tmp_path / "d").write_text("d")
        assert [message.content for message in await source.pull()] == ["b", "c", "d"]

    asyncio.run(scenario())


def test_links_hidden_and_unfinished_files_are_passed_over(tmp_path):
    async def scenario():
        secret = tmp_path.parent / "secret.txt"
        secret.write_text("secret")
        (tmp_path / "link.txt").symlink_to(secret)
        (tmp_path / ".hidden").write_text("x")
        (tmp_path / "a.part").write_text("x")
        (tmp_path / "sub").mkdir()
        os.mkfifo(tmp_path / "pipe")
        assert await an_input(tmp_path, sender="peer:ana").pull() == []

    asyncio.run(scenario())


def test_a_notice_tells_of_any_file_also_with_a_strange_name(tmp_path):
    async def scenario():
        strange = tmp_path / os.fsdecode(b"pic\xff\n.png")
        strange.write_bytes(b"\0" * 5_000_000)
        source = an_input(tmp_path, content="notice", sender="peer:ana")
        (found,) = await source.pull()
        told = json.loads(found.content)
        assert told["size"] == 5_000_000
        assert len(told["sha256"]) == 64
        found.to_json()
        await source.pulled([found], taken([found]))
        assert await source.pull() == []

    asyncio.run(scenario())


def test_a_folder_that_is_away_is_worth_another_look(tmp_path):
    with pytest.raises(SourceUnavailable):
        asyncio.run(an_input(tmp_path / "nowhere").pull())


@given(raw=st.binary(max_size=200), name=st.text(alphabet="ab.{}", min_size=1, max_size=8))
def test_whatever_lies_there_is_a_message_or_bad(tmp_path_factory, raw, name):
    async def scenario():
        place = tmp_path_factory.mktemp("drop")
        (place / f"x{name}").write_bytes(raw)
        source = an_input(place, sender="peer:ana", settle_ms=1)
        found = await source.pull()
        await source.pulled(found, taken(found))
        left = [path for path in place.iterdir() if path.is_file()]
        assert len(found) + len(list((place / "bad").glob("*.why"))) + len(left) == 1

    asyncio.run(scenario())
