"""Pages for people: HTML templates, and the static files that may be served. [UX-6]

Templates escape every value (autoescape).
"""

from __future__ import annotations

import re
from functools import cache, partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rapport.communication.ledger_rows import MessageRow
from rapport.communication.texts import (
    DEFAULT_READER,
    TextReader,
    shown_kind,
    shown_moment,
    shown_sender,
    shown_text,
)
from rapport.core.errors import UnknownName
from rapport.core.message import CONTROL
from rapport.core.times import format_time
from rapport.web.page_texts import translated

_DIGEST = re.compile(r"[0-9a-f]{32}")
_STATIC = Path(__file__).parent / "static"
_SERVED = {
    "rapport.css": "text/css",
    "inbox.js": "text/javascript",
    "inbox-worker.js": "text/javascript",
    "offline.html": "text/html",
    "icon-192.png": "image/png",
    "icon-512.png": "image/png",
}
SERVICE_WORKER = "inbox-worker.js"


def render(name: str, reader: TextReader = DEFAULT_READER, **values: Any) -> str:
    """The page of a template in the language and zone of a reader; values are escaped. Templates
    have `t` for their own texts, and functions of `reader` for messages and times.
    """
    helpers = {
        "t": partial(translated, reader.language),
        "language": reader.language,
        "moment": partial(shown_moment, reader=reader),
        "text_of": partial(message_text, reader=reader),
        "sender_of": partial(message_sender, reader=reader),
        "about": partial(about_message, reader=reader),
    }
    return _environment().get_template(name).render(helpers | values)


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
    environment.globals["format_time"] = format_time
    return environment


def message_facts(row: MessageRow, reader: TextReader) -> dict[str, str]:
    """Sender, kind, conversation and date of a message by label; empty ones are left out."""
    facts = {
        "From": message_sender(row, reader),
        "Kind": _kind(row, reader),
        "Conversation": named_conversation(row.conversation),
        "Date": shown_moment(row.time, reader) if row.time else "",
    }
    return {translated(reader.language, name): value for name, value in facts.items() if value}


def message_sender(row: MessageRow, reader: TextReader) -> str:
    """The sender of a message: a person or application by name, a policy as such."""
    shown = shown_sender(row.sender, row.policy)
    if row.policy and shown == f"policy {row.policy}":
        return translated(reader.language, "policy {name}", name=row.policy)
    return shown


def message_text(row: MessageRow, reader: TextReader) -> str:
    """The text of a message; a delivery report is a sentence in the reader's language."""
    text = shown_text(row.type, row.subtype, row.text)
    if row.type != CONTROL:
        return text
    report, colon, reason = text.partition(": ")
    if not row.text:
        return f"{translated(reader.language, text.removesuffix('.'))}."
    return f"{translated(reader.language, report)}{colon}{reason}"


def _kind(row: MessageRow, reader: TextReader) -> str:
    """The kind of a message, its usual words in the reader's language."""
    parts = shown_kind(row.type, row.subtype).split(": ")
    return ": ".join(translated(reader.language, part) for part in parts)


def named_conversation(conversation: str) -> str:
    """The conversation's name; empty for the digest that the node gives one of its own.

    >>> named_conversation("drill of May"), named_conversation("9f458dbe35c8742a9f89aef004ea5c16")
    ('drill of May', '')
    """
    return "" if _DIGEST.fullmatch(conversation) else conversation


def about_message(row: MessageRow, reader: TextReader) -> list[str]:
    """Sender, kind and conversation, for one line."""
    name = named_conversation(row.conversation)
    conversation = translated(reader.language, "conversation {name}", name=name) if name else ""
    parts = (message_sender(row, reader), _kind(row, reader), conversation)
    return [part for part in parts if part]
