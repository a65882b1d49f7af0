"""WSDL and schema of the SOAP door, as files with one address to fill in. [CH-12]"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from string import Template
from xml.sax.saxutils import escape

_HERE = Path(__file__).parent


@cache
def schema() -> bytes:
    """The XML Schema; the same for every channel."""
    return (_HERE / "xmessages.xsd").read_bytes()


def wsdl(address: str) -> bytes:
    """The WSDL of a channel whose door stands at `address`."""
    return _template().substitute(address=escape(address, {'"': "&quot;"})).encode()


@cache
def _template() -> Template:
    return Template((_HERE / "xmessages.wsdl").read_text(encoding="utf-8"))
