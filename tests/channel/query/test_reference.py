"""The reference of queries says what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rapport.channel.query.query_kinds import make_query
from rapport.channel.requests.request import Batch, Request

ROOT = Path(__file__).parents[3]
REFERENCE = (ROOT / "docs" / "reference" / "queries.md").read_text(encoding="utf-8")
CODE = re.compile(r'"((?:query|request|token)\.[a-z_]+)"')


@pytest.mark.parametrize("text", re.findall(r"```sql\n(.*?)```", REFERENCE, re.DOTALL))
def test_the_conditions_parse(text: str) -> None:
    assert make_query("", text).text


@pytest.mark.parametrize("text", re.findall(r"```json\n(.*?)```", REFERENCE, re.DOTALL))
def test_the_templates_parse(text: str) -> None:
    assert make_query("", json.loads(text)).text


def test_every_error_code_is_listed_and_no_other() -> None:
    sources = [
        source
        for room in ("query", "requests", "agents")
        for source in (ROOT / "src/rapport/channel" / room).rglob("*.py")
    ]
    used = {code for source in sources for code in CODE.findall(source.read_text())}
    listed = set(re.findall(r"^\| `((?:query|request|token)\.[a-z_]+)`", REFERENCE, re.MULTILINE))
    assert listed == used - {"query.invalid"}


def test_every_field_is_described() -> None:
    for field in (*Request.__struct_fields__, *Batch.__struct_fields__):
        assert f"`{field}`" in REFERENCE
