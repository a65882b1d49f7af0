"""FTP against a real server: files stored whole, a folder watched, everything once."""

from __future__ import annotations

import asyncio
import ftplib
import json
import os
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from rapport.channel.backends.local import open_memory
from rapport.communication.adapters import ftp
from rapport.communication.adapters.base import Failed, Sent
from rapport.communication.adapters.folder import FileInputSettings
from rapport.communication.adapters.ftp import (
    FtpAdapter,
    FtpFolder,
    FtpInput,
    FtpInputSettings,
    FtpServer,
    FtpSettings,
)
from rapport.communication.adapters.input_base import AdapterState, dead_letter_inputs
from rapport.communication.adapters.inputs import Inputs
from rapport.core.errors import InvalidInput, NotAllowed, SourceUnavailable
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import SystemClock
from rapport.testing.suites.adapter import AdapterSuite, Medium, make_delivery
from support.servers.certificates import write_certificate
from support.servers.ftp import PASSWORD, USER, LocalFtpServer

MESSAGE = b'{"type":"TASK","subtype":"DONE","sender":"peer:ana","content":"yes"}'


def address_of(server, place, **changes):
    values = {"host": "127.0.0.1", "port": server.port, "user": USER, "password": PASSWORD}
    return FtpServer(**values | {"folder": place.name, "timeout_ms": 10_000} | changes)


class TestFtp(AdapterSuite):
    @pytest.fixture(autouse=True)
    def _server(self, ftp_server):
        self.server = ftp_server
        self.folder = ftp_server.new_folder()

    @asynccontextmanager
    async def open_medium(self):
        settings = FtpSettings(servers={"depot": address_of(self.server, self.folder)})
        medium = Medium(FtpAdapter(settings), "ftp:depot")

        async def received():
            files = [json.loads(path.read_bytes()) for path in self.folder.glob("*.json")]
            return [(file["key"], file["content"]) for file in files]

        async def go_down():
            await asyncio.to_thread(self.server.stop)

        async def come_up():
            await asyncio.to_thread(self.server.start)

        medium.received, medium.go_down, medium.come_up = received, go_down, come_up
        try:
            yield medium
        finally:
            await come_up()


def test_a_stored_file_is_a_message_and_no_half_one_is_left(ftp_server):
    folder = ftp_server.new_folder()
    adapter = FtpAdapter(FtpSettings(servers={"depot": address_of(ftp_server, folder)}))
    outcome = asyncio.run(adapter.send(make_delivery("ftp:depot")))
    assert isinstance(outcome, Sent)
    (path,) = folder.iterdir()
    assert Message.from_json(path.read_bytes()).receiver == Identifier("peer", "ana")


@pytest.mark.parametrize("target", ["", "../x", "other", "127.0.0.1"])
def test_an_address_names_a_declared_server_only(ftp_server, target):
    folder = ftp_server.new_folder()
    adapter = FtpAdapter(FtpSettings(servers={"depot": address_of(ftp_server, folder)}))
    outcome = asyncio.run(adapter.send(make_delivery(f"ftp:{target}")))
    assert outcome == Failed("the site declares no such server", retry=False)


@pytest.mark.slow
def test_a_wrong_password_is_final_and_shown_nowhere(ftp_server):
    folder = ftp_server.new_folder()
    server = address_of(ftp_server, folder, password="hunter2")
    outcome = asyncio.run(
        FtpAdapter(FtpSettings(servers={"d": server})).send(make_delivery("ftp:d"))
    )
    assert isinstance(outcome, Failed)
    assert not outcome.retry
    assert "hunter2" not in outcome.reason + repr(server)


def test_a_folder_that_is_not_there_and_a_name_with_a_line_break_are_refused(ftp_server):
    folder = ftp_server.new_folder()
    missing = address_of(ftp_server, folder, folder="nowhere")
    with pytest.raises(NotAllowed), FtpFolder(missing):
        pass
    with FtpFolder(address_of(ftp_server, folder)) as opened, pytest.raises(SourceUnavailable):
        opened.fetch("x\r\nDELE y", 10)


# --- in ---


def taken(messages):
    return [SimpleNamespace(id=one.id, accepted=True, reason="") for one in messages]


class Watch:
    """A watched folder and a node's durable side of it."""

    def __init__(self, server, *, after="keep", **files):
        self.folder = server.new_folder()
        self.clock = SystemClock()
        self.channels = open_memory(self.clock)
        self.settings = FtpInputSettings(
            server=address_of(server, self.folder),
            files=FileInputSettings(**{"settle_ms": 20} | files),
            after=after,
            most_listed=50,
        )

    def adapter(self):
        return FtpInput(
            self.settings, self.clock, dead_letter_inputs("pictures", self.channels, self.clock)
        )

    async def opened(self):
        adapter = self.adapter()
        await adapter.open(AdapterState("pictures", self.channels.records))
        return adapter

    def put(self, name, content=MESSAGE):
        (self.folder / name).write_bytes(content)

    def names(self):
        return sorted(
            str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()
        )

    async def letters(self):
        stored = await self.channels.channel("dead_letters").read_after(0)
        return [one.event.payload()["code"] for one in stored]


@pytest.mark.parametrize("after", ["keep", "delete", "move"])
def test_new_files_are_taken_once_and_what_becomes_of_them_is_as_declared(ftp_server, after):
    async def scenario():
        watch = Watch(ftp_server, after=after)
        watch.put("a.json")
        adapter = await watch.opened()
        found = await adapter.pull()
        assert [one.content for one in found] == ["yes"]
        assert watch.names() == ["a.json"]
        await adapter.pulled(found, taken(found))
        expected = {"keep": ["a.json"], "delete": [], "move": ["done/a.json"]}
        assert watch.names() == expected[after]
        again = await watch.opened()
        assert await again.pull() == []
        watch.put("b.json")
        assert len(await again.pull()) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("after", ["keep", "move"])
def test_a_file_that_the_server_does_not_give_keeps_nothing_back_and_is_reported_once(
    ftp_server, after
):
    async def scenario():
        watch = Watch(ftp_server, after=after)
        outside = watch.folder / "outside.json"
        outside.symlink_to("/etc/hostname")  # refused: it leads out of what the server shows
        watch.put("a.json")
        adapter = await watch.opened()
        for name in ("b.json", "c.json"):
            found = await adapter.pull()
            assert [one.content for one in found] == ["yes"]
            await adapter.pulled(found, taken(found))
            watch.put(name)
        assert await watch.letters() == ["ftp.refused"]
        outside.unlink()
        outside.write_bytes(MESSAGE)
        assert len(await adapter.pull()) == 2

    asyncio.run(scenario())


def test_many_files_that_the_server_does_not_give_keep_nothing_back(ftp_server):
    """More of them than a look takes, all older than the one that matters."""

    async def scenario():
        watch = Watch(ftp_server, most_files=2)
        for number in range(5):
            refused = watch.folder / f"{number}.json"
            refused.symlink_to("/etc/hostname")
            os.utime(refused, (number, number), follow_symlinks=False)
        watch.put("good.json")
        adapter, found = await watch.opened(), []
        for _ in range(4):
            found += await adapter.pull()
        assert [one.content for one in found] == ["yes"]
        assert await watch.letters() == ["ftp.refused"] * 5

    asyncio.run(scenario())


def test_a_file_at_which_the_connection_breaks_keeps_back_no_others(ftp_server, monkeypatch):
    plain = ftplib.FTP.transfercmd

    def breaking(ftp, command, rest=None):
        if command.startswith("RETR locked"):
            raise ftplib.error_temp("450 somebody uses it")
        return plain(ftp, command, rest)

    async def scenario():
        watch = Watch(ftp_server)
        watch.put("locked.json")
        os.utime(watch.folder / "locked.json", (1, 1))
        watch.put("good.json")
        adapter = await watch.opened()
        with pytest.raises(SourceUnavailable):
            await adapter.pull()
        assert len(await adapter.pull()) == 1
        monkeypatch.undo()
        assert len(await adapter.pull()) == 2

    monkeypatch.setattr(ftplib.FTP, "transfercmd", breaking)
    asyncio.run(scenario())


def test_one_too_fast_goes_before_those_that_came_after_it(ftp_server):
    async def scenario():
        watch = Watch(ftp_server, sender="peer:ana")
        for second, name in enumerate("abc"):
            watch.put(name, name.encode())
            os.utime(watch.folder / name, (second, second))
        adapter = await watch.opened()
        found = await adapter.pull()
        arrivals = taken(found)
        arrivals[1:] = [SimpleNamespace(accepted=False, reason="message.too_fast", why="")] * 2
        await adapter.pulled(found, arrivals)
        watch.put("d", b"d")
        assert [message.content for message in await adapter.pull()] == ["b", "c", "d"]

    asyncio.run(scenario())


@pytest.mark.parametrize("content", [MESSAGE, b"\xff"])
def test_files_that_may_not_be_taken_away_keep_back_no_others_and_are_reported_once(
    ftp_server, monkeypatch, content
):
    def refusing(ftp, source, target):
        raise ftplib.error_perm("550 read only")

    async def scenario():
        watch = Watch(ftp_server, after="move", most_files=2)
        for number in range(5):
            watch.put(f"{number}.json", content)
            os.utime(watch.folder / f"{number}.json", (number, number))
        watch.put("good.json", MESSAGE.replace(b"yes", b"later"))
        adapter, said, failures = await watch.opened(), [], 0
        for _ in range(5):
            try:
                found = await adapter.pull()
                said += [one.content for one in found]
                if found:
                    await adapter.pulled(found, taken(found))
            except NotAllowed:
                failures += 1
        assert said.count("later") == 1
        assert failures == 3
        assert await adapter.pull() == []

    monkeypatch.setattr(ftplib.FTP, "rename", refusing)
    asyncio.run(scenario())


def test_a_slow_server_is_read_piece_by_piece_and_nothing_is_left_out(ftp_server, monkeypatch):
    monkeypatch.setattr(ftp, "_PULL_NS", 0)  # every server is too slow

    async def scenario():
        watch = Watch(ftp_server)
        for name in ("a.json", "b.json", "c.json"):
            watch.put(name)
        adapter, looks = await watch.opened(), 0
        while found := await adapter.pull():
            assert len(found) == 1
            await adapter.pulled(found, taken(found))
            looks += 1
        assert looks == 3

    asyncio.run(scenario())


def test_a_server_that_replaces_no_file_is_made_room_by(ftp_server, monkeypatch):
    plain = ftplib.FTP.rename

    def refusing(ftp, source, target):
        folder, _, name = target.rpartition("/")
        if f"{folder}/{name}" in ftp.nlst(folder) or name in ftp.nlst(folder):
            raise ftplib.error_perm("553 the file exists")
        return plain(ftp, source, target)

    async def scenario():
        watch = Watch(ftp_server, after="move")
        adapter = await watch.opened()
        for content in (MESSAGE, MESSAGE.replace(b"yes", b"later")):
            watch.put("daily.json", content)
            watch.put("other.json", content)
            found = await adapter.pull()
            await adapter.pulled(found, taken(found))
            assert watch.names() == ["done/daily.json", "done/other.json"]
            assert (watch.folder / "done" / "daily.json").read_bytes() == content

    monkeypatch.setattr(ftplib.FTP, "rename", refusing)
    asyncio.run(scenario())


def test_what_was_fetched_before_a_crash_comes_again_with_the_same_id(ftp_server):
    async def scenario():
        watch = Watch(ftp_server)
        watch.put("a.json")
        lost = await (await watch.opened()).pull()
        found = await (await watch.opened()).pull()
        assert [one.id for one in found] == [one.id for one in lost]

    asyncio.run(scenario())


def test_a_changed_file_is_new_again_and_one_that_is_gone_is_forgotten(ftp_server):
    async def scenario():
        watch = Watch(ftp_server)
        watch.put("a.json")
        adapter = await watch.opened()
        found = await adapter.pull()
        await adapter.pulled(found, taken(found))
        os.utime(watch.folder / "a.json", (1_000_000, 1_000_000))
        changed = await adapter.pull()
        assert len(changed) == 1
        assert changed[0].id != found[0].id
        (watch.folder / "a.json").unlink()
        assert await adapter.pull() == []
        assert await AdapterState("pictures", watch.channels.records).keys() == []

    asyncio.run(scenario())


def test_pictures_become_notices_and_bad_files_are_kept_aside(ftp_server):
    async def scenario():
        pictures = Watch(ftp_server, content="notice", sender="peer:ana", refers_to="m1")
        pictures.put("bïld.png", b"\0" * 2_000_000)
        (found,) = await (await pictures.opened()).pull()
        assert json.loads(found.content)["file"] == "bïld.png"
        assert json.loads(found.content)["size"] == 2_000_000
        assert found.refers_to == "m1"
        texts = Watch(ftp_server, after="delete", largest_file=1_000)
        texts.put("huge.txt", b"x" * 5_000)
        texts.put("broken.json", b"{")
        texts.put("good.json")
        adapter = await texts.opened()
        found = await adapter.pull()
        assert [one.content for one in found] == ["yes"]
        await adapter.pulled(found, taken(found))
        assert texts.names() == ["bad/broken.json", "bad/huge.txt"]
        assert sorted(await texts.letters()) == ["message.not_a_message", "message.too_long"]

    asyncio.run(scenario())


def test_unfinished_files_are_passed_over_and_a_full_folder_is_refused(ftp_server):
    async def scenario():
        watch = Watch(ftp_server)
        watch.put("a.json.part")
        watch.put(".hidden")
        (watch.folder / "sub").mkdir()
        adapter = await watch.opened()
        assert await adapter.pull() == []
        for number in range(51):
            watch.put(f"{number}.json")
        with pytest.raises(InvalidInput) as full:
            await adapter.pull()
        assert full.value.code == "ftp.too_many_files"

    asyncio.run(scenario())


def test_a_server_without_mlsd_is_queried_for_each_file(ftp_server, monkeypatch):
    def unknown(*_arguments, **_options):
        raise ftplib.error_perm("500 Command not understood")

    monkeypatch.setattr(ftplib.FTP, "mlsd", unknown)
    folder = ftp_server.new_folder()
    (folder / "a.json").write_bytes(MESSAGE)
    (folder / "bïld.png").write_bytes(b"\0")
    (folder / "sub").mkdir()
    with FtpFolder(address_of(ftp_server, folder)) as opened:
        found = {file.name: file for file in opened.files(10)}
    assert sorted(found) == ["a.json", "bïld.png"]
    assert found["a.json"].size == len(MESSAGE)
    assert len(found["a.json"].changed) >= 14


def test_a_server_that_is_away_is_worth_another_look():
    async def scenario():
        server = FtpServer(host="127.0.0.1", port=1, timeout_ms=500)
        adapter = FtpInput(FtpInputSettings(server=server), SystemClock(), None)
        await adapter.open(AdapterState("x", open_memory(SystemClock()).records))
        with pytest.raises(SourceUnavailable):
            await adapter.pull()

    asyncio.run(scenario())


def test_a_peer_has_until_a_deadline_to_post_a_picture(ftp_server):
    """The source's own example: the look comes when time is over, and then no more."""

    async def scenario():
        watch = Watch(ftp_server, content="notice", sender="peer:ana")
        arrived: asyncio.Queue[Message] = asyncio.Queue()

        async def publish(messages, **_options):
            for message in messages:
                arrived.put_nowait(message)
            return taken(messages)

        inputs = Inputs(publish, watch.channels, watch.channels.records, watch.clock)
        deadline = watch.clock.now_ms() + 300
        await inputs.add_pull(
            watch.adapter(), delete_if_successful=True, deadline=deadline, name="pictures"
        )
        watch.put("picture.png", b"\0\1\2")
        async with asyncio.timeout(20):
            message = await arrived.get()
        assert watch.clock.now_ms() >= deadline
        assert json.loads(message.content)["file"] == "picture.png"
        await inputs.remove("pictures")

    asyncio.run(scenario())


# --- encrypted ---


def test_files_go_encrypted_and_a_server_nobody_vouches_for_is_not_used(tmp_path, monkeypatch):
    certificate = write_certificate(tmp_path)
    server = LocalFtpServer(certificate=certificate)
    try:
        server.start()
        folder = server.new_folder()
        encrypted = address_of(server, folder, tls=True)
        with pytest.raises(SourceUnavailable), FtpFolder(encrypted):
            pass
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with FtpFolder(encrypted) as opened:
            opened.store("a.json", MESSAGE)
            assert [file.name for file in opened.files(10)] == ["a.json"]
            assert opened.fetch("a.json", 1_000) == MESSAGE
            assert opened.fetch("a.json", 10) == MESSAGE[:11]
            opened.move("a.json", "done")
        assert (folder / "done" / "a.json").read_bytes() == MESSAGE
    finally:
        server.remove()
