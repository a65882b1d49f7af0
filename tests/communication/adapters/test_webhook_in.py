"""Webhooks in: what a body says, and who may say it."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.push import signed_headers, timed_signature
from rapport.communication.adapters.webhook import (
    FORM_TYPE,
    MOST_MESSAGES,
    WebhookInput,
    WebhookInputSettings,
    messages_of_body,
    messages_of_events,
)
from rapport.communication.arrival_checks import RecentEntries
from rapport.communication.arrivals import ArrivalResult
from rapport.core.errors import InvalidInput, NotAuthenticated, RapportError, TooLarge, Unavailable
from rapport.core.event import Event, make_event
from rapport.core.message import Identifier, Message

NOW = 1_772_452_800_000
SECRET = "a-secret-of-some-length"
JSON = "application/json"
SAID = {"type": "REPLY", "subtype": "TEXT", "sender": "peer:ana", "content": "on my way"}
PLAIN = WebhookInputSettings()
SMS = WebhookInputSettings(
    fields={"sender": "From", "content": "Body", "conversation": "meta.thread"},
    defaults={"type": "REPLY", "subtype": "SMS"},
    senders={"+43660": Identifier("peer", "ana")},
)


class Way:
    """The way into the engine."""

    name = "gateway"

    def __init__(self) -> None:
        self.published: list[Message] = []

    async def publish(self, messages):
        self.published += messages
        return []


def lower(headers: dict[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def read(body: object, settings: WebhookInputSettings = PLAIN, kind: str = JSON):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return messages_of_body(raw, kind, settings)


def test_json_of_one_message_or_of_several():
    (one,) = read(SAID)
    assert (str(one.sender), one.content) == ("peer:ana", "on my way")
    assert len(read([SAID, SAID])) == 2


def test_a_form_is_mapped_by_the_fields_that_the_site_names():
    form = urlencode({"From": "+43660", "Body": "ja ☃", "Other": "1"}).encode()
    (message,) = read(form, SMS, f"{FORM_TYPE}; charset=utf-8")
    assert message == Message(
        type="REPLY", subtype="SMS", sender=Identifier("peer", "ana"), content="ja ☃"
    )


def test_json_that_is_no_message_is_mapped_too_and_reaches_into_objects():
    (message,) = read({"From": "+43660", "Body": "ja", "meta": {"thread": 7}}, SMS)
    assert (message.conversation, message.content) == ("7", "ja")


@pytest.mark.parametrize(
    "body", [{"Body": "x"}, {"From": "", "Body": "x"}, {"From": ["+43660"]}, 7]
)
def test_a_body_without_a_sender_says_which_field_is_missing(body):
    with pytest.raises(InvalidInput) as raised:
        read(body, SMS)
    assert raised.value.code == "input.missing_field"
    assert "'From'" in raised.value.hint


def test_a_sender_that_the_site_does_not_name_is_refused():
    with pytest.raises(InvalidInput) as raised:
        read({"From": "+1", "Body": "x"}, SMS)
    assert raised.value.code == "input.unknown_sender"
    named = WebhookInputSettings(senders={"+43660": Identifier("peer", "ana")})
    assert str(read(SAID | {"sender": "peer:+43660"}, named)[0].sender) == "peer:ana"
    assert str(read(SAID, named)[0].sender) == "peer:ana"
    with pytest.raises(InvalidInput):
        read(SAID | {"sender": "peer:eve"}, named)


def test_messages_in_events_are_named_after_them():
    event = make_event(source="crm", id="4711", type="x", time=NOW, data=SAID)
    (first,) = messages_of_events([event], WebhookInputSettings(), "gateway")
    (again,) = messages_of_events([event], WebhookInputSettings(), "gateway")
    (other,) = messages_of_events([event], WebhookInputSettings(), "other")
    assert first.id == again.id != other.id


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff", b"[1]", b"[" * 100_000])
def test_what_is_no_message_is_refused(body):
    with pytest.raises(InvalidInput):
        read(body)


def test_too_many_messages_or_fields_are_refused():
    with pytest.raises(TooLarge):
        read([SAID] * (MOST_MESSAGES + 1))
    with pytest.raises(InvalidInput):
        read(b"&".join(b"a=1" for _ in range(1_000)), SMS, FORM_TYPE)


@given(st.binary(max_size=200), st.sampled_from([JSON, FORM_TYPE, "", "text/plain", "multipart/x"]))
def test_any_body_is_messages_or_a_fault_with_a_code(body, kind):
    for known in (WebhookInputSettings(), SMS):
        try:
            assert read(body, known, kind)
        except RapportError as error:
            assert error.code


# --- proof ---


def door(**changes) -> WebhookInput:
    return WebhookInput(WebhookInputSettings(secret=SECRET, **changes))


def test_a_signature_over_time_and_body_is_proof():
    body = json.dumps(SAID).encode()
    headers = lower(signed_headers(SECRET, body, NOW))
    assert door().is_signed(headers, body, NOW + 299_000)


def test_our_own_webhooks_prove_themselves_to_an_input():
    timed = timed_signature(SECRET, b"{}", NOW)
    headers = {"x-rapport-time": str(NOW), "x-rapport-timed-signature": timed}
    assert door().is_signed(headers | {"x-rapport-signature": "sha256=of-the-body"}, b"{}", NOW)


@pytest.mark.parametrize(
    ("time", "secret", "body"),
    [
        (NOW - 301_000, SECRET, b"{}"),  # too old
        (NOW + 301_000, SECRET, b"{}"),  # from the future
        (NOW, "another-secret-altogether", b"{}"),
        (NOW, SECRET, b"{ }"),  # changed on the way
    ],
)
def test_a_wrong_or_old_signature_is_refused(time, secret, body):
    headers = lower(signed_headers(secret, b"{}", time))
    with pytest.raises(NotAuthenticated):
        door().is_signed(headers, body, NOW)


@given(st.text(max_size=60), st.text(max_size=60))
def test_no_guessed_signature_passes(given_signature, sent_at):
    headers = {"x-rapport-signature": given_signature, "x-rapport-time": sent_at}
    try:
        assert not door().is_signed(headers, b"{}", NOW)
    except NotAuthenticated as error:
        assert error.code == "input.bad_signature"


def test_without_a_signature_or_a_secret_it_is_just_not_signed():
    assert not door().is_signed({}, b"{}", NOW)
    headers = lower(signed_headers(SECRET, b"{}", NOW))
    assert not WebhookInput(WebhookInputSettings()).is_signed(headers, b"{}", NOW)


# --- taking ---


def test_the_same_request_sent_again_gives_the_same_ids():
    async def scenario():
        way, input_door, body = Way(), door(), json.dumps([SAID, SAID]).encode()
        await input_door.start(way)
        headers = lower(signed_headers(SECRET, body, NOW)) | {"content-type": JSON}
        await input_door.take(headers, body)
        await input_door.take(headers, body)
        ids = [message.id for message in way.published]
        assert ids[:2] == ids[2:]
        assert len(set(ids)) == 2

    asyncio.run(scenario())


class Taking(Way):
    """Takes all but what it is told to refuse."""

    refuses = False

    async def publish(self, messages):
        if not self.refuses:
            await super().publish(messages)
        return [ArrivalResult(id=one.id, accepted=not self.refuses) for one in messages]


def test_a_copy_of_a_signed_request_has_no_effect_under_another_key():
    """Headers beside time and signature are not signed: whoever saw the request can change them."""

    async def scenario():
        way, input_door, body = Taking(), door(), json.dumps(SAID).encode()
        await input_door.start(way)
        headers = lower(signed_headers(SECRET, body, NOW)) | {"content-type": JSON}
        way.refuses = True
        await input_door.take(headers | {"idempotency-key": "k0"}, body)
        way.refuses = False
        first = await input_door.take(headers | {"idempotency-key": "k1"}, body)
        event = Event("elsewhere", "e2", "t", "", NOW, body, {})
        for changed in ({"idempotency-key": "k2"}, {}):
            assert await input_door.take(headers | changed, body) == first
            assert await input_door.take(headers | changed, body, [event]) == first
        assert len(way.published) == 1
        later = lower(signed_headers(SECRET, body, NOW + 1)) | {"content-type": JSON}
        await input_door.take(later | {"idempotency-key": "k1"}, body)
        assert way.published[0].id == way.published[1].id, "tried again by who has the secret"

    asyncio.run(scenario())


def test_requests_that_are_too_old_to_be_taken_are_not_remembered():
    seen, taken = RecentEntries(600_000, 20_000), [ArrivalResult(id="m", accepted=True)]
    for minute in range(60):
        seen.note(f"s{minute}", NOW + minute * 60_000, taken)
    assert seen.get("s59") is taken
    assert seen.get("s49") is taken
    assert seen.get("s48") is None


def test_an_idempotency_key_names_messages_apart_for_each_caller():
    async def scenario():
        way, input_door, body = Way(), door(), json.dumps(SAID).encode()
        await input_door.start(way)
        headers = {"content-type": JSON, "idempotency-key": "k1"}
        for caller in ("a", "a", "b"):
            await input_door.take(headers, body, caller=caller)
        await input_door.take({"content-type": JSON}, body)
        first, again, other, nameless = [message.id for message in way.published]
        assert first == again != other
        assert nameless == ""  # the engine names it

    asyncio.run(scenario())


def test_an_input_that_is_not_running_says_so_and_large_bodies_are_refused():
    with pytest.raises(Unavailable):
        asyncio.run(door().take({}, b"{}"))
    with pytest.raises(TooLarge):
        door(most_bytes=10).check_size(b"x" * 11)


def test_the_secret_is_never_shown():
    assert SECRET not in repr(door().settings)
