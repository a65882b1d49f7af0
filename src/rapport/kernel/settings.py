"""Settings of a node: flag, then RAPPORT_* variable, then site file, then default. Secrets come
from files or the environment. [UX-4]
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path

import msgspec

from rapport.core.errors import InvalidInput, Problem
from rapport.core.urls import address_parts
from rapport.kernel.config_fields import Fields
from rapport.kernel.toml import Section

_BOUNDS = {
    "port": (0, 65_535),
    "segment_bytes": (1, 2**40),
    "max_body_bytes": (1, 2**40),
    "max_batch": (1, 2**40),
}


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The `[node]` table of the site file."""

    host: str = "127.0.0.1"
    """Address to listen on; anything but loopback needs `token_file`."""
    port: int = 8484
    """Port of the HTTP API; 0 chooses a free one."""
    data: str = ".rapport"
    """Directory of log, records and lake, relative to the site; one process writes it."""
    token_file: str = ""
    """File with the bearer token of every request; empty = open on loopback."""
    public_url: str = ""
    """How people reach the node, for links in messages; default: http://host:port."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks of the proxies whose `X-Forwarded-For` counts: limits on attempts then
    hold for each caller behind them. Headers of all others are ignored.
    """
    segment_bytes: int = 64 * 1024 * 1024
    """Size at which a log segment is closed: smaller exports sooner, larger makes fewer files."""
    max_body_bytes: int = 8 * 1024 * 1024
    """Largest request body; memory per request is a small multiple of it."""
    max_batch: int = 10_000
    """Most events in one request or one read."""

    def local_url(self) -> str:
        """The address of the HTTP API by `host` and `port`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def load_settings(
    section: Section, *, flags: Mapping[str, object], environment: Mapping[str, str] | None = None
) -> NodeSettings:
    """The effective settings; raises InvalidInput that names the origin of a wrong value."""
    environ = os.environ if environment is None else environment
    merged: dict[str, object] = {}
    for field in msgspec.structs.fields(NodeSettings):
        variable = f"RAPPORT_{field.name.upper()}"
        if flags.get(field.name) is not None:
            given, origin = flags[field.name], f"--{field.name}"
        elif variable in environ:
            given, origin = _convert(environ[variable], field.type, variable), variable
        elif field.name in section.values:
            given, origin = section.values[field.name], f"{field.name} in [node]"
        else:
            continue
        if field.type == tuple[str, ...] and isinstance(given, str):
            given = [given]
        merged[field.name] = _checked(field.name, field.type, given, origin)
    return msgspec.convert(merged, NodeSettings)


def check_settings(section: Section) -> list[Problem]:
    """Every fault of a site's `[node]`. An unknown key is an error: with a misspelt `token_file`
    the API would be open.
    """
    problems: list[Problem] = []
    fields = Fields(section, problems, known=NodeSettings.__struct_fields__, strict=True)
    for field in msgspec.structs.fields(NodeSettings):
        if field.name in _BOUNDS:
            low, high = _BOUNDS[field.name]
            fields.number(field.name, field.default, low=low, high=high)
        elif field.name == "trusted_proxies":
            _check_proxies(fields)
        else:
            fields.text(field.name, field.default)
    public = section.values.get("public_url")
    if isinstance(public, str) and public and not _is_web_address(public):
        hint = "such as https://node.example.org"
        fields.fault("public_url", "url.bad", f"{public!r} is not an http address", hint=hint)
    return problems


def parse_proxies(networks: Sequence[str]) -> tuple[IPv4Network | IPv6Network, ...]:
    """The networks of `trusted_proxies`; raises ValueError that names the first invalid one."""
    return tuple(ip_network(text, strict=False) for text in networks)


def _check_proxies(fields: Fields) -> None:
    for text in fields.texts("trusted_proxies", (), example='["10.0.0.5"]'):
        try:
            parse_proxies([text])
        except ValueError:
            message = f"{text!r} is not an address or network"
            hint = 'such as "127.0.0.1" or "10.0.0.0/8"'
            fields.fault("trusted_proxies", "url.bad", message, hint=hint)


def _is_web_address(text: str) -> bool:
    parts = address_parts(text)
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def effective_data_directory(section: Section, environment: Mapping[str, str] | None = None) -> str:
    """The setting `data` alone, for commands that run no node; ignores faults of other settings."""
    environ = os.environ if environment is None else environment
    in_file = str(section.values.get("data", NodeSettings().data))
    return environ.get("RAPPORT_DATA", in_file)


def read_secret(text: str, directory: Path) -> str:
    """Reads a secret named as `file:PATH` or `env:NAME`. Rejects other texts, so that no site file
    contains a secret, and empty secrets.
    """
    kind, _, rest = text.partition(":")
    if kind == "env" and rest:
        value = os.environ.get(rest)
        if value is None:
            raise InvalidInput(f"the variable {rest} is not set", code="settings.no_secret")
        return _filled(value, f"the variable {rest}")
    if kind == "file" and rest:
        try:
            found = (directory / rest).read_text(encoding="utf-8-sig").strip()
        except (OSError, ValueError) as error:  # ValueError: its message would reveal content
            why = getattr(error, "strerror", None) or "it is not text"
            raise InvalidInput(
                f"cannot read the secret file {rest}: {why}", code="settings.no_secret"
            ) from None
        return _filled(found, f"the secret file {rest}")
    raise InvalidInput(
        "a secret is named as file:PATH or env:NAME, never written out",
        code="settings.bare_secret",
    )


def _filled(secret: str, where: str) -> str:
    if not secret:
        raise InvalidInput(
            f"{where} is empty",
            code="settings.no_secret",
            hint="put the secret there, or do not name it in the site file",
        )
    return secret


def _convert(text: str, kind: object, variable: str) -> object:
    if kind is int:
        try:
            return int(text)
        except ValueError:
            raise InvalidInput(
                f"{variable}={text!r} is not a whole number", code="settings.invalid"
            ) from None
    if kind == tuple[str, ...]:
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _checked(name: str, kind: object, given: object, origin: str) -> object:
    low, high = _BOUNDS.get(name, (0, 0))
    if kind is int and not (type(given) is int and low <= given <= high):
        wanted = f"a whole number from {low} to {high}"
    elif kind is str and not isinstance(given, str):
        wanted = "text"
    elif name == "trusted_proxies" and not _are_networks(given):
        wanted = "addresses or networks of proxies"
    else:
        return given
    raise InvalidInput(f"{origin} must be {wanted}, not {given!r}", code="settings.invalid")


def _are_networks(given: object) -> bool:
    try:
        parse_proxies(given)  # type: ignore[arg-type]
    except (ValueError, TypeError):
        return False
    return True
