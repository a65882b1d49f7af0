"""The SOAP port against bad input: always a fault or an answer, and a healthy node after it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.xmessages.envelope import SOAP_11, SOAP_12, write_envelope
from rapport.core.xml import parse_xml
from rapport.web.security import SAFE_HEADERS

pytestmark = pytest.mark.slow

PATH = "/soap/channels/lab"
SAFE = {name.lower(): value for name, value in SAFE_HEADERS.items()}
EVENT = (
    '<x:XEvent><x:type>t</x:type><x:message contentType="application/json">{"n": 1}</x:message>'
    "</x:XEvent>"
)
PUBLISH = (
    f"<x:handleMessages><x:batch><x:messages>{EVENT}</x:messages></x:batch></x:handleMessages>"
)
ASK = "<x:requestMessages><x:request><x:query>type = 't'</x:query></x:request></x:requestMessages>"


def code_in(body: bytes) -> str:
    """The code that a fault tells."""
    found = [node for node in _all(parse_xml(body)) if node.name == "XMessageFault"]
    return found[0].children[0].text


def _all(node: Any) -> list[Any]:
    return [node] + [below for child in node.children for below in _all(child)]


def test_answers_and_faults_speak_the_version_of_the_caller(
    served_node: Callable[..., Any], is_valid: Callable[[bytes], None]
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            for version, kind in ((SOAP_11, "text/xml"), (SOAP_12, "application/soap+xml")):
                for content in (PUBLISH, ASK):
                    answer = await api.call("POST", PATH, write_envelope(version, content))
                    assert (answer.status, answer.headers["content-type"].split(";")[0]) == (
                        200,
                        kind,
                    )
                    assert parse_xml(answer.body).namespace == version
                    is_valid(answer.body)
                wrong = await api.call("POST", PATH, write_envelope(version, "<x:nothing/>"))
                assert wrong.status == 400
                assert wrong.headers.items() >= SAFE.items()
                assert parse_xml(wrong.body).namespace == version

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "xml.not_well_formed"),
        (b"<a>", 400, "xml.not_well_formed"),
        (b'{"json": true}', 400, "xml.not_well_formed"),
        (b"<a/>", 400, "soap.not_an_envelope"),
        (b'<Envelope xmlns="urn:x"/>', 400, "soap.version_mismatch"),
        (write_envelope(SOAP_11, "<x:other/>"), 400, "soap.unknown_operation"),
        (b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', 400, "xml.doctype_refused"),
        (b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>', 400, "xml.doctype_refused"),
        (b"<a>" * 200 + b"</a>" * 200, 400, "xml.too_deep"),
        (b"<a>" + b" " * 3_000_000 + b"</a>", 413, "input.too_large"),
        (
            write_envelope(SOAP_11, ASK.replace("type = 't'", "&#x41;" * 60)),
            400,
            "token.damaged",
        ),
        (
            write_envelope(
                SOAP_11,
                ASK.replace(
                    "</x:request>", "<x:subscriberWSDL>http://a/</x:subscriberWSDL></x:request>"
                ),
            ),
            403,
            "push.address_not_allowed",
        ),
    ],
)
def test_bad_envelopes_are_answered_by_a_fault(
    served_node: Callable[..., Any], body: bytes, status: int, code: str
) -> None:
    async def scenario() -> None:
        async with served_node(max_body_bytes=2_000_000) as api:
            answer = await api.call("POST", PATH, body, {"Content-Type": "text/xml"})
            assert (answer.status, code_in(answer.body)) == (status, code)

    asyncio.run(scenario())


def test_an_impossible_channel_and_a_missing_token_are_faults_too(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node(token="a-long-token-of-this-node") as api:
            body = write_envelope(SOAP_11, PUBLISH)
            answer = await api.call("POST", PATH, body)
            assert (answer.status, code_in(answer.body)) == (401, "access.not_authenticated")
            proof = {"Authorization": "Bearer a-long-token-of-this-node"}
            answer = await api.call("POST", "/soap/channels/No%20Name", body, proof)
            assert (answer.status, code_in(answer.body)) == (400, "channel.bad_name")
            answer = await api.call("POST", PATH, body, proof)
            assert answer.status == 200

    asyncio.run(scenario())


def test_the_description_names_the_address_it_was_asked_at(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            document = await api.call("GET", f"{PATH}?wsdl")
            assert document.headers["content-type"].startswith("text/xml")
            assert f'location="{api.url}{PATH}"'.encode() in document.body
            assert f'schemaLocation="{api.url}{PATH}?xsd"'.encode() in document.body
            assert (await api.call("GET", f"{PATH}?xsd")).body.startswith(b"<?xml")
            plain = await api.call("GET", PATH)
            assert (plain.status, plain.json()["title"]) == (400, "soap.nothing_to_show")

    asyncio.run(scenario())


@st.composite
def damaged_envelopes(draw: st.DrawFn) -> bytes:
    """A sound envelope with a few bytes cut out, put in or doubled."""
    version = draw(st.sampled_from([SOAP_11, SOAP_12]))
    body = bytearray(write_envelope(version, draw(st.sampled_from([PUBLISH, ASK]))))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(body)))
        kind = draw(st.sampled_from(["cut", "put", "double"]))
        if kind == "cut":
            del body[place : place + draw(st.integers(1, 40))]
        elif kind == "put":
            body[place:place] = draw(
                st.binary(max_size=8)
                | st.sampled_from(
                    [b"<a/>", b"&#0;", b"&x;", b"<x:query/>", b"<!DOCTYPE a>", b"]]>"]
                )
            )
        else:
            body[place:place] = body[place : place + draw(st.integers(1, 60))]
    return bytes(body)


@pytest.mark.slow
def test_no_bytes_bring_the_soap_port_down(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            loop = asyncio.get_running_loop()

            @given(st.binary(max_size=200) | damaged_envelopes())
            def attack(body: bytes) -> None:
                asked = api.call("POST", PATH, body, {"Content-Type": "text/xml"})
                answer = asyncio.run_coroutine_threadsafe(asked, loop).result(20)
                assert answer.status < 500
                root = parse_xml(answer.body)
                assert root.name == "Envelope"
                assert (answer.status == 200) == (b"Fault" not in answer.body)

            await asyncio.to_thread(attack)
            healthy = await api.call("POST", PATH, write_envelope(SOAP_11, PUBLISH))
            assert healthy.status == 200
            assert (await api.call("GET", "/readyz")).status == 200

    asyncio.run(scenario())
