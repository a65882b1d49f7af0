"""The subscriber's WSDL: where its sink is. Nothing that it imports is read. [CH-2, CH-12]"""

from __future__ import annotations

import msgspec

from rapport.channel.push.records import Form
from rapport.channel.xmessages.names import HANDLE
from rapport.core.errors import InvalidInput
from rapport.core.xml import XmlNode, parse_xml

WSDL = "http://schemas.xmlsoap.org/wsdl/"
SOAP_BINDINGS: tuple[tuple[Form, str], ...] = (
    ("soap", "http://schemas.xmlsoap.org/wsdl/soap/"),
    ("soap12", "http://schemas.xmlsoap.org/wsdl/soap12/"),
)
LONGEST_WSDL = 256 * 1024


class Sink(msgspec.Struct, frozen=True):
    """Where and how a subscriber takes batches."""

    address: str
    form: Form


def is_document(text: str) -> bool:
    """Whether the field holds the WSDL itself, not its address."""
    return text.lstrip("\ufeff \t\r\n").startswith("<")


def find_sink(document: bytes | str) -> Sink:
    """The port that takes handleMessages by SOAP.

    Raises InvalidInput when the document is no WSDL or has no such port, XmlError when it is not
    even XML.
    """
    if len(document) > LONGEST_WSDL:
        raise _unusable(f"it is longer than {LONGEST_WSDL} bytes")
    root = parse_xml(document)
    if (root.namespace, root.name) != (WSDL, "definitions"):
        raise _unusable(f"its element is {root.name!r}")
    bindings = {node.attributes.get("name", ""): node for node in _all(root, "binding")}
    ports = [port for service in _all(root, "service") for port in _all(service, "port")]
    sinks = [port for port in ports if _is_sink(bindings.get(_local(port, "binding")))]
    # A binding that stands in an imported document is not looked for; one port leaves no doubt.
    chosen = sinks or (ports if len(ports) == 1 and not bindings else [])
    for form, namespace in SOAP_BINDINGS:
        for port in chosen:
            address = port.child("address", namespace)
            if address is not None:
                return Sink(address.attributes.get("location", "").strip(), form)
    raise _unusable(f"it has no SOAP port with the operation {HANDLE}")


def _is_sink(binding: XmlNode | None) -> bool:
    if binding is None:
        return False
    return any(one.attributes.get("name") == HANDLE for one in _all(binding, "operation"))


def _all(node: XmlNode, name: str) -> list[XmlNode]:
    return [child for child in node.children if (child.namespace, child.name) == (WSDL, name)]


def _local(node: XmlNode, attribute: str) -> str:
    return node.attributes.get(attribute, "").rpartition(":")[2]


def _unusable(why: str) -> InvalidInput:
    return InvalidInput(
        f"the subscriber's WSDL cannot be used: {why}",
        code="push.bad_wsdl",
        hint="subscriberWSDL is the address or the text of a WSDL 1.1 with an XMessageSink port",
    )
