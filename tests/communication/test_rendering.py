"""Texts in the zone and language of who reads them."""

from __future__ import annotations

import asyncio

import pytest

from rapport.communication.actions import Action
from rapport.communication.adapters.base import Sent
from rapport.communication.peers import Peer
from rapport.communication.texts import (
    TextReader,
    fill_template,
    filled_text,
    shown_duration,
    shown_value,
    template_fields,
)
from rapport.core.detection import Detection, NamedValue
from rapport.core.errors import InvalidInput
from rapport.core.message import Identifier
from tests.communication.conftest import NOON, Scripted

END = Detection(
    policy="freezer",
    time=NOON,
    began=NOON - 7_500_000,
    bindings={"F": "f1"},
    causes=(),
    values={"temperature of F": NamedValue(-14.25, "degC"), "name of F": NamedValue("Kühl\n1")},
    holds="temperature of F above -15 degC",
)
TEXT = "{name of F}: {temperature of F}, {why}, since {began}, for {duration}, {humidity of F}"
VIENNA = TextReader("Europe/Vienna", "de")


def test_a_text_names_values_times_and_why():
    assert filled_text(TEXT, END)[0] == (
        "Kühl 1: -14.25 °C, temperature of F above -15 degC, since 2 Mar 2026, 09:55 UTC, "
        "for 2 h 5 min, unknown"
    )


def test_times_numbers_and_words_follow_zone_and_language():
    assert filled_text(TEXT, END, reader=VIENNA)[0] == (
        "Kühl 1: -14,25 °C, temperature of F above -15 degC, since 2. März 2026, 10:55 CET, "
        "for 2 h 5 min, unbekannt"
    )


def test_a_text_for_machines_keeps_one_form_for_everybody():
    template = '{{"t": {temperature of F}, "h": {humidity of F}, "s": {duration}, "at": "{time}"}}'
    text, pieces = filled_text(template, END, reader=VIENNA)
    assert text == '{"t": -14.25, "h": null, "s": 7500, "at": "2026-03-02T12:00:00.000Z"}'
    assert pieces == ()
    assert fill_template("{time}", END) == "2026-03-02T12:00:00.000Z"


def test_the_reason_of_an_end_is_why():
    deleted = Detection(
        policy="p", time=NOON, began=1, bindings={}, causes=(), reason="the policy was deleted"
    )
    assert filled_text("over: {why}", deleted)[0] == "over: the policy was deleted"


@pytest.mark.parametrize(
    "field", ["temperature of F", "mean of a of S in the last 24 h (at least 18 readings)"]
)
def test_a_phrase_is_a_field(field):
    assert template_fields(f"x {{{field}}}") == (field,)


def test_a_form_of_a_value_cannot_be_asked_for():
    with pytest.raises(InvalidInput):
        template_fields("{temperature of F:.2f}")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (NamedValue(1e-4, "m"), "0.0001 m"),
        (NamedValue(1_234_567.0), "1234567"),
        (NamedValue(3.0, "ug/m3"), "3 µg/m³"),
        (NamedValue(True), "yes"),
        (NamedValue("open"), "open"),
    ],
)
def test_values_are_shown_plainly(value, shown):
    assert shown_value(value) == shown


def test_a_duration_below_a_second_is_shown_as_none():
    assert shown_duration(999) == "0 s"


def test_each_receiver_of_one_message_gets_it_in_the_own_zone_and_language(room):
    async def scenario():
        room.adapters["mail"] = Scripted("mail", Sent())
        address = ("mail:x@example.org",)
        room.peers["ana"] = Peer(name="ana", addresses=address, zone="Europe/Vienna", language="de")
        room.peers["ben"] = Peer(name="ben", addresses=address)
        room.actions["raise alarm"] = Action(
            phrase="raise alarm",
            send_to=Identifier("collective", "guards"),
            text="{A} at {time}",
            reach="to-all-members",
        )
        await room.start()
        await room.detect()
        await room.settle()
        texts = {each.peer: each.text for each in room.adapters["mail"].sent}
        assert texts == {
            "ana": "5 at 2. März 2026, 13:00 CET",
            "ben": "5 at 2 Mar 2026, 12:00 UTC",
        }
        (message,) = (await room.ledger()).messages()
        assert message.text == "5 at 2 Mar 2026, 12:00 UTC"

    asyncio.run(scenario())
