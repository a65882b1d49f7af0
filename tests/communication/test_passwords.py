"""Passwords are kept as argon2id only, and guessing them is slow."""

from __future__ import annotations

import asyncio
import threading

import pytest
from argon2 import extract_parameters
from hypothesis import given
from hypothesis import strategies as st

from rapport.communication.sessions.passwords import (
    OF_ORIGIN,
    OF_PEER,
    FailureCount,
    LoginAttempts,
    Passwords,
    PasswordSettings,
    check_password,
)
from rapport.core.errors import Corrupt, InvalidInput, TooFast, Unavailable
from rapport.core.event import content_id
from rapport.core.message import Identifier
from rapport.store.memory import MemoryRecordStore

CHEAP = PasswordSettings(memory_kib=64, passes=1, lanes=1)
ANA = Identifier("peer", "ana")
HOUR = 3_600_000


def record_of(records: MemoryRecordStore, peer: str) -> str:
    kept = records.get("passwords", content_id("peer", peer))
    assert kept is not None
    return kept.decode().partition("\n")[0]


def test_only_the_right_password_of_the_right_peer_is_right():
    async def scenario():
        passwords = Passwords(MemoryRecordStore(), CHEAP)
        await passwords.set("ana", "correct horse")
        await passwords.set("ben", "battery staple")
        assert await passwords.check(ANA, "correct horse")
        assert not await passwords.check(ANA, "battery staple")
        assert not await passwords.check(ANA, "")
        assert not await passwords.check(ANA, "x" * 5_000)
        assert not await passwords.check(Identifier("peer", "nobody"), "correct horse")
        assert not await passwords.check(Identifier("peer", "\ud800"), "correct horse")
        assert await passwords.remove("ana")
        assert not await passwords.remove("ana")
        assert not await passwords.has("ana")
        assert not await passwords.check(ANA, "correct horse")

    asyncio.run(scenario())


def test_the_record_is_an_argon2id_hash_with_the_stated_parameters():
    async def scenario():
        records = MemoryRecordStore()
        await Passwords(records).set("ana", "correct horse")
        kept = record_of(records, "ana")
        found = extract_parameters(kept)
        assert kept.startswith("$argon2id$")
        assert (found.memory_cost, found.time_cost, found.parallelism) == (65_536, 3, 4)
        assert "correct" not in kept

    asyncio.run(scenario())


def test_a_password_is_hashed_anew_when_the_parameters_have_changed():
    async def scenario():
        records = MemoryRecordStore()
        await Passwords(records, CHEAP).set("ana", "correct horse")
        dearer = Passwords(records, PasswordSettings(memory_kib=128, passes=2, lanes=1))
        assert not await dearer.check(ANA, "wrong horse")
        assert extract_parameters(record_of(records, "ana")).time_cost == 1
        assert await dearer.check(ANA, "correct horse")
        assert extract_parameters(record_of(records, "ana")).time_cost == 2
        assert await dearer.check(ANA, "correct horse")

    asyncio.run(scenario())


@pytest.mark.parametrize("change", ["set", "removed"])
def test_hashing_anew_never_brings_back_a_password_that_was_changed_meanwhile(change):
    """The old one is still being checked when the new one is set."""

    class Slow(MemoryRecordStore):
        checked, changed = threading.Event(), threading.Event()

        def get(self, table, key):
            found = super().get(table, key)
            if not self.checked.is_set():
                self.checked.set()
                self.changed.wait(10)
            return found

    async def scenario():
        records = Slow()
        cheap = Passwords(records, CHEAP)
        records.checked.set()
        await cheap.set("ana", "correct horse")
        dearer = Passwords(records, PasswordSettings(memory_kib=128, passes=2, lanes=1))
        records.checked.clear()
        checking = asyncio.create_task(dearer.check(ANA, "correct horse"))
        await asyncio.to_thread(records.checked.wait, 10)
        if change == "set":
            await dearer.set("ana", "battery staple")
        else:
            await dearer.remove("ana")
        records.changed.set()
        await checking
        assert not await dearer.check(ANA, "correct horse")
        assert await dearer.has("ana") is (change == "set")

    asyncio.run(scenario())


def test_accents_typed_in_either_way_are_the_same_password():
    async def scenario():
        passwords = Passwords(MemoryRecordStore(), CHEAP)
        await passwords.set("ana", "caf\u00e9 au lait")
        assert await passwords.check(ANA, "cafe\u0301 au lait")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("password", "code"),
    [
        ("", "password.bad_length"),
        ("1234567", "password.bad_length"),
        ("x" * 1_025, "password.bad_length"),
        ("ANA-maria", "password.is_the_name"),
        ("\ud800 surrogate", "password.not_text"),
    ],
)
def test_a_password_that_cannot_be_taken_is_refused_without_repeating_it(password, code):
    with pytest.raises(InvalidInput) as refused:
        check_password("ana-maria", password)
    assert refused.value.code == code
    assert not password or password not in str(refused.value)


def test_a_broken_record_is_an_error_and_not_a_wrong_password():
    async def scenario():
        records = MemoryRecordStore()
        records.put("passwords", content_id("peer", "ana"), b"nonsense")
        with pytest.raises(Corrupt) as broken:
            await Passwords(records, CHEAP).check(ANA, "correct horse")
        assert "rapport peers password ana" in broken.value.hint

    asyncio.run(scenario())


def test_a_flood_of_checks_is_refused_instead_of_eating_the_memory():
    async def scenario():
        passwords = Passwords(MemoryRecordStore(), CHEAP)
        checks = [passwords.check(ANA, "guess-guess") for _ in range(100)]
        found = await asyncio.gather(*checks, return_exceptions=True)
        refused = [one for one in found if isinstance(one, Unavailable)]
        assert len(refused) == 100 - 66
        assert await passwords.check(ANA, "guess-guess") is False

    asyncio.run(scenario())


# --- attempts ---


def fail(attempts: LoginAttempts, peer: str, origin: str, now_ms: int) -> int:
    """Seconds to wait, 0 when the attempt was looked at."""
    try:
        attempts.begin(peer, origin, now_ms)
    except TooFast as error:
        return int(error.retry_after_seconds)
    return 0


def test_pauses_double_after_some_failures_and_end():
    attempts, now = LoginAttempts(MemoryRecordStore()), 1_000_000
    assert [fail(attempts, "ana", "", now) for _ in range(6)] == [0, 0, 0, 0, 0, 1]
    assert fail(attempts, "ana", "", now + 1_000) == 0
    assert fail(attempts, "ana", "", now + 1_000) == 2
    assert fail(attempts, "ana", "", now + 3_000) == 0
    assert fail(attempts, "ben", "", now) == 0


def test_tries_within_a_pause_do_not_lengthen_it():
    attempts, now = LoginAttempts(MemoryRecordStore()), 1_000_000
    for _ in range(5):
        attempts.begin("ana", "", now)
    for step in range(11):
        with pytest.raises(TooFast):
            attempts.begin("ana", "", now + step * 90)
    assert fail(attempts, "ana", "", now + 1_000) == 0


def test_pauses_outlive_a_restart():
    records, now = MemoryRecordStore(), 1_000_000
    for _ in range(5):
        LoginAttempts(records).begin("ana", "", now)
    with pytest.raises(TooFast):
        LoginAttempts(records).begin("ana", "", now + 999)


def test_a_right_password_ends_the_peers_failures_but_not_those_of_its_origin():
    attempts, now = LoginAttempts(MemoryRecordStore()), 1_000_000
    for number in range(19):
        attempts.begin(f"peer{number}", "10.0.0.1", now)
    attempts.begin("ana", "10.0.0.1", now)
    attempts.forgive("ana", "10.0.0.1", wholly=True)
    assert fail(attempts, "ana", "10.0.0.1", now) == 0
    assert fail(attempts, "somebody", "10.0.0.1", now) == 1
    assert fail(attempts, "somebody", "10.0.0.2", now) == 0


def test_an_origin_that_tries_everybody_waits_long():
    attempts, now = LoginAttempts(MemoryRecordStore()), 1_000_000
    for number in range(60):
        now += OF_ORIGIN.longest_ms
        attempts.begin(f"peer{number}", "10.0.0.1", now)
    assert fail(attempts, "fresh", "10.0.0.1", now) == OF_ORIGIN.longest_ms // 1_000


def test_old_failures_are_forgotten_and_let_go_of():
    records, day = MemoryRecordStore(), 24 * HOUR
    attempts = LoginAttempts(records)
    for _ in range(5):
        attempts.begin("ana", "", 1_000)
    attempts.forget_old(1_000 + day - 1)
    assert len(records.find("login.attempts")) == 1
    assert fail(attempts, "ana", "", 1_000 + day) == 0
    attempts.forget_old(1_000 + 3 * day)
    assert records.find("login.attempts") == []


@given(
    failures=st.integers(0, 2**40),
    last_ms=st.integers(0, 2**42),
    now_ms=st.integers(0, 2**42),
)
def test_nobody_waits_longer_than_the_longest_pause_whatever_the_clock_does(
    failures, last_ms, now_ms
):
    for rule in (OF_PEER, OF_ORIGIN):
        assert 0 <= FailureCount(failures, last_ms).wait_ms(rule, now_ms) <= rule.longest_ms


def test_after_the_clock_was_set_back_a_pause_is_as_long_as_it_says() -> None:
    """Told to wait a second, who waits a second is looked at: not when the clock is there again."""
    records, now = MemoryRecordStore(), 10_000_000
    for number in range(5):
        LoginAttempts(records).begin("ana", "", now + number)
    before = now - 3_600_000
    with pytest.raises(TooFast) as told:
        LoginAttempts(records).begin("ana", "", before)
    assert told.value.retry_after_seconds == 1
    with pytest.raises(TooFast):
        LoginAttempts(records).begin("ana", "", before + 999)
    LoginAttempts(records).begin("ana", "", before + 1_000)


def test_who_has_a_password_is_known_also_after_a_login_with_an_old_record():
    async def scenario():
        records = MemoryRecordStore()
        passwords = Passwords(records, CHEAP)
        for name in ("zoë", "ana", "o\u2028dd"):
            await passwords.set(name, "correct horse")
        assert await passwords.peers() == ["ana", "o\u2028dd", "zoë"]
        records.put("passwords", content_id("peer", "ana"), record_of(records, "ana").encode())
        assert await passwords.peers() == ["o\u2028dd", "zoë"]
        assert await passwords.check(ANA, "correct horse")
        assert await passwords.peers() == ["ana", "o\u2028dd", "zoë"]

    asyncio.run(scenario())
