"""Messages as bytes: what was written is read, everything else is refused in one way."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.ensemble.gossip.gossip_machine import GossipMachine, Publication
from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.gossip.recipients import PullCounts, RandomRecipients
from rapport.ensemble.gossip.strategies import CounterBased
from rapport.ensemble.protocol import (
    MAX_MESSAGE,
    MAX_TIME,
    Header,
    Headers,
    Part,
    PublishedKnowledge,
    Pull,
    PullParts,
    decode,
    encode,
    values_of,
)
from rapport.ensemble.trace import Recorder
from rapport.kernel.clock import Chance, Now
from rapport.transport.base import Sender

names = st.text(min_size=1, max_size=20)
times = st.integers(0, MAX_TIME)
versions = st.integers(1, MAX_TIME)
addresses = st.none() | st.tuples(st.text("abc.:", min_size=1, max_size=15), st.integers(0, 65_535))
words = st.lists(st.text(max_size=10), max_size=4).map(tuple)
messages = st.one_of(
    st.builds(
        PublishedKnowledge,
        *(names, versions, times, names, words, st.binary(max_size=99), addresses, words),
    ),
    st.builds(
        Headers, st.lists(st.builds(Header, names, times, addresses), max_size=4).map(tuple), names
    ),
    st.builds(Pull, st.lists(st.tuples(names, times), max_size=4).map(tuple), addresses),
    st.builds(
        Part, names, versions, st.just(1), st.integers(2, 9), times.map(lambda n: n % 2**32),
        st.binary(min_size=1, max_size=99),
    ),
    st.builds(PullParts, names, versions, st.lists(st.integers(0, 99)).map(tuple), addresses),
)  # fmt: skip
GOOD = PublishedKnowledge("x", 5, 5, "n", ("Role",), b"\x80")


@given(messages)
def test_what_was_written_is_read(message: Any) -> None:
    assert decode(encode(message)) == message


@given(messages, st.data())
def test_truncated_and_damaged_messages_are_refused_or_something_else_but_never_raise_else(
    message: Any, data: Any
) -> None:
    written = bytearray(encode(message))
    cut = data.draw(st.integers(0, len(written) - 1))
    for damaged in (bytes(written[:cut]), bytes(written[:cut] + b"\xc1" + written[cut + 1 :])):
        try:
            decode(damaged)
        except InvalidInput as error:
            assert error.code == "ensemble.bad_message"


@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused(data: bytes) -> None:
    for foreign in (data, b"\x01" + data):
        try:
            decode(foreign)
        except InvalidInput as error:
            assert error.code == "ensemble.bad_message"


@pytest.mark.parametrize(
    "changed",
    [
        {"component": ""},
        {"component": "x" * 10_000},
        {"version": 0},
        {"version": -5},
        {"version": 2**60},
        {"created_ms": -1},
        {"node": ""},
        {"roles": ("r",) * 1_000},
        {"roles": ("r" * 1_000,)},
        {"groups": ("g",) * 1_000},
        {"body": {"not": "bytes"}},
        {"body": "text"},
        {"address": ("", 5)},
        {"address": ("h", 99_999)},
    ],
    ids=lambda changed: f"{next(iter(changed))}",
)
def test_knowledge_that_cannot_be_is_refused(changed: dict[str, Any]) -> None:
    written = encode(msgspec.structs.replace(GOOD, **changed))
    with pytest.raises(InvalidInput, match="not an ensemble message"):
        decode(written)


@pytest.mark.parametrize(
    "message",
    [
        Headers((Header("x", -1),)),
        Headers((Header("x", 1),) * 5_000),
        Headers((), "n" * 1_000),
        Pull((("", 1),)),
        Pull((("x", 2**60),)),
        Part("x", 1, 5, 5, 1, b"x"),
        Part("x", 1, 0, 2**40, 1, b"x"),
        Part("x", 1, 0, 2, 2**40, b"x"),
        Part("x", 1, 0, 2, 1, b""),
        PullParts("x", 1, (-1,)),
        PullParts("x", 1, (2**40,)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_other_messages_that_cannot_be_are_refused(message: Any) -> None:
    with pytest.raises(InvalidInput, match="not an ensemble message"):
        decode(encode(message))


def test_huge_and_deep_ones_are_refused() -> None:
    with pytest.raises(InvalidInput):
        decode(b"\x01" + bytes(MAX_MESSAGE))
    with pytest.raises(InvalidInput):
        encode(msgspec.structs.replace(GOOD, body=bytes(MAX_MESSAGE)))
    deep = encode(GOOD)[:-2] + b"\x91" * 500_000
    with pytest.raises(InvalidInput):
        decode(deep)
    lists: Any = []
    for _ in range(100):
        lists = [lists]
    with pytest.raises(InvalidInput, match="levels"):
        values_of(msgspec.msgpack.encode({"deep": lists}))
    with pytest.raises(InvalidInput):
        values_of(b"\x81\xa1x" + b"\x91" * 500_000)


@pytest.mark.parametrize(
    "body",
    [b"", b"\xc0", b"\x90", b"\x81\x01\x02", msgspec.msgpack.encode({"x": float("nan")}), None, 5],
    ids=["empty", "nothing", "list", "numbers", "nan", "none", "number"],
)
def test_a_body_that_is_no_knowledge_is_refused(body: Any) -> None:
    with pytest.raises(InvalidInput) as raised:
        values_of(body)
    assert raised.value.code == "ensemble.bad_message"


def test_a_body_gives_its_values() -> None:
    values = {"position": [1.5, 2], "seats": 3, "name": "é", "nested": {"a": [None, True]}}
    assert values_of(msgspec.msgpack.encode(values)) == values


class Two:
    """A source with a small and a large component."""

    def published(self, now: Now) -> list[Publication]:
        return [Publication("x", (), b""), Publication("large", (), bytes(3_000))]


@given(st.lists(messages, max_size=30), st.booleans(), st.booleans(), st.data())
def test_machines_take_whatever_was_decoded(
    said: list[Any], immediate: bool, by_arrival: bool, data: Any
) -> None:
    settings_of_it = GossipSettings(
        header_ms=700,
        pull_ms=900,
        ip=True,
        answers="immediate" if immediate else "next",
        times="received" if by_arrival else "created",
        components=10,
        waiting=3,
        parts_messages=3,
    )
    recipients = RandomRecipients(2, Chance(1), known=[("a", 1), ("b", 2), ("c", 3)])
    machine = GossipMachine(
        "n",
        settings_of_it,
        Chance(1),
        source=Two(),
        strategy=CounterBased(Chance(2)),
        recipients=recipients,
        address=("n", 1),
        askers=PullCounts(),
        trace=Recorder(),
    )
    steady_ms = 0.0
    for message in said:
        steady_ms += data.draw(st.floats(0, 2_000))
        now = Now(data.draw(st.sampled_from([0, 5_000, 1_700_000_000_000])), steady_ms)
        machine.handle(message, Sender(("a", 1)), now)
        machine.tick(now)
        due = machine.next_due_ms()
        assert due is not None
        assert due > steady_ms
        for outgoing in machine.outbox:
            assert decode(encode(outgoing.message)) == outgoing.message
        machine.outbox.clear()
    assert len(machine.buffer.entries) <= 10
