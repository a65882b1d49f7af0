"""Pages for people: HTML templates, and the static files that may be served. [UX-6]

Templates escape every value (autoescape).
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rapport.communication.ledger_rows import MessageRow
from rapport.communication.texts import shown_kind, shown_sender, shown_text, shown_time
from rapport.core.errors import UnknownName
from rapport.core.times import format_time

_DIGEST = re.compile(r"[0-9a-f]{32}")
_STATIC = Path(__file__).parent / "static"
_SERVED = {
    "rapport.css": "text/css",
    "inbox.js": "text/javascript",
}


def render(name: str, **values: Any) -> str:
    """The page of a template; values are escaped."""
    return _environment().get_template(name).render(values)


def static_file(name: str) -> tuple[bytes, str]:
    """Bytes and media type of a served file; raises UnknownName for anything else."""
    if name not in _SERVED:
        raise UnknownName("file", name, list(_SERVED), code="http.not_found")
    return (_STATIC / name).read_bytes(), _SERVED[name]


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_STATIC),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    functions = (about_message, format_time, shown_sender, shown_text, shown_time)
    environment.globals.update({one.__name__: one for one in functions})
    return environment


def message_facts(row: MessageRow, zone: str) -> dict[str, str]:
    """Sender, kind, conversation and date of a message by label; empty ones are left out."""
    facts = {
        "From": shown_sender(row.sender, row.policy),
        "Kind": shown_kind(row.type, row.subtype),
        "Conversation": named_conversation(row.conversation),
        "Date": shown_time(row.time, zone) if row.time else "",
    }
    return {name: value for name, value in facts.items() if value}


def named_conversation(conversation: str) -> str:
    """The conversation's name; empty for the digest that the node gives one of its own.

    >>> named_conversation("drill of May"), named_conversation("9f458dbe35c8742a9f89aef004ea5c16")
    ('drill of May', '')
    """
    return "" if _DIGEST.fullmatch(conversation) else conversation


def about_message(row: MessageRow) -> list[str]:
    """Sender, kind and conversation, for one line."""
    name = named_conversation(row.conversation)
    conversation = f"conversation {name}" if name else ""
    kind = shown_kind(row.type, row.subtype)
    return [part for part in (shown_sender(row.sender, row.policy), kind, conversation) if part]
