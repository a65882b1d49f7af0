"""SOAP envelopes, 1.1 and 1.2, and the XML values in them. [CH-12]

Reads calls, writes answers and faults in the caller's version. Field values are read with precise
errors, and written so that every reader gets the same text back.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from xml.sax.saxutils import escape

import msgspec

from rapport.core.errors import InvalidInput, RapportError, Unsupported
from rapport.core.xml import XmlNode, parse_xml

XMESSAGES = "urn:rapport:xmessages:1"
"""Target namespace of our schema and WSDL."""
SOAP_11 = "http://schemas.xmlsoap.org/soap/envelope/"
SOAP_12 = "http://www.w3.org/2003/05/soap-envelope"
SCHEMA_INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
XML = "http://www.w3.org/XML/1998/namespace"

HANDLE, REQUEST = "handleMessages", "requestMessages"
"""The two operations."""

# Headers of the envelope that have a field of their own in an XEvent.
NAMESPACE, HANDBACK, CONTENT_TYPE = "namespace", "handback", "datacontenttype"
TIME_TO_LIVE = "ttlms"
BARE = "xmlmessage"
"""Header of a message that was no XEvent; its value is always `bare`."""


_UNCARRIED = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ENVELOPE = frozenset((SOAP_11, SOAP_12, XMESSAGES))
_RETURN = {"\r": "&#13;"}
_SIGNS = {'"': "&quot;", "\t": "&#9;", "\n": "&#10;", **_RETURN}
MEDIA_TYPES = {SOAP_11: "text/xml; charset=utf-8", SOAP_12: "application/soap+xml; charset=utf-8"}
_FOR_US_11 = ("", "http://schemas.xmlsoap.org/soap/actor/next")
_FOR_US_12 = (
    "",
    "http://www.w3.org/2003/05/soap-envelope/role/next",
    "http://www.w3.org/2003/05/soap-envelope/role/ultimateReceiver",
)
_NIL = f"{{{SCHEMA_INSTANCE}}}nil"


def is_carried(text: str) -> bool:
    """Whether XML 1.0 has all these characters; control characters, for one, it has not.

    >>> is_carried("é\\n"), is_carried("\\0")
    (True, False)
    """
    return _UNCARRIED.search(text) is None


def escaped(text: str) -> str:
    """A text as content of an element. The caller has checked `is_carried`.

    >>> escaped("a < b")
    'a &lt; b'
    """
    return escape(text, _RETURN)


def quoted(text: str) -> str:
    """A text as value of an attribute, with its quotes.

    >>> quoted('say "a"')
    '"say &quot;a&quot;"'
    """
    return f'"{escape(text, _SIGNS)}"'


def write_node(node: XmlNode) -> str:
    """An element by itself, with the namespaces it needs, so that `parse_xml` reads it back the
    same.

    Prefixes stay, for values that are qualified names; only those of the envelope are removed.
    """
    parts: list[str] = []
    around = {"": "", "xml": XML}
    unused = _ENVELOPE - set(_namespaces_in(node))
    around.update((key, bound) for key, bound in node.prefixes.items() if bound in unused)
    _write(node, around, node.prefixes, parts)
    return "".join(parts)


def _write(
    node: XmlNode, outer: Mapping[str, str], declared: Mapping[str, str], parts: list[str]
) -> None:
    """`outer`: all prefixes in scope around the node; `declared`: further ones to declare."""
    new = sorted(key for key, bound in declared.items() if outer.get(key) != bound)
    scope = {**outer, **declared} if new else outer
    name = _qualified(node.namespace, node.name, scope, bare=True)
    parts.append(f"<{name}{''.join(_declaration(key, scope[key]) for key in new)}")
    parts += (_attribute(key, value, scope) for key, value in node.attributes.items())
    if not node.content:
        parts.append("/>")
        return
    parts.append(">")
    for part in node.content:
        if isinstance(part, str):
            parts.append(escaped(part))
        else:
            own = part.prefixes.declared if part.prefixes is not node.prefixes else {}
            _write(part, scope, own, parts)
    parts.append(f"</{name}>")


def _namespaces_in(node: XmlNode) -> Iterator[str]:
    yield node.namespace
    yield from (name[1:].rpartition("}")[0] for name in node.attributes if name.startswith("{"))
    for child in node.children:
        yield from _namespaces_in(child)


def _qualified(namespace: str, name: str, scope: Mapping[str, str], *, bare: bool) -> str:
    """The name with a prefix that is in force here; `bare` when the default one serves as well."""
    if bare and scope.get("", "") == namespace:
        return name
    return f"{min(key for key, bound in scope.items() if key and bound == namespace)}:{name}"


def _declaration(prefix: str, address: str) -> str:
    return f" xmlns{':' if prefix else ''}{prefix}={quoted(address)}"


def _attribute(name: str, value: str, scope: Mapping[str, str]) -> str:
    if name.startswith("{"):
        namespace, _, local = name[1:].rpartition("}")
        name = _qualified(namespace, local, scope, bare=False)
    return f" {name}={quoted(value)}"


class SoapCall(msgspec.Struct, frozen=True):
    version: str
    """Namespace of the envelope: SOAP_11 or SOAP_12."""
    operation: str
    argument: XmlNode


class SoapError(InvalidInput):
    """An envelope that cannot be carried out; `version` is that of the answer, as far as known."""

    code = "soap.not_an_envelope"

    def __init__(
        self, message: str, *, version: str, code: str | None = None, hint: str = ""
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.version = version


def read_call(body: bytes) -> SoapCall:
    """The call in an envelope.

    Raises SoapError (no envelope, unknown version or operation, an unknown mandatory header) or as
    `parse_xml` does.
    """
    root = parse_xml(body)
    version = _version(root)
    _check_headers(root, version)
    soap_body = root.child("Body", version)
    if soap_body is None or len(soap_body.children) != 1:
        raise SoapError(
            "the envelope has no body with one element",
            version=version,
            hint="the WSDL describes the operations: GET this address with ?wsdl",
        )
    return _call(soap_body.children[0], version)


def version_of(body: bytes) -> str:
    """The version a sender speaks, for faults about a body that may be broken."""
    return SOAP_12 if SOAP_12.encode() in body[:2_000] else SOAP_11


def _version(root: XmlNode) -> str:
    if root.name != "Envelope":
        raise SoapError(
            f"the document is {root.name!r}, not a SOAP envelope",
            version=SOAP_11,
            hint="the WSDL describes the operations: GET this address with ?wsdl",
        )
    if root.namespace not in (SOAP_11, SOAP_12):
        raise SoapError(
            f"envelopes of {root.namespace[:100]!r} are not known",
            version=SOAP_11,
            code="soap.version_mismatch",
            hint=f"SOAP 1.1 ({SOAP_11}) or 1.2 ({SOAP_12})",
        )
    return root.namespace


def _check_headers(root: XmlNode, version: str) -> None:
    """We understand no header, so none addressed to us may insist on it."""
    header = root.child("Header", version)
    role, for_us = ("actor", _FOR_US_11) if version == SOAP_11 else ("role", _FOR_US_12)
    for block in header.children if header is not None else ():
        insists = block.attributes.get(f"{{{version}}}mustUnderstand", "0").strip()
        addressed = block.attributes.get(f"{{{version}}}{role}", "")
        if insists in ("1", "true") and addressed in for_us:
            raise SoapError(
                f"the header {block.name!r} must be understood and is not",
                version=version,
                code="soap.must_understand",
                hint="authentication is by HTTP: Authorization: Bearer TOKEN",
            )


def _call(element: XmlNode, version: str) -> SoapCall:
    arguments = {HANDLE: "batch", REQUEST: "request"}
    if element.namespace != XMESSAGES or element.name not in arguments:
        raise SoapError(
            f"there is no operation {element.name!r} of {element.namespace!r}",
            version=version,
            code="soap.unknown_operation",
            hint=f"{HANDLE} or {REQUEST} of {XMESSAGES}",
        )
    argument = element.child(arguments[element.name], XMESSAGES)
    if argument is None or len(element.children) != 1:
        raise SoapError(
            f"{element.name} needs one element {arguments[element.name]!r}",
            version=version,
            code="soap.bad_field",
        )
    return SoapCall(version, element.name, argument)


def write_envelope(version: str, content: str, *, header: str = "") -> bytes:
    """An envelope around elements, with optional header blocks; our prefix is `x`."""
    before = f"<env:Header>{header}</env:Header>" if header else ""
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f'<env:Envelope xmlns:env="{version}" xmlns:x="{XMESSAGES}">{before}'
        f"<env:Body>{content}</env:Body></env:Envelope>"
    ).encode()


def write_fault(version: str, error: RapportError) -> bytes:
    """The fault for an error: code, message and hint in its detail."""
    message = _clean(error.message)
    advice = error.hint or "; ".join(one.hint for one in error.problems_found() if one.hint)
    hint = f"<x:hint>{_clean(advice)}</x:hint>" if advice else ""
    detail = (
        f"<x:XMessageFault><x:code>{_clean(error.code)}</x:code>"
        f"<x:message>{message}</x:message>{hint}</x:XMessageFault>"
    )
    kind = _fault_kind(version, error)
    if version == SOAP_12:
        return write_envelope(
            version,
            f"<env:Fault><env:Code><env:Value>env:{kind}</env:Value></env:Code>"
            f'<env:Reason><env:Text xml:lang="en">{message}</env:Text></env:Reason>'
            f"<env:Detail>{detail}</env:Detail></env:Fault>",
        )
    return write_envelope(
        version,
        f"<env:Fault><faultcode>env:{kind}</faultcode><faultstring>{message}</faultstring>"
        f"<detail>{detail}</detail></env:Fault>",
    )


def _fault_kind(version: str, error: RapportError) -> str:
    known = {"soap.version_mismatch": "VersionMismatch", "soap.must_understand": "MustUnderstand"}
    if error.code in known:
        return known[error.code]
    is_theirs = isinstance(error, InvalidInput | Unsupported) or error.status < 500
    if version == SOAP_12:
        return "Sender" if is_theirs else "Receiver"
    return "Client" if is_theirs else "Server"


def _clean(text: str) -> str:
    """A text for people, without characters that XML has not."""
    shown = text if is_carried(text) else "".join(c if is_carried(c) else "\ufffd" for c in text)
    return escaped(shown)


def fields_of(node: XmlNode, known: tuple[str, ...], *, many: str = "") -> dict[str, XmlNode]:
    """The fields of a structure by name, without nil ones.

    Raises InvalidInput for a field that is unknown or repeated (unless it is `many`), or for text
    between fields.
    """
    found: dict[str, XmlNode] = {}
    for child in node.children:
        if child.namespace != XMESSAGES or child.name not in known:
            raise bad_field(
                f"{node.name} has no field {child.name!r} of namespace {child.namespace!r}",
                f"fields of {XMESSAGES}: {', '.join(known)}",
            )
        if child.name in found and child.name != many:
            raise bad_field(f"{node.name} has the field {child.name!r} twice")
        if child.attributes.get(_NIL, "false").strip() not in ("true", "1"):
            found[child.name] = child
    if node.text.strip():
        raise bad_field(f"{node.name} has text between its fields")
    return found


def text_of(node: XmlNode | None) -> str:
    """The text of a field; empty when it is absent. Raises InvalidInput when it holds elements."""
    if node is None:
        return ""
    if node.children:
        raise bad_field(
            f"{node.name} holds an element where a text is wanted",
            "escape XML (&lt;...) with contentType application/xml, or send it as a message",
        )
    text = node.text
    encoding = node.attributes.get("encoding", "")
    if encoding not in ("", "base64"):
        raise bad_field(f"{node.name} has the unknown encoding {encoding[:40]!r}", "use base64")
    return from_base64(text, node.name) if encoding else text


def number_of(node: XmlNode | None, default: int) -> int:
    """The whole number of a field; the default when it is absent or empty."""
    text = text_of(node).strip()
    if node is None or not text:
        return default
    try:
        if len(text) > 20:
            raise ValueError("too long")
        return int(text)
    except ValueError:
        raise bad_field(f"{node.name} cannot be {text[:40]!r}", "a whole number") from None


def flag_of(node: XmlNode | None) -> bool:
    """The truth value of a field; False when it is absent or empty."""
    text = text_of(node).strip()
    if text in ("true", "1"):
        return True
    if text in ("false", "0", ""):
        return False
    assert node is not None
    raise bad_field(f"{node.name} cannot be {text[:40]!r}", "true or false")


def from_base64(text: str, name: str) -> str:
    try:
        raw = base64.b64decode("".join(text.split()).encode("ascii"), validate=True)
        return raw.decode()
    except (binascii.Error, UnicodeError):
        raise bad_field(f"{name} is not base64 of UTF-8") from None


def to_base64(text: str) -> str:
    return base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()


def write_field(name: str, text: str, attributes: str = "") -> str:
    """An element of our schema with a text; in base64 when XML cannot carry it."""
    if is_carried(text):
        return f"<x:{name}{attributes}>{escaped(text)}</x:{name}>"
    return f'<x:{name}{attributes} encoding="base64">{to_base64(text)}</x:{name}>'


def write_header(name: str, value: str) -> str:
    """One header; name and value in base64 when XML cannot carry one of them."""
    if is_carried(name) and is_carried(value):
        return f"<x:header name={quoted(name)}>{escaped(value)}</x:header>"
    key = quoted(to_base64(name))
    return f'<x:header name={key} encoding="base64">{to_base64(value)}</x:header>'


def read_header(node: XmlNode) -> tuple[str, str]:
    value, name = text_of(node), node.attributes.get("name")
    if name is None:
        raise bad_field("a header has no name", '<header name="room">5</header>')
    if node.attributes.get("encoding"):
        name = from_base64(name, "the name of a header")
    return name, value


def bad_field(message: str, hint: str = "") -> InvalidInput:
    return InvalidInput(message, code="soap.bad_field", hint=hint)
