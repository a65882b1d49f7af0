"""The public API without asyncio: from any thread, and closed cleanly. [CO-15]"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rapport.communication.api import (
    CommunicationSync,
    Delivery,
    DeliveryOptions,
    Identifier,
    Message,
    MessageInformation,
    Outcome,
    Peer,
    Question,
    RoutingRule,
    Sent,
    adapter,
)
from rapport.core.errors import Conflict, InvalidInput, StoreUnavailable, UnknownName

APP, ANA = Identifier("component", "app"), Identifier("peer", "ana")
PEERS = (Peer(name="ana", addresses=("inbox:",)), Peer(name="ben", addresses=("inbox:",)))
DEADLINE_SECONDS = 20


def task(receiver: Identifier | None = ANA, **others: Any) -> Message:
    return Message(type="TASK", subtype="REQUEST", sender=APP, receiver=receiver, **others)


class Heard:
    """Messages that a callback was told, to be waited for from another thread."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._news = threading.Condition()

    def __call__(self, message: Message) -> None:
        with self._news:
            self.messages.append(message)
            self._news.notify_all()

    def wait_for(self, count: int) -> list[Message]:
        with self._news:
            assert self._news.wait_for(lambda: len(self.messages) >= count, DEADLINE_SECONDS)
            return self.messages[:]

    def wait_until_told(self, id: str) -> None:
        """Returns when it was told of this message, whatever it hears before."""
        with self._news:
            assert self._news.wait_for(
                lambda: any(one.id == id for one in self.messages), DEADLINE_SECONDS
            )


def test_every_call_works_without_a_loop(tmp_path: Path) -> None:
    heard = Heard()
    with CommunicationSync(tmp_path, peers=PEERS) as communication:
        callback = communication.add_notification_callback(heard)
        rule = RoutingRule(id="r", type="TASK", to=(Identifier("peer", "ben"),))
        assert communication.add_routing(rule) == "r"
        message = communication.send(task(content="come", conversation="c1"))
        assert heard.wait_for(1)[0].refers_to == message
        assert communication.remove_routing("r") == rule
        assert communication.remove_routing("r") is None
        rows = communication.ledger.find(Question(message=message)).rows
        assert {row.peer for row in rows} == {"ana", "ben"}
        assert communication.ledger.timeline(message)
        assert [one.message.id for one in communication.create_query(conversation="c1")] == [
            message
        ]
        newest = communication.create_query().where(type="TASK").newest_first().page()
        assert [one.message.id for one in newest.messages] == [message]
        told = MessageInformation(text="To do.")
        communication.add_message_info("TASK", "", told)
        assert communication.info_for_message(task()) == told
        with pytest.raises(UnknownName):
            communication.info_for_message(type="NONE")
        assert communication.remove_notification_callback(callback) is True
        assert communication.remove_notification_callback(callback) is False


def test_adapters_are_added_and_removed_from_any_thread(tmp_path: Path) -> None:
    sent = Heard()

    @adapter("note")
    class Notes:
        async def send(self, delivery: Delivery) -> Outcome:
            sent(task(id=delivery.message))
            return Sent()

        async def close(self) -> None:
            return

    class Box:
        async def pull(self) -> list[Message]:
            return []

    class Bell:
        async def start(self, _intake: object) -> None:
            return

        async def stop(self) -> None:
            return

    box, bell = Box(), Bell()
    peers = [Peer(name="ana", addresses=("note:1",))]
    with CommunicationSync(tmp_path, peers=peers) as communication:
        assert communication.register_output_adapter(Notes) == "note"
        message = communication.send(task())
        assert sent.wait_for(1)[0].id == message
        assert communication.remove_output_adapter("note") is True
        assert communication.remove_output_adapter("note") is False
        name = communication.add_pull_adapter(box, 60_000)
        communication.request_pull(name)
        assert communication.remove_input_adapter(name) is box
        assert communication.remove_input_adapter(name) is None
        assert communication.add_push_adapter(bell, name="bell") == "bell"
        assert communication.remove_input_adapter("bell") is bell
        with pytest.raises(InvalidInput):
            communication.add_pull_adapter(box, 0)


def test_many_threads_send_at_once_and_every_message_is_there(tmp_path: Path) -> None:
    heard = Heard()
    with CommunicationSync(tmp_path, peers=PEERS) as communication:
        communication.add_notification_callback(heard)
        with ThreadPoolExecutor(8) as threads:
            ids = list(threads.map(lambda n: communication.send(task(id=f"m{n}")), range(100)))
        assert ids == [f"m{n}" for n in range(100)]
        assert {one.refers_to for one in heard.wait_for(100)} == set(ids)


def test_a_callback_may_block_and_send(tmp_path: Path) -> None:
    heard = Heard()
    with CommunicationSync(tmp_path, peers=PEERS) as communication:

        def answer(message: Message) -> None:
            heard(message)
            if message.content == "ping":
                communication.send(task(None, content="pong"))

        communication.add_notification_callback(answer)
        communication.send(task(None, content="ping"))
        assert [one.content for one in heard.wait_for(2)] == ["ping", "pong"]


def test_a_coroutine_that_would_wait_for_itself_is_refused(tmp_path: Path) -> None:
    told: list[str] = []
    heard = Heard()

    with CommunicationSync(tmp_path, peers=PEERS) as communication:

        async def wrong(message: Message) -> None:
            for call in _calls(communication):
                try:
                    call()
                except Conflict as error:
                    told.append(error.code)
            heard(message)

        communication.add_notification_callback(wrong)
        communication.send(task(None))
        heard.wait_for(1)
    assert told == ["communication.own_thread"] * 2


def _calls(communication: CommunicationSync) -> list[Callable[[], object]]:
    return [lambda: communication.send(task(None)), communication.close]


def test_a_callback_cannot_close_what_called_it(tmp_path: Path) -> None:
    told: list[str] = []
    heard = Heard()
    with CommunicationSync(tmp_path) as communication:

        def wrong(message: Message) -> None:
            try:
                communication.close()
            except Conflict as error:
                told.append(error.code)
            heard(message)

        communication.add_notification_callback(wrong)
        communication.send(task(None))
        heard.wait_for(1)
    assert told == ["communication.own_thread"]


def test_callbacks_that_block_hold_up_no_message_however_many_there_are(tmp_path: Path) -> None:
    heard, go_on = Heard(), threading.Event()

    def block(_message: Message) -> None:
        go_on.wait(DEADLINE_SECONDS)

    with CommunicationSync(tmp_path, peers=PEERS) as communication:
        for _ in range(40):  # more than a loop has threads
            communication.add_notification_callback(block)
        communication.send(task(None))
        communication.add_notification_callback(heard)
        communication.send(task(None, content="still here"))
        assert heard.wait_for(1)
        go_on.set()


def test_after_closing_calls_are_refused_and_the_thread_is_gone(tmp_path: Path) -> None:
    before = threading.active_count()
    communication, heard = CommunicationSync(tmp_path, peers=PEERS), Heard()
    communication.add_notification_callback(heard)
    message = communication.send(task())
    heard.wait_for(1)
    communication.close()
    communication.close()
    assert threading.active_count() <= before
    with pytest.raises(Conflict) as refused:
        communication.send(task())
    assert refused.value.code == "communication.closed"
    with CommunicationSync(tmp_path, peers=PEERS) as again:
        assert [one.message.id for one in again.create_query(type="TASK")] == [message]


def test_what_opening_raises_is_raised_to_who_opens(tmp_path: Path) -> None:
    with CommunicationSync(tmp_path), pytest.raises(StoreUnavailable) as refused:
        CommunicationSync(tmp_path)
    assert refused.value.code == "store.locked"


def test_closing_lets_calls_under_way_end(tmp_path: Path) -> None:
    communication = CommunicationSync(tmp_path, peers=PEERS)
    begun = threading.Barrier(5)

    def send_until_closed(thread: int) -> list[str]:
        sent: list[str] = []
        begun.wait()
        while True:
            try:
                sent.append(communication.send(task(id=f"{thread}-{len(sent)}")))
            except Conflict as error:
                assert error.code == "communication.closed"
                return sent

    with ThreadPoolExecutor(4) as threads:
        running = [threads.submit(send_until_closed, number) for number in range(4)]
        begun.wait()
        communication.send(task(id="x"))
        communication.close()
        sent = {"x", *(message for each in running for message in each.result())}
    with CommunicationSync(tmp_path, peers=PEERS) as again:
        heard = Heard()
        again.add_notification_callback(heard)
        # Handled behind all that was sent before; of those it may hear acknowledgements first.
        heard.wait_until_told(again.send(task(None)))
        found = {one.message.id for one in again.create_query(type="TASK")}
    assert sent <= found


def test_plain_directory_functions_may_call_back(tmp_path: Path) -> None:
    heard = Heard()
    rooms: list[CommunicationSync] = []

    def peer(who: Identifier) -> Peer | None:
        if rooms[0].create_query(sender="peer:" + who.name).page().messages:
            return None
        return Peer(name=who.name, addresses=("inbox:",))

    with CommunicationSync(tmp_path, peer_info=peer) as communication:
        rooms.append(communication)
        communication.add_notification_callback(heard)
        communication.send(task(Identifier("peer", "zoe")))
        assert heard.wait_for(1)[0].subtype == "ACK"


def test_the_former_keyword_of_delivery_options_works_for_a_release_with_a_warning(
    tmp_path: Path,
) -> None:
    with CommunicationSync(tmp_path, peers=PEERS) as communication:
        with pytest.warns(DeprecationWarning, match="options="):
            id = communication.send(task(), wishes=DeliveryOptions(done_when="answered"))
        with pytest.warns(DeprecationWarning, match="options="):
            communication.send_all([task()], wishes=DeliveryOptions())
        assert id
