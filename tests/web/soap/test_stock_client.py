"""A stock SOAP client builds its proxy from our WSDL and works: publish, request, page, take, wait,
end, and faults. [CH-12]
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
import requests
import zeep
from lxml import etree

pytestmark = pytest.mark.slow

Play = Callable[..., None]
Messages = Callable[[Any], list[Any]]


def event(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "type": f"t{number % 2}",
        "source": "lab",
        "id": str(number),
        "message": {"_value_1": f'{{"n": {number}}}', "contentType": "application/json"},
    } | fields


@pytest.mark.parametrize("version", ["", "12"])
def test_events_are_published_and_paged_through_by_tokens(
    play: Play, stock: Any, messages: Messages, version: str
) -> None:
    def steps(url: str) -> None:
        lab = stock(url, "lab", version)
        lab.publish(*[event(number) for number in range(1, 21)])
        batch = lab.request(query="type = 't1' AND data.n > 2", maxNumberOfMessagesToReturn=4)
        found = [one.id for one in messages(batch)]
        pages = 1
        while batch.nextToken:
            batch = lab.request(query=batch.nextToken)
            found += [one.id for one in messages(batch)]
            pages += 1
        assert found == [str(number) for number in range(3, 20, 2)]
        assert pages == 3
        assert (batch.leaseDurationInMinutes, batch.timeToLiveForMessagesInMs) == (10, -1)
        again = lab.request(query=batch.currentToken)
        assert [one.id for one in messages(again)] == found[8:]

    play(steps)


def test_the_fields_of_an_event_come_back(play: Play, stock: Any, messages: Messages) -> None:
    def steps(url: str) -> None:
        lab = stock(url, "lab")
        lab.publish(
            event(
                1,
                namespace="urn:lab",
                timestamp="2026-03-02T09:14:05.210Z",
                subject="room/5",
                message="plain words",
                header=[{"name": "cause", "_value_1": "e0"}],
            )
        )
        (one,) = messages(lab.request(handback="my own"))
        assert (one.namespace, one.type, one.source, one.id) == ("urn:lab", "t1", "lab", "1")
        assert one.timestamp.isoformat() == "2026-03-02T09:14:05.210000+00:00"
        assert (one.message._value_1, one.message.contentType) == ("plain words", "text/plain")
        assert one.handback._value_1 == "my own"
        assert (one.subject, one.position) == ("room/5", 1)
        assert (one.header[0].name, one.header[0]._value_1) == ("cause", "e0")

    play(steps)


def test_messages_of_any_xml_are_kept_and_found(play: Play, stock: Any, messages: Messages) -> None:
    def steps(url: str) -> None:
        lab = stock(url, "lab")
        order = etree.fromstring(
            '<o:order xmlns:o="urn:orders" number="5"><o:item>a</o:item></o:order>'
        )
        lab.publish(order, etree.fromstring("<reading>7</reading>"))
        first, second = messages(lab.request())
        assert etree.QName(first).namespace == "urn:orders"
        assert first.get("number") == "5"
        assert (second.tag, second.text) == ("reading", "7")
        (found,) = messages(lab.request(query="type = 'order'"))
        assert found.tag == first.tag
        (found,) = messages(lab.request(query="headers.namespace = 'urn:orders'"))
        assert found.tag == first.tag

    play(steps)


def test_a_template_is_an_event_with_the_fields_that_must_be_equal(
    play: Play, stock: Any, messages: Messages
) -> None:
    def steps(url: str) -> None:
        lab = stock(url, "lab")
        lab.publish(*[event(number) for number in range(1, 6)])
        found = messages(lab.request(query=lab.template(type="t0")))
        assert [one.id for one in found] == ["2", "4"]

    play(steps)


def test_a_batch_sent_twice_is_stored_once(play: Play, stock: Any, messages: Messages) -> None:
    def steps(url: str) -> None:
        lab = stock(url, "lab")
        anonymous = [{"type": "tick", "source": "lab"}, etree.fromstring("<tick/>")]
        for token in ("A", "A", "B"):
            lab.publish(*anonymous, currentToken=token)
        assert len(messages(lab.request())) == 4
        lab.publish(*anonymous)
        lab.publish(*anonymous)
        assert len(messages(lab.request())) == 8

    play(steps)


def test_taken_messages_are_gone_for_others(play: Play, stock: Any, messages: Messages) -> None:
    def steps(url: str) -> None:
        lab = stock(url, "lab")
        lab.publish(event(1), event(2), event(3))
        seen = lab.request()
        taken = lab.request(query="id = '2'", takeMessages=True)
        assert [one.id for one in messages(taken)] == ["2"]
        again = lab.request(query=seen.currentToken)
        assert again.gone
        assert messages(again) == []
        rest = lab.request(query=again.nextToken)
        assert [one.id for one in messages(rest)] == ["1", "3"]

    play(steps)


def test_a_request_waits_for_its_first_match(play: Play, stock: Any, messages: Messages) -> None:
    def steps(url: str) -> None:
        lab, other = stock(url, "lab"), stock(url, "lab")
        later = threading.Timer(0.3, lambda: other.publish(event(1), event(2)))
        later.start()
        batch = lab.request(query="data.n = 2", timeToWaitForMatchInMs=15_000)
        later.join()
        assert [one.id for one in messages(batch)] == ["2"]

    play(steps)


def test_a_lease_of_zero_ends_the_session(play: Play, stock: Any) -> None:
    def steps(url: str) -> None:
        lab = stock(url, "lab")
        batch = lab.request(suggestedLeaseDurationInMinutes=5)
        assert batch.leaseDurationInMinutes == 5
        ended = lab.request(query=batch.currentToken, suggestedLeaseDurationInMinutes=0)
        assert (ended.leaseDurationInMinutes, ended.nextToken) == (0, None)

    play(steps)


@pytest.mark.parametrize("version", ["", "12"])
def test_faults_carry_code_and_hint(play: Play, stock: Any, version: str) -> None:
    def steps(url: str) -> None:
        lab = stock(url, "lab", version)
        with pytest.raises(zeep.exceptions.Fault) as caught:
            lab.request(query="type = ")
        (detail,) = caught.value.detail
        told = {etree.QName(child).localname: child.text for child in detail}
        assert told["code"].startswith("query.")
        assert told["message"] == caught.value.message
        assert told["hint"]
        with pytest.raises(zeep.exceptions.Fault, match="token"):
            lab.request(query="A" * 60)
        with pytest.raises(zeep.exceptions.Fault, match="only the node itself"):
            stock(url, "events", version).publish(event(1))
        with pytest.raises(zeep.exceptions.Fault, match="no type"):
            lab.publish({"source": "lab"})

    play(steps)


def test_a_bearer_token_is_asked_for_and_the_wsdl_is_open(play: Play, stock: Any) -> None:
    def steps(url: str) -> None:
        stranger = stock(url, "lab")
        with pytest.raises(zeep.exceptions.Fault, match="token"):
            stranger.publish(event(1))
        stock(url, "lab", token="s3cret-token-of-the-node").publish(event(1))

    play(steps, token="s3cret-token-of-the-node")


WEATHER = """
[concepts.station.attributes]
temperature = "number"
[concepts.station.units]
temperature = "degC"
[interpretations.us]
units = { "station.temperature" = "degF" }
[interpretations.lab]
units = { "station.temperature" = "K" }
[sources.weather]
concept = "station"
attribute = "temperature"
interpretation = "lab"
type = "lab station"
"""


def test_a_request_names_an_interpretation_and_its_tokens_stay_in_it(
    play: Play, stock: Any, messages: Messages
) -> None:
    def steps(url: str) -> None:
        raw = stock(url, "raw.weather")
        events = stock(url, "events")
        assert wait_for_readings(url, 4) == 4
        asked = {"query": "data.temperature > 78", "interpretation": "us"}
        batch = events.request(**asked, maxNumberOfMessagesToReturn=2)
        found = messages(batch)
        while batch.nextToken:
            batch = events.request(query=batch.nextToken)
            found += messages(batch)
        said = [json.loads(one.message._value_1) for one in found]
        assert [one["key"] for one in said] == ["s1", "s2", "s3"]
        assert said[0]["temperature"] == pytest.approx(78.53)
        assert {one.type for one in found} == {"us station"}
        (late,) = messages(raw.request(interpretation="us", maxNumberOfMessagesToReturn=1))
        assert json.loads(late.message._value_1)["temperature"] == pytest.approx(76.73)

    def wait_for_readings(url: str, count: int) -> int:
        body = [{"key": f"s{n}", "temperature": 298 + n} for n in range(count)]
        asked = requests.post(f"{url}/sources/weather", json=body, timeout=20)
        assert asked.status_code == 200
        page = f"{url}/channels/events/events?after={count - 1}&wait=20s"
        assert len(requests.get(page, timeout=30).json()["events"]) == 1
        return count

    play(steps, site_text=WEATHER)


def test_an_unknown_interpretation_and_one_beside_a_token_are_faults(
    play: Play, stock: Any, messages: Messages
) -> None:
    def steps(url: str) -> None:
        events = stock(url, "events")
        with pytest.raises(zeep.exceptions.Fault) as caught:
            events.request(interpretation="uss")
        assert "interpretation.unknown" in etree.tostring(caught.value.detail).decode()
        token = events.request(interpretation="us").currentToken
        with pytest.raises(zeep.exceptions.Fault, match="in itself"):
            events.request(query=token, interpretation="lab")

    play(steps, site_text=WEATHER)
