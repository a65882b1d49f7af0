"""The table of keys in TOML, read with every fault named by its place and no secret told. [CX-9]"""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from typing import Any

import msgspec

from rapport.core.errors import InvalidInput, Problem, SiteError
from rapport.core.times import parse_time
from rapport.kernel.toml import TomlFile
from rapport.transport.keys import FOREVER_MS, DatagramKey, checked_key

_FIELDS = {"id", "owner", "kind", "secret", "from", "until"}
_HINT = "a key has id, owner, kind, secret, and may have from and until"


def read_key_table(
    raw: bytes, *, name: str
) -> tuple[str, tuple[DatagramKey, ...], tuple[Problem, ...]]:
    """The holder's name, the keys, and all that is wrong with them."""
    try:
        file = TomlFile.parse(raw, name=name)
    except SiteError as error:
        # The excerpt would show the line, and a secret may stand there.
        return "", (), tuple(msgspec.structs.replace(one, excerpt="") for one in error.problems)
    own, rows = file.values.get("own", ""), file.values.get("keys", [])
    problems = [
        _problem(file, (field,), f"nothing is called {field!r} here")
        for field in file.values
        if field not in ("own", "keys")
    ]
    if not isinstance(own, str):
        problems.append(_problem(file, ("own",), "own must be the name of an owner"))
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return "", (), (*problems, _problem(file, ("keys",), "keys are tables: [[keys]]"))
    keys: list[DatagramKey] = []
    for number, row in enumerate(rows):
        try:
            keys.append(_key(row))
        except InvalidInput as error:
            problems.append(_problem(file, ("keys", f"[{number}]"), error.message))
    return own if isinstance(own, str) else "", tuple(keys), tuple(problems)


def _key(row: dict[str, Any]) -> DatagramKey:
    unknown = sorted(set(row) - _FIELDS)
    if unknown:
        raise InvalidInput(f"a key has no {unknown[0]!r}")
    texts = [row.get(field) for field in ("id", "owner", "kind", "secret")]
    if not all(isinstance(text, str) for text in texts):
        raise InvalidInput("id, owner, kind and secret of a key must be texts")
    id, owner, kind, secret = (str(text) for text in texts)
    from_ms = _moment(row["from"]) if "from" in row else 0
    until_ms = _moment(row["until"]) if "until" in row else FOREVER_MS
    return checked_key(id, owner, kind, _from_base64(secret), from_ms, until_ms)


def _moment(value: object) -> int:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return round(value.timestamp() * 1_000)
    if isinstance(value, str):
        return parse_time(value)
    raise InvalidInput("from and until are times with a zone, such as 2026-01-01T00:00:00Z")


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""  # of the wrong length, as the check then says


def _problem(file: TomlFile, path: tuple[str, ...], message: str) -> Problem:
    line, column = file.place_of(path)
    return Problem(
        file=file.name, line=line, column=column, code="keys.bad_key", message=message, hint=_HINT
    )
