"""Tokens say exactly one thing, and nobody can make or change one. [CH-3, CH-15]"""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.requests.tokens import TokenPlace, TokenSigner, identity_digest, request_secret
from rapport.core.errors import InvalidInput, NotAllowed
from rapport.store.memory import MemoryRecordStore

TOKENS = TokenSigner(b"k" * 32)
PLACE = TokenPlace(
    channel="c",
    identity=identity_digest("me"),
    session=b"12345678",
    kind="sql",
    query="type = 'a'",
    after=10,
    through=20,
    count=3,
    reach=25,
    messages=100,
    time_range_ms=0,
)
TOKEN = TOKENS.write(PLACE)


def read(token: str) -> TokenPlace:
    return TOKENS.read(token, channel="c", identity="me")


@given(st.text(max_size=50), st.integers(0, 2**62), st.integers(0, 10_000), st.binary(max_size=8))
def test_a_token_is_read_as_it_was_written(
    query: str, after: int, count: int, session: bytes
) -> None:
    place = TokenPlace(
        channel="c",
        identity=identity_digest("me"),
        session=session,
        kind="sql",
        query=query,
        after=after,
        through=after + count,
        count=count,
        reach=after + count,
        messages=5,
        time_range_ms=7,
    )
    token = TOKENS.write(place)
    assert read(token) == place
    assert token.replace("-", "").replace("_", "").isalnum()


@pytest.mark.parametrize("length", range(len(TOKEN)))
def test_a_cut_token_is_damaged(length: int) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(TOKEN[:length])
    assert caught.value.code == "token.damaged"
    assert caught.value.hint


@given(st.integers(0, len(TOKEN) - 1), st.sampled_from("AZaz09-_"))
def test_no_character_can_be_changed(place: int, character: str) -> None:
    changed = TOKEN[:place] + character + TOKEN[place + 1 :]
    if changed == TOKEN:
        return
    with pytest.raises((InvalidInput, NotAllowed)) as caught:
        read(changed)
    assert caught.value.code in ("token.damaged", "token.forged")


@given(
    st.text(max_size=200) | st.binary(max_size=80).map(lambda raw: base64.b64encode(raw).decode())
)
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises((InvalidInput, NotAllowed)):
        read(text)


def test_another_nodes_token_is_forged() -> None:
    with pytest.raises(NotAllowed) as caught:
        TokenSigner(b"x" * 32).read(TOKEN, channel="c", identity="me")
    assert caught.value.code == "token.forged"


def test_a_token_is_of_no_use_elsewhere_or_to_others() -> None:
    with pytest.raises(InvalidInput) as elsewhere:
        TOKENS.read(TOKEN, channel="d", identity="me")
    with pytest.raises(NotAllowed) as others:
        TOKENS.read(TOKEN, channel="c", identity="you")
    assert elsewhere.value.code == "token.other_channel"
    assert others.value.code == "token.not_yours"


def test_a_token_of_another_version_is_refused() -> None:
    later = TokenPlace(
        **{name: getattr(PLACE, name) for name in TokenPlace.__struct_fields__} | {"version": 2}
    )
    with pytest.raises(InvalidInput, match="another version"):
        read(TOKENS.write(later))


def test_the_secret_is_made_once() -> None:
    records = MemoryRecordStore()
    assert request_secret(records) == request_secret(records)
    assert request_secret(MemoryRecordStore()) != request_secret(records)


def test_two_nodes_on_one_record_store_that_begin_together_share_the_secret() -> None:
    class Raced(MemoryRecordStore):
        """Another node makes its secret right after this one found none."""

        other = b""

        def get(self, table: str, key: str) -> bytes | None:
            found = super().get(table, key)
            if found is None and not self.other:
                self.other = b"a"
                self.other = request_secret(self)
            return found

    records = Raced()
    assert request_secret(records) == records.other == request_secret(records)
