"""Tokens that were changed, cut, made up or stolen are refused; only the very same text is read.
[CH-3, CH-15]
"""

from __future__ import annotations

import asyncio
import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.backends.local import open_memory
from rapport.channel.requests.request import Request
from rapport.channel.requests.tokens import TokenSigner, identity_digest
from rapport.core.errors import InvalidInput, NotAllowed, RapportError
from rapport.core.event import Event
from rapport.kernel.clock import ManualClock

pytestmark = pytest.mark.slow


async def two_tokens() -> tuple[str, str, bytes]:
    channels = open_memory(ManualClock(1))
    events = [Event("s", str(n), "t", "", 0, b"{}") for n in range(4)]
    await channels.channel("c").append(events)
    request = Request(query="type = 't'", max_messages=2, handback="mine")
    batch = await channels.source.request("c", request, identity="me")
    secret = channels.records.find("secrets")[0][1]
    await channels.close()
    assert batch.next_token is not None
    return batch.current_token, batch.next_token, secret


FIRST, SECOND, SECRET = asyncio.run(two_tokens())
TOKENS = TokenSigner(SECRET)


def raw_of(token: str) -> bytes:
    return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))


def as_token(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def refusal(token: str, *, channel: str = "c", identity: str = "me") -> str:
    with pytest.raises((InvalidInput, NotAllowed)) as refused:
        TOKENS.read(token, channel=channel, identity=identity)
    assert refused.value.message
    assert FIRST not in refused.value.message
    return refused.value.code


def test_every_flipped_bit_is_refused() -> None:
    for token in (FIRST, SECOND):
        raw = raw_of(token)
        for bit in range(len(raw) * 8):
            changed = bytearray(raw)
            changed[bit // 8] ^= 1 << bit % 8
            assert refusal(as_token(bytes(changed))) in ("token.damaged", "token.forged")


def test_every_flipped_bit_of_the_text_is_refused() -> None:
    for place, character in enumerate(FIRST):
        for bit in range(8):
            changed = chr(ord(character) ^ 1 << bit)
            text = FIRST[:place] + changed + FIRST[place + 1 :]
            assert refusal(text) in ("token.damaged", "token.forged")


def test_every_beginning_and_every_end_alone_is_refused() -> None:
    for place in range(len(FIRST)):
        assert refusal(FIRST[:place]) == "token.damaged"
        assert refusal(FIRST[place + 1 :]) in ("token.damaged", "token.forged")


@given(
    cut=st.integers(1, len(raw_of(FIRST)) - 1),
    other=st.integers(1, len(raw_of(SECOND)) - 1),
)
def test_two_tokens_do_not_make_a_third(cut: int, other: int) -> None:
    made = as_token(raw_of(FIRST)[:cut] + raw_of(SECOND)[other:])
    if made not in (FIRST, SECOND):
        refusal(made)


@given(st.binary(max_size=200).map(as_token) | st.text(max_size=200))
def test_nothing_made_up_is_read(text: str) -> None:
    refusal(text)


@given(
    channel=st.sampled_from(["c", "d", "C", "c ", ""]) | st.text(max_size=5),
    identity=st.sampled_from(["me", "you", "", "ME"]) | st.text(max_size=5),
    secret=st.sampled_from([SECRET, b"other" * 8]),
)
def test_a_token_serves_one_node_one_channel_and_one_identity(
    channel: str, identity: str, secret: bytes
) -> None:
    is_right = (channel, identity, secret) == ("c", "me", SECRET)
    try:
        place = TokenSigner(secret).read(FIRST, channel=channel, identity=identity)
    except RapportError as error:
        assert not is_right
        assert error.code in ("token.forged", "token.other_channel", "token.not_yours")
    else:
        assert is_right
        assert place.identity == identity_digest("me")
