"""Only who was sent the message can answer it."""

from __future__ import annotations

import asyncio
import re
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.backends.local import open_memory
from rapport.communication.answers import AnswerData, record_answer
from rapport.communication.links import (
    answer_link,
    answer_token,
    is_answer_token,
    name_from_link,
    name_in_link,
)
from rapport.core.errors import InvalidInput, NotAllowed
from rapport.kernel.clock import ManualClock

SECRET = b"k" * 32


@given(message=st.text(), peer=st.text(), other=st.text())
def test_a_token_fits_its_message_and_peer_only(message, peer, other):
    token = answer_token(SECRET, message, peer)
    assert is_answer_token(SECRET, message, peer, token)
    assert is_answer_token(SECRET, message, other, token) == (other == peer)
    assert is_answer_token(SECRET, other, peer, token) == (other == message)
    assert not is_answer_token(b"x" * 32, message, peer, token)


@given(st.text())
def test_no_guess_is_a_token(guess):
    assert not is_answer_token(SECRET, "m", "ana", guess)


def test_moving_letters_between_message_and_peer_gives_another_token():
    assert answer_token(SECRET, "ab", "c") != answer_token(SECRET, "a", "bc")


@given(st.text(max_size=40) | st.sampled_from(["..", ".", "", "~", "~x", "a/b", "%2F", "m 1"]))
def test_any_name_is_one_piece_of_a_link_and_comes_back(name):
    piece = name_in_link(name)
    assert re.fullmatch(r"[\w%.~-]+", piece, re.ASCII)
    assert piece not in (".", "..")
    assert name_from_link(unquote(piece)) == name


@given(st.text(max_size=20))
def test_whatever_stands_in_a_link_is_read_as_some_name(piece):
    assert isinstance(name_from_link(piece), str)


def test_usual_names_stand_in_a_link_as_they_are():
    link = answer_link("http://node/", SECRET, "0198-ab", "ana lee")
    assert link.startswith("http://node/answer/0198-ab/ana%20lee/")


def test_a_forged_or_endless_answer_is_refused_and_leaves_nothing():
    async def scenario():
        channels = open_memory(ManualClock(1))
        forged = AnswerData(message="m", peer="ana", text="x", token="guess")
        with pytest.raises(NotAllowed):
            await record_answer(channels, SECRET, forged, now_ms=1)
        token = answer_token(SECRET, "m", "ana")
        endless = AnswerData(message="m", peer="ana", text="x" * 3_000, token=token)
        with pytest.raises(InvalidInput):
            await record_answer(channels, SECRET, endless, now_ms=1)
        assert channels.channel("control").last_position() == 0

    asyncio.run(scenario())


def test_the_same_click_twice_in_one_moment_is_one_answer():
    async def scenario():
        channels = open_memory(ManualClock(1))
        token = answer_token(SECRET, "m", "ana")
        data = AnswerData(message="m", peer="ana", text="yes", token=token)
        first = await record_answer(channels, SECRET, data, now_ms=5)
        assert await record_answer(channels, SECRET, data, now_ms=5) == first
        assert channels.channel("control").last_position() == 1

    asyncio.run(scenario())


def test_a_recorded_answer_says_that_it_was_proven_without_its_token():
    async def scenario():
        channels = open_memory(ManualClock(1))
        token = answer_token(SECRET, "m", "ana")
        data = AnswerData(message="m", peer="ana", text="yes", token=token)
        await record_answer(channels, SECRET, data, now_ms=5)
        [stored] = await channels.channel("control").read_after(0)
        assert stored.event.headers["proof"] == "answer"
        assert token.encode() not in stored.event.data

    asyncio.run(scenario())
