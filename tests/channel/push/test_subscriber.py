from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.push import SubscriberSink, find_sink, is_document
from rapport.core.errors import InvalidInput
from rapport.web.soap import wsdl

HEAD = (
    '<w:definitions xmlns:w="http://schemas.xmlsoap.org/wsdl/" '
    'xmlns:s="http://schemas.xmlsoap.org/wsdl/soap/" '
    'xmlns:t="http://schemas.xmlsoap.org/wsdl/soap12/">'
)
SINK = '<w:binding name="B"><w:operation name="handleMessages"/></w:binding>'


def document(*parts: str) -> str:
    return HEAD + "".join(parts) + "</w:definitions>"


def port(location: str, *, binding: str = "x:B", prefix: str = "s") -> str:
    address = f'<{prefix}:address location="{location}"/>'
    return f'<w:service><w:port binding="{binding}">{address}</w:port></w:service>'


def test_our_own_wsdl_names_its_sink() -> None:
    assert find_sink(wsdl("http://a/soap/channels/c")) == SubscriberSink(
        "http://a/soap/channels/c", "soap"
    )


def test_the_port_with_the_operation_is_chosen() -> None:
    other = '<w:binding name="O"><w:operation name="requestMessages"/></w:binding>'
    found = find_sink(document(other, SINK, port("http://o", binding="x:O"), port("http://b")))
    assert found == SubscriberSink("http://b", "soap")


def test_a_port_of_soap_12_serves_when_there_is_no_other() -> None:
    both = document(SINK, port("http://new", prefix="t"), port("http://old"))
    assert find_sink(both) == SubscriberSink("http://old", "soap")
    assert find_sink(document(SINK, port("http://n", prefix="t"))) == SubscriberSink(
        "http://n", "soap12"
    )


def test_a_single_port_serves_when_its_binding_is_imported() -> None:
    imported = '<w:import namespace="urn:x" location="http://169.254.169.254/secret.wsdl"/>'
    assert find_sink(document(imported, port("http://b"))).address == "http://b"
    with pytest.raises(InvalidInput):
        find_sink(document(imported, port("http://b"), port("http://c")))


@pytest.mark.parametrize(
    "text",
    [
        "<a/>",
        document(),
        document(SINK),
        document(SINK, '<w:service><w:port binding="x:B"/></w:service>'),
        document('<w:binding name="B"/>', port("http://b")),
        document("<!--" + "x" * 300_000 + "-->", SINK, port("http://b")),
    ],
)
def test_what_has_no_sink_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        find_sink(text)
    assert caught.value.code == "push.bad_wsdl"


@given(st.text())
def test_any_text_is_a_sink_or_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        find_sink(text)


def test_a_document_is_distinguished_from_an_address() -> None:
    assert is_document(" \n<definitions/>")
    assert not is_document("http://a/?wsdl")
