from __future__ import annotations

import pytest

from rapport.channel.xmessages.envelope import (
    SOAP_11,
    SOAP_12,
    XMESSAGES,
    read_call,
    write_envelope,
    write_fault,
)
from rapport.core.errors import InvalidInput, StoreUnavailable
from rapport.core.xml import parse_xml

CALL = "<x:handleMessages><x:batch/></x:handleMessages>"


def envelope(body: str, *, version: str = SOAP_11, header: str = "") -> bytes:
    return (
        f'<e:Envelope xmlns:e="{version}" xmlns:x="{XMESSAGES}">{header}{body}</e:Envelope>'
    ).encode()


@pytest.mark.parametrize("version", [SOAP_11, SOAP_12])
def test_a_call_is_read_from_an_envelope_of_either_version(version: str) -> None:
    called = read_call(write_envelope(version, CALL))
    assert (called.version, called.operation) == (version, "handleMessages")
    assert called.argument.name == "batch"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "xml.not_well_formed"),
        (b"<a/>", "soap.not_an_envelope"),
        (b'<Envelope xmlns="urn:soap:9"/>', "soap.version_mismatch"),
        (envelope(""), "soap.not_an_envelope"),
        (envelope("<e:Body/>"), "soap.not_an_envelope"),
        (envelope(f"<e:Body>{CALL}{CALL}</e:Body>"), "soap.not_an_envelope"),
        (envelope("<e:Body><x:dropMessages/></e:Body>"), "soap.unknown_operation"),
        (envelope("<e:Body><handleMessages/></e:Body>"), "soap.unknown_operation"),
        (envelope("<e:Body><x:handleMessages/></e:Body>"), "soap.bad_field"),
        (envelope("<e:Body><x:requestMessages><x:batch/></x:requestMessages></e:Body>"),
         "soap.bad_field"),
        (b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "xml.doctype_refused"),
    ],
)  # fmt: skip
def test_what_cannot_be_called_is_refused(body: bytes, code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_call(body)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("version", "block", "is_refused"),
    [
        (SOAP_11, '<a e:mustUnderstand="1"/>', True),
        (SOAP_11, '<a e:mustUnderstand="0"/>', False),
        (SOAP_11, '<a e:mustUnderstand="1" e:actor="urn:another"/>', False),
        (SOAP_12, '<a e:mustUnderstand="true"/>', True),
        (SOAP_12, f'<a e:mustUnderstand="true" e:role="{SOAP_12}/role/next"/>', True),
        (SOAP_12, '<a e:mustUnderstand="true" e:role="urn:another"/>', False),
    ],
)
def test_a_header_that_insists_on_being_understood_is_refused(
    version: str, block: str, is_refused: bool
) -> None:
    body = envelope(
        f"<e:Body>{CALL}</e:Body>", version=version, header=f"<e:Header>{block}</e:Header>"
    )
    if not is_refused:
        assert read_call(body).operation == "handleMessages"
        return
    with pytest.raises(InvalidInput) as caught:
        read_call(body)
    assert caught.value.code == "soap.must_understand"


def test_a_fault_tells_code_message_and_hint_in_both_versions() -> None:
    error = InvalidInput("no <such> \0 field", code="soap.bad_field", hint="ask & look")
    old = parse_xml(write_fault(SOAP_11, error)).children[0].children[0]
    assert [child.text for child in old.children[:2]] == ["env:Client", "no <such> \ufffd field"]
    new = parse_xml(write_fault(SOAP_12, error)).children[0].children[0]
    assert new.children[0].children[0].text == "env:Sender"
    for detail in (old.children[-1], new.children[-1]):
        told = {child.name: child.text for child in detail.children[0].children}
        assert told == {
            "code": "soap.bad_field",
            "message": "no <such> \ufffd field",
            "hint": "ask & look",
        }


def test_a_fault_of_ours_is_not_blamed_on_the_caller() -> None:
    fault = write_fault(SOAP_11, StoreUnavailable("full"))
    assert b"env:Server" in fault
    assert b"env:Receiver" in write_fault(SOAP_12, StoreUnavailable("full"))
