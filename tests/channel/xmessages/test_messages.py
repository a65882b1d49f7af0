from __future__ import annotations

import json
import string
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.requests.request import Batch
from rapport.channel.xmessages.envelope import SOAP_11, XMESSAGES, write_envelope, write_node
from rapport.channel.xmessages.messages import (
    EventDefaults,
    read_message,
    read_messages,
    read_request,
    write_batch,
    write_event,
)
from rapport.core.errors import InvalidInput
from rapport.core.event import Event, StoredEvent
from rapport.core.xml import XmlNode, parse_xml

UNNAMED = EventDefaults("somebody", "unnamed", 7)
PRINTABLE = st.characters(exclude_categories=["C", "Z"], include_characters=" ")
NAMES = st.text(PRINTABLE, min_size=1, max_size=20)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def xml(inner: str) -> XmlNode:
    return parse_xml(f'<x:root xmlns:x="{XMESSAGES}">{inner}</x:root>').children[0]


@st.composite
def events(draw: st.DrawFn) -> Event:
    headers = draw(st.dictionaries(st.text(string.ascii_lowercase, min_size=1) | TEXTS, TEXTS))
    for name in draw(st.sets(st.sampled_from(["namespace", "handback"]))):
        headers[name] = draw(TEXTS)
    headers.pop("datacontenttype", None)
    data = json.dumps(draw(JSON_VALUES), ensure_ascii=draw(st.booleans())).encode()
    if draw(st.booleans()):
        headers["datacontenttype"] = draw(
            st.sampled_from(["text/plain", "text/csv; charset=utf-8", "application/json"])
        )
        data = json.dumps(draw(TEXTS), ensure_ascii=draw(st.booleans())).encode()
    return Event(
        source=draw(NAMES),
        id=draw(NAMES),
        type=draw(NAMES),
        subject=draw(NAMES | st.just("")),
        time=draw(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 2**42)),
        data=data,
        headers=headers,
    )


@given(events())
def test_an_event_comes_back_from_xml_as_it_was(event: Event) -> None:
    assert read_message(xml(write_event(event)), UNNAMED) == event


@pytest.mark.slow
@given(events(), st.integers(1, 2**63), st.integers(0, 2**62))
def test_position_and_arrival_are_reported_and_never_taken_over(
    event: Event, position: int, received: int
) -> None:
    node = xml(write_event(event, position=position, received=received))
    place = node.child("position")
    assert place is not None
    assert place.text == str(position)
    assert read_message(node, UNNAMED) == event


@pytest.mark.parametrize(
    ("inner", "data", "headers"),
    [
        ("", b"null", {}),
        ("<x:message>hello</x:message>", b'"hello"', {"datacontenttype": "text/plain"}),
        ('<x:message contentType="application/json">{"n": 1}</x:message>', b'{"n": 1}', {}),
        (
            '<x:message contentType="text/xml">&lt;a/&gt;</x:message>',
            b'"<a/>"',
            {"datacontenttype": "text/xml"},
        ),
        (
            '<x:message encoding="base64">AAE=</x:message>',
            b'"\\u0000\\u0001"',
            {"datacontenttype": "text/plain"},
        ),
        ("<x:namespace>urn:n</x:namespace>", b"null", {"namespace": "urn:n"}),
        ("<x:handback>h</x:handback>", b"null", {"handback": "h"}),
        ('<x:header name="a b">c</x:header>', b"null", {"a b": "c"}),
    ],
)
def test_fields_of_an_xevent_land_in_the_envelope(
    inner: str, data: bytes, headers: dict[str, str]
) -> None:
    event = read_message(xml(f"<x:XEvent><x:type>t</x:type>{inner}</x:XEvent>"), UNNAMED)
    assert (event.source, event.id, event.type, event.time) == ("somebody", "unnamed", "t", 7)
    assert (event.data, event.headers) == (data, headers)


@pytest.mark.parametrize(
    ("inner", "code"),
    [
        ("<x:XEvent/>", "event.missing_field"),
        ("<x:XEvent><x:type>t</x:type><x:type>t</x:type></x:XEvent>", "soap.bad_field"),
        ("<x:XEvent><x:type>t</x:type><x:sort>t</x:sort></x:XEvent>", "soap.bad_field"),
        ("<x:XEvent><type>t</type></x:XEvent>", "soap.bad_field"),
        ("<x:XEvent>words<x:type>t</x:type></x:XEvent>", "soap.bad_field"),
        ("<x:XEvent><x:type>t</x:type><x:message><a/></x:message></x:XEvent>", "soap.bad_field"),
        (
            '<x:XEvent><x:type>t</x:type><x:message contentType="application/json">{'
            "</x:message></x:XEvent>",
            "event.bad_data",
        ),
        (
            '<x:XEvent><x:type>t</x:type><x:message contentType="text/xml">&lt;a&gt;'
            "</x:message></x:XEvent>",
            "xml.not_well_formed",
        ),
        (
            '<x:XEvent><x:type>t</x:type><x:message encoding="base64">/w==</x:message></x:XEvent>',
            "soap.bad_field",
        ),
        (
            '<x:XEvent><x:type>t</x:type><x:message encoding="zip">a</x:message></x:XEvent>',
            "soap.bad_field",
        ),
        ("<x:XEvent><x:type>t</x:type><x:header>a</x:header></x:XEvent>", "soap.bad_field"),
        (
            "<x:XEvent><x:type>t</x:type><x:timestamp>soon</x:timestamp></x:XEvent>",
            "time.bad_time",
        ),
        ("<x:handleMessages/>", "soap.bad_field"),
    ],
)
def test_a_wrong_message_is_refused_with_its_place(inner: str, code: str) -> None:
    batch = f"<x:batch><x:messages><ok/>{inner}</x:messages></x:batch>"
    with pytest.raises(InvalidInput, match=r"^message 1: ") as caught:
        read_messages(xml(batch), sender="s", now_ms=0, new_id=lambda: "new")
    assert caught.value.code == code


# --- messages of any XML --------------------------------------------------------------------------

TAGS = st.sampled_from(["a", "b", "c", "p:a", "p:b", "q:c"])


@st.composite
def elements(draw: st.DrawFn, depth: int = 3) -> str:
    tag = draw(TAGS)
    chosen = draw(st.sampled_from(["", ' xmlns="urn:d"', ' xmlns:p="urn:other"', ' xmlns=""']))
    attributes = f' k="{draw(st.sampled_from(["1", "&lt;&quot;&#9;&#10;", "ü"]))}"'
    attributes += draw(st.sampled_from(["", ' p:k="v"', ' q:t="p:name"', ' xml:lang="en"']))
    inner = draw(st.sampled_from(["", "text", "a&amp;b&#13;\n", "<![CDATA[<x>]]>", "<!-- no -->"]))
    if depth:
        inner += "".join(draw(st.lists(elements(depth=depth - 1), max_size=2)))
    return f"<{tag}{chosen}{attributes}>{inner}</{tag}>"


def meaning(node: XmlNode) -> object:
    """What of an element must survive: names, attributes, text, not the prefixes around it."""
    content: list[object] = []
    for part in node.content:
        if isinstance(part, XmlNode):
            content.append(meaning(part))
        elif content and isinstance(content[-1], str):
            content[-1] += part
        else:
            content.append(part)
    return node.namespace, node.name, dict(node.attributes), content


@given(elements())
def test_a_message_of_any_xml_keeps_its_meaning_in_and_out(inner: str) -> None:
    around = 'xmlns:p="urn:p" xmlns:q="urn:q"'
    sent = f"<x:batch {around}><x:messages>{inner}</x:messages></x:batch>"
    body = write_envelope(SOAP_11, f"<x:handleMessages>{sent}</x:handleMessages>")
    batch = parse_xml(body).children[0].children[0].children[0]
    original = batch.children[0].children[0]
    (event,) = read_messages(batch, sender="s", now_ms=0, new_id=lambda: "new")
    text = msgspec.json.decode(event.data)
    assert meaning(parse_xml(text)) == meaning(original)
    assert write_node(parse_xml(text)) == text
    assert XMESSAGES not in text
    assert event.type == original.name
    assert event.headers.get("namespace", "") == original.namespace
    given_out = write_batch(Batch(events=(StoredEvent(1, 0, event),), current_token="t"))
    back = xml(given_out).children[0].children[0]
    assert meaning(back) == meaning(original)


def test_a_bare_message_that_is_no_xml_is_given_out_as_an_xevent() -> None:
    event = Event("s", "1", "t", "", 0, b'"<a>"', {"xmlmessage": "bare"})
    written = write_batch(Batch(events=(StoredEvent(1, 0, event),), current_token="t"))
    message = xml(written).children[0].children[0]
    assert message.name == "XEvent"
    assert read_message(message, UNNAMED) == event


# --- batches and requests -------------------------------------------------------------------------


def test_a_batch_sent_again_names_its_messages_the_same() -> None:
    batch = xml(
        "<x:batch><x:messages><a/><a/><x:XEvent><x:type>t</x:type><x:id>own</x:id></x:XEvent>"
        "</x:messages><x:currentToken>T</x:currentToken></x:batch>"
    )

    def ids(sender: str) -> list[str]:
        found = read_messages(batch, sender=sender, now_ms=0, new_id=lambda: "never")
        return [event.id for event in found]

    assert ids("s") == ids("s")
    assert len(set(ids("s"))) == 3
    assert ids("s")[2] == "own"
    assert ids("other")[0] != ids("s")[0]


@pytest.mark.parametrize(("live", "header"), [("-1", None), ("0", "0"), ("5000", "5000")])
def test_time_to_live_goes_with_each_message(live: str, header: str | None) -> None:
    batch = xml(
        "<x:batch><x:messages><a/></x:messages><x:timeToLiveForMessagesInMs>"
        f"{live}</x:timeToLiveForMessagesInMs></x:batch>"
    )
    (event,) = read_messages(batch, sender="s", now_ms=0, new_id=lambda: "new")
    assert event.headers.get("ttlms") == header


TOKEN = "AAAAVpwBpGxhYsQQ-_0123456789"


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ("", {"query": {}}),
        ("<x:query/>", {"query": {}}),
        ("<x:query>type = 'a'</x:query>", {"query": "type = 'a'"}),
        (f"<x:query> {TOKEN} </x:query>", {"token": TOKEN}),
        (
            "<x:query><x:XEvent><x:type>t</x:type><x:namespace>n</x:namespace>"
            '<x:message contentType="application/json">{"room": 5}</x:message></x:XEvent>'
            "</x:query>",
            {"query": {"type": "t", "headers": {"namespace": "n"}, "data": {"room": 5}}},
        ),
        (
            "<x:query><x:source>s</x:source><x:timestampInMs>5</x:timestampInMs></x:query>",
            {"query": {"source": "s", "time": 5}},
        ),
        (
            '<x:query xmlns:i="http://www.w3.org/2001/XMLSchema-instance" i:nil="true"/>',
            {"query": {}},
        ),
    ],
)
def test_the_query_is_a_token_a_condition_or_a_template(
    inner: str, expected: dict[str, object]
) -> None:
    request = read_request(xml(f"<x:request>{inner}</x:request>")).request
    assert {"query": request.query, "token": request.token} == {
        "query": None,
        "token": "",
    } | expected


def test_every_field_of_a_request_is_read() -> None:
    asked = read_request(
        xml(
            "<x:request><x:query>a = 1</x:query>"
            "<x:timeToWaitForMatchInMs>1</x:timeToWaitForMatchInMs>"
            "<x:maxNumberOfMessagesToReturn>2</x:maxNumberOfMessagesToReturn>"
            "<x:maxTimeRangeInMsToReturn>3</x:maxTimeRangeInMsToReturn>"
            "<x:suggestedLeaseDurationInMinutes>4</x:suggestedLeaseDurationInMinutes>"
            "<x:subscriberWSDL>http://a/?wsdl</x:subscriberWSDL>"
            "<x:maxNumberOfMessagesToPush>5</x:maxNumberOfMessagesToPush>"
            "<x:takeMessages>true</x:takeMessages><x:handback>h</x:handback>"
            "<x:interpretation> us </x:interpretation></x:request>"
        )
    )
    request = asked.request
    assert (request.wait_ms, request.max_messages, request.max_time_range_ms) == (1, 2, 3)
    assert (request.lease_minutes, request.max_push) == (4, 5)
    assert (request.take, request.handback, request.interpretation) == (True, "h", "us")
    assert asked.subscriber_wsdl == "http://a/?wsdl"


@pytest.mark.parametrize(
    "inner",
    [
        "<x:takeMessages>perhaps</x:takeMessages>",
        "<x:timeToWaitForMatchInMs>1.5</x:timeToWaitForMatchInMs>",
        f"<x:timeToWaitForMatchInMs>{'9' * 30}</x:timeToWaitForMatchInMs>",
        "<x:query><a/></x:query>",
        "<x:query><x:XEvent/><x:XEvent/></x:query>",
    ],
)
def test_a_wrong_request_is_refused(inner: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_request(xml(f"<x:request>{inner}</x:request>"))
    assert caught.value.code in ("soap.bad_field", "query.bad_query")


def test_namespaces_around_many_bare_messages_do_not_multiply() -> None:
    declared = "".join(f" xmlns:p{n}='{'u' * 900}{n}'" for n in range(90))
    bare = "".join(f"<m xmlns='urn:m'>{n}</m>" for n in range(5_000))
    batch = xml(f"<x:batch{declared}><x:messages>{bare}</x:messages></x:batch>")
    tracemalloc.start()
    with pytest.raises(InvalidInput) as caught:
        read_messages(batch, sender="s", now_ms=0, new_id=lambda: "new")
    _now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert caught.value.code == "xml.too_large"
    assert peak < 64 * 1024 * 1024
