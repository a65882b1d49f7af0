"""Parsing of server addresses that never raises, and checks of hosts. [CH-1]"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from urllib.parse import SplitResult, urlsplit

_NO_ADDRESS = urlsplit("")
_USER_INFO = re.compile(r"//[^/?#]*@")


def address_parts(text: str) -> SplitResult:
    """The parts of an address. All parts of an invalid one are empty, such as one with half a
    bracket or a port that is no number, for which `urlsplit` or its result raises.

    >>> address_parts("http://10.0.0.2:8484/x").port
    8484
    >>> address_parts("http://[half").scheme, address_parts("http://a:port").hostname
    ('', None)
    """
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises only on access
    except ValueError:
        return _NO_ADDRESS
    return parts


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """Whether an address or name can only be reached from this machine.

    >>> is_loopback("127.0.0.1"), is_loopback("[::1]"), is_loopback("10.0.0.2")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_unspecified(host: str) -> bool:
    """Whether a host means all addresses of a machine: usable to listen on, not to connect to.

    >>> is_unspecified("0.0.0.0"), is_unspecified("::"), is_unspecified("10.0.0.2")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def without_password(url: str) -> str:
    """An address for people and logs, without user name and password.

    >>> without_password("https://ana:secret@10.0.0.2/x")
    'https://10.0.0.2/x'
    """
    return _USER_INFO.sub("//", url, count=1)
