"""A seal holds for one message of one session, whole and unchanged."""

from __future__ import annotations

import msgspec
import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from rapport.communication.sessions.seals import (
    FRESH_MS,
    Seal,
    derived_key,
    open_content,
    open_message,
    read_seal,
    seal_content,
    seal_message,
    sealing_key,
    split_sealed,
    write_seal,
)
from rapport.core.message import Identifier, Message

NOW = 1_772_452_800_000
KEY = sealing_key(b"n" * 32, "session", "ana")

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=60)
ways = st.sampled_from(["signed", "encrypted"])
messages = st.builds(
    Message,
    type=texts,
    subtype=texts,
    sender=st.just(Identifier("peer", "ana")),
    receiver=st.none() | st.builds(Identifier, st.just("component"), texts.filter(bool)),
    id=texts,
    conversation=texts,
    content=texts,
    ttl=st.integers(0, 2**40),
    urgent=st.booleans(),
    refers_to=texts,
)


def new_seal(how: str, nonce: bytes = b"n" * 12) -> Seal:
    return Seal(how, "ana", "session", nonce, NOW)


def opened(message: Message, now_ms: int = NOW, key: bytes = KEY, way: str = "from-peer"):
    seal = read_seal(message.session_token)
    return "seal.malformed" if seal is None else open_message(key, message, seal, way, now_ms)


@given(messages, ways, st.binary(min_size=12, max_size=12))
def test_what_was_sealed_is_opened_again(message, how, nonce):
    sealed = seal_message(KEY, message, new_seal(how, nonce), "from-peer")
    assert opened(sealed) == message
    if how == "encrypted" and len(message.content) > 3:
        assert message.content not in sealed.content


@pytest.mark.parametrize("how", ["signed", "encrypted"])
def test_every_flipped_bit_of_what_travels_is_refused(how):
    message = Message(
        type="TASK", subtype="REQUEST", sender=Identifier("peer", "ana"), content="open the gate"
    )
    sealed = seal_message(KEY, message, new_seal(how), "from-peer")
    for field in ("content", "session_token"):
        raw = getattr(sealed, field).encode()
        for bit in range(len(raw) * 8):
            flipped = bytearray(raw)
            flipped[bit // 8] ^= 1 << (bit % 8)
            text = flipped.decode("utf-8", "replace")
            changed = msgspec.structs.replace(sealed, **{field: text})
            assert isinstance(opened(changed), str), (field, bit)


@given(messages, ways, messages)
def test_a_seal_fits_no_other_message(message, how, other):
    sealed = seal_message(KEY, message, new_seal(how), "from-peer")
    for field in ("type", "subtype", "receiver", "id", "conversation", "ttl", "urgent"):
        value = getattr(other, field)
        changed = msgspec.structs.replace(sealed, **{field: value})
        assert isinstance(opened(changed), str) == (value != getattr(message, field))


@given(messages, ways)
def test_another_session_peer_way_or_hour_is_refused(message, how):
    sealed = seal_message(KEY, message, new_seal(how), "from-peer")
    assert opened(sealed, key=sealing_key(b"n" * 32, "other", "ana")) == "seal.wrong"
    assert opened(sealed, key=sealing_key(b"n" * 32, "session", "ben")) == "seal.wrong"
    assert opened(sealed, way="to-peer") == "seal.wrong"
    assert opened(sealed, NOW + FRESH_MS + 1) == "seal.stale"
    assert opened(sealed, NOW - FRESH_MS - 1) == "seal.stale"
    assert opened(sealed, NOW + FRESH_MS) == message


@given(messages)
def test_a_signed_content_cannot_be_passed_off_as_an_encrypted_one(message):
    sealed = seal_message(KEY, message, new_seal("signed"), "from-peer")
    seal = read_seal(sealed.session_token)
    assert seal is not None
    for proof in (seal.proof, b""):
        lying = write_seal(msgspec.structs.replace(seal, how="encrypted", proof=proof))
        assert isinstance(opened(msgspec.structs.replace(sealed, session_token=lying)), str)


@given(st.text())
def test_no_text_is_a_seal_that_opens(text):
    assert read_seal(text) is None
    assert read_seal("rss1." + text) is None


@given(texts, ways, st.dictionaries(texts, texts, max_size=3))
def test_fields_of_any_form_are_covered(content, how, fields):
    travels, text = seal_content(KEY, fields, content, new_seal(how), "to-peer")
    seal = read_seal(text)
    assert seal is not None
    assert open_content(KEY, fields, travels, seal, "to-peer") == content
    assert open_content(KEY, {**fields, "more": "x"}, travels, seal, "to-peer") is None


@given(st.binary(min_size=1, max_size=80), texts)
def test_keys_are_derived_as_the_standard_says(secret, purpose):
    judge = HKDF(algorithm=SHA256(), length=32, salt=None, info=purpose.encode())
    assert derived_key(secret, purpose) == judge.derive(secret)


def test_the_mark_of_an_address_is_taken_off():
    assert split_sealed("mqtt:phones/ana;sealed") == ("mqtt:phones/ana", True)
    assert split_sealed("mqtt:phones/ana") == ("mqtt:phones/ana", False)
