"""docs/reference/context-protocol.md is true: its bytes are read, its table has every field."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from rapport.context import protocol as v1
from rapport.context.protocol import decode, encode
from rapport.context.v0.v0_protocol import V0Message, read, write

PAGE = (Path(__file__).parents[3] / "docs/reference/context-protocol.md").read_text()


def block(language: str) -> list[str]:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1].splitlines()


@pytest.mark.parametrize("line", block("v0"))
def test_every_line_of_v0_is_read_and_written(line: str) -> None:
    assert write(read(line.encode())) == line.encode()


def test_the_lines_of_v0_show_every_message() -> None:
    assert {type(read(line.encode())) for line in block("v0")} == set(get_args(V0Message))


@pytest.mark.parametrize("line", block("v1"))
def test_every_line_of_v1_is_read_and_written(line: str) -> None:
    written = encode(decode(bytes.fromhex(line)))
    # Fields at the end may be left out; we write them all.
    assert written == bytes.fromhex(line)


def test_the_table_of_v1_has_every_message_with_every_field() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| [^|]+ \| `([^`]+)` \|$", PAGE, re.MULTILINE)
    told = {name: (tag, fields.split()) for tag, name, fields in rows}
    known = {
        kind.__name__: (
            kind.__struct_config__.tag,
            [field.name for field in msgspec.structs.fields(kind)],
        )
        for kind in get_args(v1.Message)
    }
    assert told == known


def test_every_status_has_a_row() -> None:
    for code in v1.MEANINGS:
        assert f"\n| {code} | " in PAGE
