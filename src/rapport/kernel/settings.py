"""Settings: flag, then RAPPORT_* variable, then site file, then default; secrets from files or
environment. [UX-4]
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from rapport.core.errors import InvalidInput
from rapport.kernel.toml import Section


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How one node runs; the `[node]` table of the site file.

    Each field says what it trades.
    """

    host: str = "127.0.0.1"
    """Address to listen on. Anything but loopback needs `token_file`, or the node refuses to start.
    """
    port: int = 8484
    """Port of the HTTP doors; 0 takes a free one."""
    data: str = ".rapport"
    """Directory of log, records and lake, relative to the site; one process writes it."""
    token_file: str = ""
    """File with the secret that every request must carry as a bearer token; empty = open on
    loopback.
    """
    public_url: str = ""
    """How people reach the node, for links in messages; default: http://host:port."""
    segment_bytes: int = 64 * 1024 * 1024
    """Size at which a log segment is closed: smaller exports sooner, larger makes fewer files."""
    max_body_bytes: int = 8 * 1024 * 1024
    """Largest request body; memory per request is a small multiple of it."""
    max_batch: int = 10_000
    """Most events in one request or one read."""


def load_settings(
    section: Section, *, flags: Mapping[str, object], environment: Mapping[str, str] | None = None
) -> NodeSettings:
    """The settings in force; raises InvalidInput naming where a wrong value came from."""
    environ = os.environ if environment is None else environment
    merged: dict[str, object] = {}
    for field in msgspec.structs.fields(NodeSettings):
        variable = f"RAPPORT_{field.name.upper()}"
        if flags.get(field.name) is not None:
            merged[field.name] = flags[field.name]
        elif variable in environ:
            merged[field.name] = _convert(environ[variable], field.type, variable)
        elif field.name in section.values:
            merged[field.name] = section.values[field.name]
    try:
        return msgspec.convert(merged, NodeSettings)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"settings: {error}", code="settings.invalid") from None


def read_secret(text: str, directory: Path) -> str:
    """A secret named as `file:PATH` or `env:NAME`; anything else is refused so that none stands in
    the site file.
    """
    kind, _, rest = text.partition(":")
    if kind == "env" and rest:
        value = os.environ.get(rest)
        if value is None:
            raise InvalidInput(f"the variable {rest} is not set", code="settings.no_secret")
        return value
    if kind == "file" and rest:
        try:
            return (directory / rest).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise InvalidInput(
                f"cannot read the secret file {rest}: {error.strerror}", code="settings.no_secret"
            ) from None
    raise InvalidInput(
        "a secret is named as file:PATH or env:NAME, never written out",
        code="settings.bare_secret",
    )


def _convert(text: str, kind: object, variable: str) -> object:
    if kind is int:
        try:
            return int(text)
        except ValueError:
            raise InvalidInput(
                f"{variable}={text!r} is not a whole number", code="settings.invalid"
            ) from None
    return text
