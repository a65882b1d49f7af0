"""SOAP envelopes, 1.1 and 1.2: what is called, and answers in the caller's version. [CH-12]"""

from __future__ import annotations

import msgspec

from rapport.channel.xmessages.names import HANDLE, REQUEST, SOAP_11, SOAP_12, XMESSAGES
from rapport.channel.xmessages.writing import escaped, is_carried
from rapport.core.errors import InvalidInput, RapportError, Unsupported
from rapport.core.xml import XmlNode, parse_xml

MEDIA_TYPES = {SOAP_11: "text/xml; charset=utf-8", SOAP_12: "application/soap+xml; charset=utf-8"}
_FOR_US_11 = ("", "http://schemas.xmlsoap.org/soap/actor/next")
_FOR_US_12 = (
    "",
    "http://www.w3.org/2003/05/soap-envelope/role/next",
    "http://www.w3.org/2003/05/soap-envelope/role/ultimateReceiver",
)


class Call(msgspec.Struct, frozen=True):
    """An operation that somebody calls, with its one argument."""

    version: str
    """Namespace of the envelope: SOAP_11 or SOAP_12."""
    operation: str
    argument: XmlNode


class SoapError(InvalidInput):
    """An envelope that cannot be carried out; `version` is that of the answer, as far as known."""

    code = "soap.not_an_envelope"

    def __init__(self, message: str, *, version: str, code: str, hint: str = "") -> None:
        super().__init__(message, code=code, hint=hint)
        self.version = version


def read_call(body: bytes) -> Call:
    """The call in an envelope.

    Raises SoapError (no envelope, unknown version or operation, a header that we had to understand)
    or what `parse_xml` raises.
    """
    root = parse_xml(body)
    version = _version(root)
    _check_headers(root, version)
    soap_body = root.child("Body", version)
    if soap_body is None or len(soap_body.children) != 1:
        raise SoapError(
            "the envelope has no body with one element",
            version=version,
            code="soap.not_an_envelope",
            hint="the WSDL says what to send: GET this address with ?wsdl",
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
            code="soap.not_an_envelope",
            hint="the WSDL says what to send: GET this address with ?wsdl",
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


def _call(element: XmlNode, version: str) -> Call:
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
    return Call(version, element.name, argument)


def write_envelope(version: str, content: str, *, header: str = "") -> bytes:
    """An envelope around elements; `x` is the prefix of our schema in them. Header blocks are
    optional for the receiver.
    """
    before = f"<env:Header>{header}</env:Header>" if header else ""
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f'<env:Envelope xmlns:env="{version}" xmlns:x="{XMESSAGES}">{before}'
        f"<env:Body>{content}</env:Body></env:Envelope>"
    ).encode()


def write_fault(version: str, error: RapportError) -> bytes:
    """The fault that tells an error: code, message and hint in its detail."""
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
