"""Sealing and opening: who holds the key is heard, once and in time; nobody else. [CX-9]"""

from __future__ import annotations

import itertools
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.transport import sealed_datagrams
from rapport.transport.keys import DatagramKeys, make_key
from rapport.transport.sealed_datagrams import (
    HEADER_BYTES,
    OVERHEAD_BYTES,
    Sealer,
    Unsealer,
    UnsealSettings,
    receiver_name,
)

NOW = 1_772_442_000_000
NETWORK = make_key("brokers", "network")
RUN = bytes(range(16))


def member(*keys) -> DatagramKeys:
    return DatagramKeys(keys or [NETWORK])


def pair(**settings) -> tuple[Sealer, Unsealer]:
    return Sealer(member(), os.urandom(16)), Unsealer(member(), UnsealSettings(**settings))


@given(plain=st.binary(max_size=2_000), now=st.integers(0, 2**47))
def test_what_is_sealed_is_opened_as_it_was_with_the_owner_of_the_key(plain, now) -> None:
    seal, unseal = pair()
    datagram = seal.seal(plain, now)
    opened = unseal.open(datagram, now)
    assert opened is not None
    assert opened == (plain, ("brokers", "network", NETWORK))
    assert len(datagram) == len(plain) + OVERHEAD_BYTES
    assert len(plain) < 8 or plain not in datagram


def test_every_changed_bit_is_refused() -> None:
    seal, unseal = pair()
    datagram = seal.seal(b"the door is open", NOW)
    for place, bit in itertools.product(range(len(datagram)), range(8)):
        changed = bytearray(datagram)
        changed[place] ^= 1 << bit
        assert unseal.open(bytes(changed), NOW) is None
    assert unseal.counters.opened == 0
    assert len(unseal) == 0
    assert unseal.open(datagram, NOW) is not None


def test_every_changed_bit_is_refused_from_a_sender_that_was_accepted_before() -> None:
    seal, unseal = pair()
    assert unseal.open(seal.seal(b"hello", NOW), NOW)
    datagram = seal.seal(b"the door is open", NOW)
    for place, bit in itertools.product(range(len(datagram)), range(8)):
        changed = bytearray(datagram)
        changed[place] ^= 1 << bit
        assert unseal.open(bytes(changed), NOW) is None
    assert unseal.open(datagram, NOW) is not None


@given(st.binary(max_size=200))
def test_any_bytes_are_dropped_and_cost_no_memory(noise) -> None:
    _seal, unseal = pair()
    assert unseal.open(noise, NOW) is None
    assert len(unseal) == 0


def test_a_flood_of_forgeries_with_a_known_key_id_costs_no_memory() -> None:
    _seal, unseal = pair()
    for _ in range(2_000):
        forged = sealed_datagrams.MAGIC_AND_VERSION + b"\x00" + bytes.fromhex(NETWORK.id)
        forged += os.urandom(16) + bytes(4) + NOW.to_bytes(8) + os.urandom(40)
        assert unseal.open(forged, NOW) is None
    assert len(unseal) == 0
    assert unseal.counters.forged == 2_000


def test_a_repeated_datagram_is_accepted_once() -> None:
    seal, unseal = pair()
    datagram = seal.seal(b"open the door", NOW)
    assert unseal.open(datagram, NOW) is not None
    assert [unseal.open(datagram, NOW + later) for later in (0, 5, 29_999)] == [None] * 3
    assert unseal.counters.repeated == 3


@given(st.permutations(list(range(40))))
def test_disorder_loses_nothing_and_lets_nothing_through_twice(order) -> None:
    seal, unseal = pair()
    datagrams = [seal.seal(b"%d" % number, NOW) for number in range(40)]
    got = [unseal.open(datagrams[number], NOW) for number in order + order]
    assert [opened and opened[0] for opened in got[:40]] == [b"%d" % one for one in order]
    assert got[40:] == [None] * 40


def test_what_was_sealed_too_long_ago_or_ahead_is_refused() -> None:
    seal, unseal = pair(age_ms=30_000)
    for sealed_ms in (NOW - 30_001, NOW + 30_001, 0, 2**47):
        assert unseal.open(seal.seal(b"old", sealed_ms), NOW) is None
    assert unseal.counters.stale == 4
    for sealed_ms in (NOW - 30_000, NOW + 30_000):
        assert unseal.open(seal.seal(b"in time", sealed_ms), NOW) is not None


def test_a_restarted_receiver_does_not_take_what_was_sealed_before_its_start() -> None:
    seal, unseal = pair()
    captured = seal.seal(b"open the door", NOW)
    assert unseal.open(captured, NOW)
    restarted = Unsealer(member(), since_ms=NOW + 1_000)
    assert restarted.open(captured, NOW + 1_500) is None
    assert restarted.counters.forgotten == 1
    assert restarted.open(seal.seal(b"new", NOW + 1_500), NOW + 1_501) is not None


def test_a_receiver_that_started_with_a_clock_ahead_hears_once_the_clock_is_right() -> None:
    """As a machine whose own clock runs on local time, until a time server is asked."""
    ahead = NOW + 3_600_000
    unseal = Unsealer(member(), since_ms=ahead)
    early = Sealer(member(), os.urandom(16))  # of one whose clock was as wrong, and is heard
    heard = early.seal(b"ahead", ahead + 5)
    assert unseal.open(heard, ahead + 5) is not None
    before, seal = Sealer(member(), os.urandom(16)), Sealer(member(), os.urandom(16))
    captured = before.seal(b"open the door", NOW - 5)
    assert unseal.open(captured, NOW) is None
    assert unseal.open(seal.seal(b"hello", NOW + 1), NOW + 1) is not None
    assert unseal.open(captured, NOW + 2) is None
    assert unseal.open(heard, ahead + 6) is None
    assert unseal.counters.forgotten == 2


def test_a_sender_that_starts_anew_is_accepted_beside_its_former_run() -> None:
    unseal = Unsealer(member())
    for number in range(3):
        assert unseal.open(Sealer(member(), os.urandom(16)).seal(b"%d" % number, NOW), NOW)
    assert len(unseal) == 3


def test_with_too_many_runs_the_quietest_are_forgotten_and_never_taken_twice() -> None:
    unseal = Unsealer(member(), UnsealSettings(runs=8))
    heard, seals = [], []
    for number in range(60):
        seals.append(Sealer(member(), os.urandom(16)))
        datagram = seals[-1].seal(b"%d" % number, NOW + number)
        assert unseal.open(datagram, NOW + number) is not None
        heard.append(datagram)
        assert len(unseal) <= 8
    assert [unseal.open(datagram, NOW + 60) for datagram in heard] == [None] * 60
    assert unseal.open(seals[0].seal(b"back", NOW + 61), NOW + 61) is not None


def test_a_client_that_starts_too_often_harms_nobody_with_another_key(ring) -> None:
    unseal = Unsealer(ring.member(), UnsealSettings(runs=8))
    ben = Sealer(ring.client("ben"), os.urandom(16))
    first = ben.seal(b"one", NOW)
    assert unseal.open(first, NOW)
    for _ in range(50):
        unseal.open(Sealer(ring.client("ann"), os.urandom(16)).seal(b"", NOW + 20_000), NOW)
    assert unseal.open(ben.seal(b"two", NOW), NOW) is not None
    assert unseal.open(Sealer(ring.client("ben"), os.urandom(16)).seal(b"", NOW), NOW) is not None
    assert unseal.open(first, NOW) is None


def test_an_unknown_key_is_not_accepted() -> None:
    stranger = Sealer(member(make_key("brokers", "network")), RUN)
    unseal = Unsealer(member())
    assert unseal.open(stranger.seal(b"hello", NOW), NOW) is None
    assert unseal.counters.unknown_key == 1


def test_an_id_of_ours_without_its_secret_is_forged() -> None:
    from dataclasses import replace

    thief = Sealer(member(replace(NETWORK, secret=bytes(32))), RUN)
    unseal = Unsealer(member())
    assert unseal.open(thief.seal(b"hello", NOW), NOW) is None
    assert unseal.counters.forged == 1


def test_a_client_is_accepted_by_members_and_hears_what_they_seal_with_its_key(ring) -> None:
    client, broker = Sealer(ring.client("ann"), RUN), Sealer(ring.member(), os.urandom(16))
    heard = Unsealer(ring.member(), own=broker).open(client.seal(b"question", NOW), NOW)
    assert heard is not None
    assert heard == (b"question", ("ann", "client", ring.ann))
    at_client = Unsealer(ring.client("ann"), own=client)
    answer = at_client.open(broker.seal(b"answer", NOW, ring.ann), NOW)
    assert answer is not None
    assert answer == (b"answer", ("network", "network", ring.ann))
    assert at_client.open(broker.seal(b"among us", NOW), NOW) is None
    assert Unsealer(ring.client("ben")).open(broker.seal(b"answer", NOW, ring.ann), NOW) is None


def test_a_client_can_neither_speak_as_a_member_nor_hear_its_own_words_as_an_answer(ring) -> None:
    client = Sealer(ring.client("ann"), RUN)
    words = client.seal(b"question", NOW)
    at_client = Unsealer(ring.client("ann"), own=client)
    assert at_client.open(words, NOW) is None
    assert at_client.counters.wrong_side == 1
    # A client that pretends to be a member seals with its own key and the members' side.
    pretending = Sealer(DatagramKeys([ring.network, ring.ann]), RUN)
    broker = Unsealer(ring.member())
    assert broker.open(pretending.seal(b"join me", NOW, ring.ann), NOW) is None
    assert broker.counters.wrong_side == 1


def test_what_a_member_sealed_is_not_accepted_when_thrown_back_at_it() -> None:
    seal = Sealer(member(), RUN)
    unseal = Unsealer(member(), own=seal)
    assert unseal.open(seal.seal(b"ping", NOW), NOW) is None
    assert unseal.counters.wrong_side == 1


def test_a_sender_takes_a_new_run_before_its_counter_repeats(monkeypatch) -> None:
    monkeypatch.setattr(sealed_datagrams, "_LAST_COUNTER", 3)
    seal, unseal = Sealer(member(), RUN), Unsealer(member())
    headers = set()
    for number in range(10):
        datagram = seal.seal(b"%d" % number, NOW)
        headers.add(datagram[: HEADER_BYTES - 8])
        assert unseal.open(datagram, NOW) is not None
    assert len(headers) == 10
    assert len(unseal) == 3
    assert len(seal.runs) == 3


def test_a_run_of_another_length_is_refused() -> None:
    with pytest.raises(InvalidInput):
        Sealer(member(), b"short")


def test_another_process_draws_other_bytes_for_the_same_words() -> None:
    one, other = Sealer(member(), os.urandom(16)), Sealer(member(), os.urandom(16))
    assert one.seal(b"same", NOW)[HEADER_BYTES:] != other.seal(b"same", NOW)[HEADER_BYTES:]
    assert one.seal(b"same", NOW)[HEADER_BYTES:] != one.seal(b"same", NOW)[HEADER_BYTES:]


def test_a_datagram_is_accepted_only_by_the_member_it_is_for() -> None:
    seal, unseal = pair()
    name = receiver_name(("::1", 7411))
    datagram = seal.seal(b"leave", NOW, to=name)
    for other in (receiver_name(("::1", 7412)), receiver_name(("::2", 7411)), None):
        assert unseal.open(datagram, NOW, other) is None
    assert unseal.counters.forged == 3
    opened = unseal.open(datagram, NOW, receiver_name(("0:0:0:0:0:0:0:1", 7411)))
    assert opened is not None
    assert opened[0] == b"leave"


def test_a_datagram_for_all_members_is_accepted_by_each_and_only_once() -> None:
    seal, unseal = pair()
    datagram = seal.seal(b"hello", NOW, to_all=True)
    for at in ("10.0.0.1", "10.0.0.2"):
        _, other = pair()
        assert other.open(datagram, NOW, receiver_name((at, 7411))) is not None
        assert other.open(datagram, NOW, receiver_name((at, 7411))) is None
    as_for_one = datagram[:3] + b"\x00" + datagram[4:]
    assert unseal.open(as_for_one, NOW) is None


def test_a_client_cannot_speak_to_all_members() -> None:
    ana = make_key("ana", "client")
    seal, unseal = Sealer(DatagramKeys([ana]), os.urandom(16)), Unsealer(member(NETWORK, ana))
    assert unseal.open(seal.seal(b"hello", NOW, to_all=True), NOW) is None
    assert unseal.counters.wrong_side == 1
