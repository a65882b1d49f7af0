"""What the rooms that speak datagrams read alike from a site file: addresses and the file of keys.
[CX-9, EN-10, UX-2]
"""

from __future__ import annotations

from pathlib import Path

from rapport.core.errors import InvalidInput
from rapport.kernel.config_fields import Fields
from rapport.kernel.files import is_file, is_inside
from rapport.transport.addresses import parse_address
from rapport.transport.base import Address


def read_address(fields: Fields, key: str, text: str) -> Address | None:
    """The address; none for an empty text and, with a problem, for one that is no address."""
    if not text:
        return None
    try:
        return parse_address(text)
    except InvalidInput as error:
        fields.report(key, error)
        return None


def read_addresses(fields: Fields, key: str) -> tuple[Address, ...]:
    """The addresses of a list; those that are none are problems."""
    found = [read_address(fields, key, text) for text in fields.texts(key, ())]
    return tuple(one for one in found if one is not None)


def read_keys(fields: Fields, directory: Path, room: str) -> Path | None:
    """The file of datagram keys; one that is not there yet is a warning only. `room` is the name
    of the section and of its commands.
    """
    text = fields.text("keys", "", example=f'"{room}-keys.toml"')
    if not text:
        return None
    path = directory / text
    if not is_inside(path, directory) and not Path(text).is_absolute():
        message = f"{text!r} leads out of the site directory"
        fields.fault("keys", "site.outside", message, hint="write an absolute path if it is meant")
    elif not is_file(path):
        # Secrets are often put in place later, as those of other doors are.
        hint = f"make it with `rapport {room} keys make`"
        message = f"there is no file {text!r}"
        fields.fault("keys", "site.no_file", message, hint=hint, severity="warning")
    return path
