"""The public API, opened alone on a directory: values and errors of the source's section 2.4."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rapport.communication.api import (
    Collective,
    Communication,
    Delivery,
    DeliveryOptions,
    Failed,
    Identifier,
    Intake,
    Message,
    MessageInformation,
    NextReceiver,
    NoSuchPeer,
    Outcome,
    Peer,
    Question,
    RoutingRule,
    Sent,
    adapter,
    open_communication,
)
from rapport.core.errors import DuplicateName, InvalidInput, RapportError, Unavailable, UnknownName
from rapport.kernel.clock import SystemClock

APP = Identifier("component", "app")
ANA, BEN = Identifier("peer", "ana"), Identifier("peer", "ben")
PEERS = (Peer(name="ana", addresses=("note:1",)), Peer(name="ben", addresses=("note:2",)))


@pytest.fixture
def notes() -> tuple[type[Any], list[Delivery]]:
    """A medium of the application's own, and what it was handed."""
    sent: list[Delivery] = []

    @adapter("note")
    class Notes:
        async def send(self, delivery: Delivery) -> Outcome:
            sent.append(delivery)
            return Sent()

        async def close(self) -> None:
            return

    return Notes, sent


def task(receiver: Identifier | None = ANA, **others: Any) -> Message:
    return Message(type="TASK", subtype="REQUEST", sender=APP, receiver=receiver, **others)


async def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await SystemClock().sleep(10)


def code_of(error: pytest.ExceptionInfo[RapportError]) -> str:
    return error.value.code


def on(directory: Path, work: Callable[[Communication], Awaitable[None]], **options: Any) -> None:
    async def scenario() -> None:
        async with open_communication(directory, **options) as communication:
            await work(communication)

    asyncio.run(scenario())


def test_what_is_sent_reaches_the_medium_and_its_sender_is_notified(tmp_path, notes) -> None:
    kind, sent = notes

    async def work(communication: Communication) -> None:
        heard: list[Message] = []
        await communication.add_notification_callback(heard.append)
        message = await communication.send(task(content="come"))
        await until(lambda: bool(heard))
        assert [(one.peer, one.text, one.message) for one in sent] == [("ana", "come", message)]
        assert (heard[0].subtype, heard[0].refers_to) == ("ACK", message)
        page = await communication.ledger.find(Question(message=message))
        assert [(row.peer, row.state) for row in page.rows] == [("ana", "handed")]

    on(tmp_path, work, peers=PEERS, outputs=[kind])


def test_of_many_messages_all_are_taken_or_none(tmp_path, notes) -> None:
    kind, sent = notes

    async def work(communication: Communication) -> None:
        assert await communication.send_all([]) == []
        with pytest.raises(InvalidInput) as refused:
            await communication.send_all([task(), task(content="x" * 1_000_001)])
        assert code_of(refused) == "message.too_long"
        ids = await communication.send_all([task(ANA), task(BEN)])
        await until(lambda: len(sent) == 2)
        assert {one.message for one in sent} == set(ids)

    on(tmp_path, work, peers=PEERS, outputs=[kind])


def test_a_message_without_a_receiver_comes_back_to_the_callbacks(tmp_path) -> None:
    async def work(communication: Communication) -> None:
        plain: list[Message] = []
        awaited: list[Message] = []

        async def hear(message: Message) -> None:
            awaited.append(message)

        def fail(_message: Message) -> None:
            raise RuntimeError("a callback of somebody else")

        await communication.add_notification_callback(fail)
        first = await communication.add_notification_callback(plain.append)
        await communication.add_notification_callback(hear)
        one = await communication.send(task(None))
        await until(lambda: bool(plain and awaited))
        assert [message.id for message in plain + awaited] == [one, one]
        assert await communication.remove_notification_callback(first) is True
        assert await communication.remove_notification_callback(first) is False
        await communication.send(task(None))
        await until(lambda: len(awaited) == 2)
        assert len(plain) == 1

    on(tmp_path, work)


def test_a_callback_that_takes_its_time_holds_up_neither_messages_nor_others(
    tmp_path, notes
) -> None:
    kind, sent = notes

    async def work(communication: Communication) -> None:
        heard: list[str] = []
        asked, answered = asyncio.Event(), asyncio.Event()

        async def think(_message: Message) -> None:
            asked.set()
            await answered.wait()

        await communication.add_notification_callback(think)
        await communication.add_notification_callback(lambda message: heard.append(message.content))
        await communication.send(task(None, content="one"))
        await asked.wait()
        await communication.send(task(ANA, content="door"))
        await communication.send(task(None, content="two"))
        # Beside them it hears how the message to Ana went, sooner or later.
        await until(lambda: {"one", "two"} <= set(heard) and len(sent) == 1)
        answered.set()

    on(tmp_path, work, peers=PEERS, outputs=[kind])


def test_a_callback_that_is_removed_hears_nothing_more_and_goes_on_there_later(tmp_path) -> None:
    async def work(communication: Communication) -> None:
        heard: list[str] = []
        asked, answered = asyncio.Event(), asyncio.Event()

        async def think(message: Message) -> None:
            heard.append(message.content)
            asked.set()
            await answered.wait()

        await communication.send_all([task(None, content=each) for each in ("one", "two")])
        await communication.add_notification_callback(think, name="app")
        await asked.wait()
        await communication.remove_notification_callback("app")
        answered.set()
        await communication.send(task(None, content="three"))
        again: list[str] = []
        await communication.add_notification_callback(lambda told: again.append(told.content))
        await communication.send(task(None, content="four"))
        await until(lambda: "four" in again)
        assert heard == ["one"]
        await communication.add_notification_callback(
            lambda told: heard.append(told.content), name="app"
        )
        await until(lambda: "four" in heard)
        assert heard == ["one", "two", "three", "four"]

    on(tmp_path, work)


def test_a_callback_that_ends_late_does_not_move_back_who_has_its_name_now(tmp_path) -> None:
    heard: list[str] = []

    async def first(communication: Communication) -> None:
        asked, answered, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def think(_message: Message) -> None:
            asked.set()
            await answered.wait()
            done.set()

        await communication.send_all([task(None, content=each) for each in ("one", "two")])
        await communication.add_notification_callback(think, name="app")
        await asked.wait()
        await communication.remove_notification_callback("app")
        await communication.add_notification_callback(
            lambda message: heard.append(message.content), name="app"
        )
        await until(lambda: heard == ["one", "two"])
        await asyncio.sleep(0.2)  # that it has heard them is durable
        answered.set()
        await done.wait()
        await asyncio.sleep(0.2)

    async def second(communication: Communication) -> None:
        await communication.add_notification_callback(
            lambda message: heard.append(message.content), name="app"
        )
        await communication.send(task(None, content="three"))
        await until(lambda: "three" in heard)

    on(tmp_path, first)
    on(tmp_path, second)
    assert heard == ["one", "two", "three"]


def test_a_named_callback_continues_after_a_restart(tmp_path) -> None:
    heard: list[str] = []

    async def first(communication: Communication) -> None:
        await communication.add_notification_callback(
            lambda message: heard.append(message.content), name="app"
        )
        with pytest.raises(DuplicateName):
            await communication.add_notification_callback(print, name="app")
        await communication.send(task(None, content="one"))
        await until(lambda: heard == ["one"])
        await communication.remove_notification_callback("app")
        await communication.send(task(None, content="two"))

    async def second(communication: Communication) -> None:
        await communication.add_notification_callback(
            lambda message: heard.append(message.content), name="app"
        )
        await until(lambda: "two" in heard)

    on(tmp_path, first)
    on(tmp_path, second)
    assert heard[-1] == "two"


def test_routing_rules_count_when_the_call_returns(tmp_path, notes) -> None:
    kind, sent = notes

    async def work(communication: Communication) -> None:
        rule = RoutingRule(id="copies", type="TASK", to=(BEN,))
        assert await communication.add_routing(rule) == "copies"
        await communication.send(task(ANA))
        await until(lambda: len(sent) == 2)
        assert await communication.remove_routing("copies") == rule
        assert await communication.remove_routing("copies") is None
        await communication.send(task(ANA))
        await until(lambda: len(sent) == 3)
        assert sorted(one.peer for one in sent) == ["ana", "ana", "ben"]

    on(tmp_path, work, peers=PEERS, outputs=[kind])


def test_rules_that_match_everything_or_name_nobody_are_refused(tmp_path) -> None:
    async def work(communication: Communication) -> None:
        with pytest.raises(InvalidInput) as all_empty:
            await communication.add_routing(RoutingRule(to=(ANA,)))
        with pytest.raises(InvalidInput) as for_nobody:
            await communication.add_routing(RoutingRule(type="TASK", to=()))
        assert code_of(all_empty) == "routing.matches_everything"
        assert code_of(for_nobody) == "routing.no_recipient"

    on(tmp_path, work, peers=PEERS)


class Doorbell:
    """A push adapter: publishes what `ring` is given."""

    intake: Intake | None = None

    async def start(self, intake: Intake) -> None:
        self.intake = intake

    async def stop(self) -> None:
        self.intake = None

    async def ring(self, message: Message) -> None:
        assert self.intake is not None
        await self.intake.publish([message])


def test_a_push_adapter_is_started_publishes_and_is_given_back(tmp_path) -> None:
    async def work(communication: Communication) -> None:
        bell, heard = Doorbell(), []
        await communication.add_notification_callback(heard.append)
        assert await communication.add_push_adapter(bell, name="bell") == "bell"
        await bell.ring(Message(type="RING", subtype="", sender=ANA, content="ding"))
        await until(lambda: bool(heard))
        assert heard[0].content == "ding"
        assert await communication.remove_input_adapter("bell") is bell
        assert bell.intake is None
        assert await communication.remove_input_adapter("bell") is None

    on(tmp_path, work, peers=PEERS)


def test_a_push_adapter_that_cannot_start_is_not_added(tmp_path) -> None:
    class Broken(Doorbell):
        async def start(self, intake: Intake) -> None:
            raise OSError("no such door")

    async def work(communication: Communication) -> None:
        with pytest.raises(Unavailable, match="no such door") as refused:
            await communication.add_push_adapter(Broken(), name="bell")
        assert code_of(refused) == "input.cannot_start"
        assert await communication.remove_input_adapter("bell") is None

    on(tmp_path, work)


class Letterbox:
    """A pull adapter: gives what was put in, once."""

    def __init__(self) -> None:
        self.letters: list[Message] = []
        self.pulls = 0

    async def pull(self) -> list[Message]:
        self.pulls += 1
        letters, self.letters = self.letters, []
        return letters


def test_a_pull_adapter_looks_in_its_interval_until_it_was_successful(tmp_path) -> None:
    async def work(communication: Communication) -> None:
        box, heard = Letterbox(), []
        await communication.add_notification_callback(heard.append)
        name = await communication.add_pull_adapter(box, 20, delete_if_successful=True)
        await until(lambda: box.pulls >= 2)
        box.letters.append(Message(type="MAIL", subtype="", sender=ANA, id="l1"))
        await until(lambda: bool(heard))
        assert heard[0].type == "MAIL"
        pulls = box.pulls
        await communication.send(task(None))
        await until(lambda: len(heard) == 2)
        assert box.pulls == pulls
        assert await communication.remove_input_adapter(name) is None

    on(tmp_path, work, peers=PEERS)


def test_a_pull_adapter_looks_when_it_is_asked(tmp_path) -> None:
    async def work(communication: Communication) -> None:
        box, heard = Letterbox(), []
        await communication.add_notification_callback(heard.append)
        name = await communication.add_pull_adapter(box, None, name="box")
        box.letters.append(Message(type="MAIL", subtype="", sender=ANA, id="l1"))
        await communication.request_pull(name)
        await until(lambda: bool(heard))
        with pytest.raises(UnknownName):
            await communication.request_pull("boxes")
        assert await communication.remove_input_adapter(name) is box

    on(tmp_path, work, peers=PEERS)


@pytest.mark.parametrize("interval_ms", [0, -5])
def test_an_interval_has_to_be_positive(tmp_path, interval_ms: int) -> None:
    async def work(communication: Communication) -> None:
        with pytest.raises(InvalidInput) as refused:
            await communication.add_pull_adapter(Letterbox(), interval_ms)
        assert code_of(refused) == "input.bad_interval"

    on(tmp_path, work)


def test_an_output_adapter_needs_a_declaration_and_a_constructor(tmp_path) -> None:
    class Undeclared:
        async def send(self, _delivery: Delivery) -> Outcome:
            return Sent()

        async def close(self) -> None:
            return

    @adapter("broken")
    class Broken(Undeclared):
        def __init__(self) -> None:
            raise RuntimeError("no licence")

    async def work(communication: Communication) -> None:
        with pytest.raises(InvalidInput) as undeclared:
            await communication.register_output_adapter(Undeclared)
        assert code_of(undeclared) == "adapter.not_declared"
        with pytest.raises(InvalidInput) as broken:
            await communication.register_output_adapter(Broken)
        assert code_of(broken) == "adapter.not_made"
        assert "no licence" in broken.value.message

    on(tmp_path, work)


def test_an_output_adapter_comes_and_goes_while_messages_flow(tmp_path, notes) -> None:
    kind, sent = notes

    async def work(communication: Communication) -> None:
        heard: list[Message] = []
        await communication.add_notification_callback(heard.append)
        assert await communication.register_output_adapter(kind) == "note"
        with pytest.raises(DuplicateName):
            await communication.register_output_adapter(kind)
        await communication.people.put_peer("zoe", {"addresses": ["note:3"]}, by="test")
        await communication.send(task(Identifier("peer", "zoe")))
        await until(lambda: bool(heard))
        assert [one.peer for one in sent] == ["zoe"]
        assert await communication.remove_output_adapter("note") is True
        assert await communication.remove_output_adapter("note") is False
        await communication.send(task(Identifier("peer", "zoe")))
        await until(lambda: len(heard) == 2)
        assert heard[1].subtype == "COMERROR"

    on(tmp_path, work)


def test_a_stateful_adapter_has_an_instance_for_each_peer(tmp_path) -> None:
    made: list[str] = []

    @adapter("line", stateful=True)
    class Line:
        def __init__(self, address: str) -> None:
            made.append(address)

        async def send(self, _delivery: Delivery) -> Outcome:
            return Sent()

        async def close(self) -> None:
            return

    async def work(communication: Communication) -> None:
        heard: list[Message] = []
        await communication.add_notification_callback(heard.append)
        await communication.send_all([task(ANA), task(BEN), task(ANA)])
        await until(lambda: len(heard) == 3)
        assert sorted(made) == ["line:1", "line:2"]

    peers = [Peer(name="ana", addresses=("line:1",)), Peer(name="ben", addresses=("line:2",))]
    on(tmp_path, work, peers=peers, outputs=[Line])


def test_what_waited_for_a_medium_of_ones_own_goes_out_after_the_next_opening(tmp_path) -> None:
    sent: list[str] = []

    def medium(outcome: Outcome) -> type[Any]:
        @adapter("note")
        class Notes:
            async def send(self, delivery: Delivery) -> Outcome:
                sent.append(type(outcome).__name__)
                return outcome

            async def close(self) -> None:
                return

        return Notes

    async def first(communication: Communication) -> None:
        await communication.send(task())
        await until(lambda: bool(sent))

    async def second(communication: Communication) -> None:
        await until(lambda: "Sent" in sent)

    on(tmp_path, first, peers=PEERS, outputs=[medium(Failed("down", retry=True))])
    on(tmp_path, second, peers=PEERS, outputs=[medium(Sent())])


def test_messages_can_be_found_and_say_what_they_mean(tmp_path, notes) -> None:
    async def work(communication: Communication) -> None:
        message = await communication.send(task(content="check the pump", conversation="c7"))
        heard: list[Message] = []
        await communication.add_notification_callback(heard.append)
        with pytest.raises(UnknownName) as unknown:
            await communication.info_for_message(type="TASK", subtype="REQUEST")
        assert code_of(unknown) == "message.unknown"
        with pytest.raises(UnknownName) as no_such:
            await communication.info_for_message(id="no-such-id")
        assert code_of(no_such) == "message.unknown"
        with pytest.raises(InvalidInput) as nothing:
            await communication.info_for_message()
        assert code_of(nothing) == "info.nothing_asked"
        with pytest.raises(InvalidInput) as twice:
            await communication.info_for_message(task(), type="TASK")
        assert code_of(twice) == "info.asked_twice"
        told = MessageInformation(text="Something to do.")
        await communication.add_message_info("TASK", "", told)
        better = MessageInformation(text="Something to do at a machine.")
        await communication.add_message_info("TASK", "", better)
        assert await communication.info_for_message(task()) == better
        await communication.send(task(None))
        await until(lambda: bool(heard))
        assert await communication.info_for_message(id=message) == better
        found = [one async for one in communication.create_query(conversation="c7")]
        assert [one.message.id for one in found] == [message]

    on(tmp_path, work, peers=PEERS, outputs=[notes[0]])


def test_a_directory_is_opened_once_at_a_time_and_peers_are_given_once(tmp_path) -> None:
    async def work(_communication: Communication) -> None:
        with pytest.raises(RapportError) as locked:
            async with open_communication(tmp_path):
                pass
        assert code_of(locked) == "store.locked"

    on(tmp_path, work)
    with pytest.raises(InvalidInput) as twice:
        on(tmp_path, work, peers=[*PEERS, PEERS[0]])
    assert code_of(twice) == "peer.given_twice"


def test_people_and_media_of_a_site_file_are_there_too(tmp_path) -> None:
    site = tmp_path / "site.toml"
    (tmp_path / "out").mkdir()
    site.write_text(
        '[peers.ana]\naddresses = ["inbox:"]\n[adapters.folder.folders]\nout = "out"\n'
        '[[routing]]\nid = "copy"\ntype = "TASK"\nto = ["peer:ben"]\n'
    )

    async def work(communication: Communication) -> None:
        heard: list[Message] = []
        await communication.add_notification_callback(heard.append)
        message = await communication.send(task())
        await until(lambda: bool(heard))
        page = await communication.ledger.find(Question(message=message))
        assert {row.peer for row in page.rows} == {"ana", "ben"}
        await communication.people.put_peer("eva", {"addresses": ["folder:out"]}, by="test")
        await communication.send(task(Identifier("peer", "eva"), content="on paper"))
        await until(lambda: len(heard) == 2)
        assert [file.is_file() for file in (tmp_path / "out").iterdir()] == [True]

    on(tmp_path / "data", work, site=site, peers=[Peer(name="ben", addresses=("inbox:",))])


# --- callbacks ---


def test_peers_and_collectives_are_looked_up_by_the_application(tmp_path, notes) -> None:
    kind, sent = notes
    members = ["ada", "bo"]

    def peer(who: Identifier) -> Peer:
        if who.name not in ("ada", "bo", "cy"):
            raise NoSuchPeer(who.name)
        return Peer(name=who.name, addresses=(f"note:{who.name}",))

    async def collective(who: Identifier) -> Collective | None:
        if who.name != "crew":
            return None
        return Collective(name="crew", members=tuple(members), delivery="to-all-members")

    async def work(communication: Communication) -> None:
        heard: list[Message] = []
        await communication.add_notification_callback(heard.append)
        crew = Identifier("collective", "crew")
        await communication.send(task(crew))
        await until(lambda: len(heard) == 1)
        members.append("cy")
        await communication.send(task(crew))
        await until(lambda: len(heard) == 2)
        assert sorted(one.peer for one in sent) == ["ada", "ada", "bo", "bo", "cy"]
        await communication.send(task(Identifier("collective", "nobody")))
        await communication.send(task(Identifier("peer", "nobody")))
        await until(lambda: len(heard) == 4)
        assert [one.subtype for one in heard] == ["ACK", "ACK", "COMERROR", "COMERROR"]

    on(tmp_path, work, outputs=[kind], peer_info=peer, collective_info=collective)


def test_who_could_not_be_asked_is_asked_again_and_nothing_is_lost(tmp_path, notes) -> None:
    kind, sent = notes
    asked = []

    async def peer(who: Identifier) -> Peer:
        asked.append(who)
        if len(asked) == 1:
            raise OSError("the roster is down")
        return Peer(name=who.name, addresses=("note:1",))

    async def work(communication: Communication) -> None:
        await communication.send(task(Identifier("peer", "ada")))
        await until(lambda: bool(sent))
        assert len(asked) >= 2

    on(tmp_path, work, outputs=[kind], peer_info=peer)


def test_while_the_members_of_a_collective_are_unknown_others_are_notified(tmp_path, notes) -> None:
    kind, sent = notes
    is_mended: list[bool] = []

    def collective(who: Identifier) -> Collective:
        if not is_mended:
            raise OSError("the roster is down")
        return Collective(name=who.name, members=("ana",), delivery="to-all-members")

    async def first(communication: Communication) -> None:
        message = await communication.send(task(Identifier("collective", "crew")))
        await communication.send(task(BEN))
        await until(lambda: [one.peer for one in sent] == ["ben"])
        # What ben is told waits for nothing, not even for the line about the crew.
        async with asyncio.timeout(10):
            while communication.ledger.message(message) is None:
                await SystemClock().sleep(10)
                await communication.ledger.refresh()
        happened = await communication.ledger.timeline(message)
        assert ("held", "people.directory_failed") in [(one.state, one.reason) for one in happened]

    async def second(communication: Communication) -> None:
        await until(lambda: [one.peer for one in sent] == ["ben", "ana"])

    on(tmp_path, first, outputs=[kind], peers=PEERS, collective_info=collective)
    is_mended.append(True)
    on(tmp_path, second, outputs=[kind], peers=PEERS, collective_info=collective)


def test_an_escalation_to_whom_nobody_knows_now_waits_and_goes_on(tmp_path, notes) -> None:
    kind, sent = notes
    asked: list[Identifier] = []

    def collective(who: Identifier) -> Collective:
        asked.append(who)
        if len(asked) < 2:
            raise OSError("the roster is down")
        return Collective(name=who.name, members=("ben",))

    async def work(communication: Communication) -> None:
        steps = (NextReceiver("collective:crew"),)
        await communication.send(task(), options=DeliveryOptions(answer_within=50, escalate=steps))
        await until(lambda: len(asked) == 1)
        await communication.send(task())
        await until(lambda: [one.peer for one in sent] == ["ana", "ana"])
        await until(lambda: [one.peer for one in sent] == ["ana", "ana", "ben"])

    on(tmp_path, work, outputs=[kind], peers=PEERS, collective_info=collective)


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_the_application_says_whether_a_password_is_right(tmp_path, kind: str) -> None:
    def check(peer: Identifier, password: str) -> bool:
        if password == "boom":
            raise OSError("the directory service is down")
        return (peer.name, password) == ("ana", "correct horse")

    async def check_awaited(peer: Identifier, password: str) -> bool:
        return check(peer, password)

    def request(password: str) -> Message:
        content = f'{{"password": "{password}"}}'
        return Message(type="AUTH", subtype="REQUEST", sender=ANA, content=content)

    async def work(communication: Communication) -> None:
        found = []
        for password in ("correct horse", "wrong", "boom"):
            (arrived,) = await communication.arrivals.publish(
                [request(password)], adapter="test", answers_back=True
            )
            found.append(arrived.reply)
        assert [reply.subtype for reply in found] == ["REPLY", "FAILED", "ERROR"]
        assert found[0].session_token

    authenticate = check if kind == "function" else check_awaited
    on(tmp_path, work, peers=PEERS, authenticate=authenticate, outputs=[_silent()])


def _silent() -> type[Any]:
    @adapter("note")
    class Notes:
        async def send(self, _delivery: Delivery) -> Outcome:
            return Sent()

        async def close(self) -> None:
            return

    return Notes


def test_an_answer_ends_the_waiting_and_is_reported(tmp_path, notes) -> None:
    kind, sent = notes

    async def work(communication: Communication) -> None:
        bell, heard = Doorbell(), []
        await communication.add_notification_callback(heard.append)
        await communication.add_push_adapter(bell, name="bell", trusted=lambda _message: True)
        message = await communication.send(task(), options=DeliveryOptions(done_when="answered"))
        await until(lambda: bool(sent))
        await bell.ring(
            Message(
                type="TASK",
                subtype="DONE",
                sender=ANA,
                receiver=APP,
                refers_to=message,
                content="it runs again",
            )
        )
        await until(lambda: len(heard) == 2)
        assert {one.content or one.subtype for one in heard} == {"it runs again", "ACK"}

    on(tmp_path, work, peers=PEERS, outputs=[kind])
