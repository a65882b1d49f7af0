"""Pages as plain files: a tiny template step, and a fixed list of static files that may be served.
[UX-6]

What pages say about a message beside its text: sender, kind, conversation, date. Pure. [UX-6]
"""

from __future__ import annotations

from functools import cache
from html import escape
from pathlib import Path
from string import Template

from rapport.communication.history.ledger import MessageRow
from rapport.communication.wording import shown_kind, shown_sender, shown_time
from rapport.core.errors import UnknownName
from rapport.core.times import format_time

_STATIC = Path(__file__).parent / "static"
_SERVED = {
    "rapport.css": "text/css",
    "rapport.js": "text/javascript",
    "inbox.js": "text/javascript",
    "map.js": "text/javascript",
    "map.css": "text/css",
}


def render(name: str, **values: str) -> str:
    """The page with its `$names` filled in; values must be escaped by the caller."""
    body = _template(name).substitute(values)
    return _template("frame.html").substitute(title=values.get("title", "Rapport"), body=body)


def static_file(name: str) -> tuple[bytes, str]:
    """Bytes and media type of a served file; raises UnknownName for anything else."""
    if name not in _SERVED:
        raise UnknownName("file", name, list(_SERVED), code="http.not_found")
    return (_STATIC / name).read_bytes(), _SERVED[name]


@cache
def _template(name: str) -> Template:
    return Template((_STATIC / name).read_text(encoding="utf-8"))


def message_facts(row: MessageRow, zone: str) -> dict[str, str]:
    """The facts by what each is called; what nobody said is left out."""
    facts = {
        "From": shown_sender(row.sender, row.policy),
        "Kind": shown_kind(row.type, row.subtype),
        "Conversation": row.conversation,
        "Date": shown_time(row.time, zone) if row.time else "",
    }
    return {name: value for name, value in facts.items() if value}


def message_lines(row: MessageRow, zone: str) -> str:
    """The facts as a list of HTML."""
    lines = "".join(
        f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>"
        for name, value in message_facts(row, zone).items()
    )
    return f'<dl class="facts">{lines}</dl>' if lines else ""


def about_message(row: MessageRow) -> list[str]:
    """Sender, kind and conversation, for one line."""
    conversation = f"conversation {row.conversation}" if row.conversation else ""
    kind = shown_kind(row.type, row.subtype)
    return [part for part in (shown_sender(row.sender, row.policy), kind, conversation) if part]


def time_element(time_ms: int, zone: str) -> str:
    """A time on the reader's clock, with the exact moment for programs."""
    if not time_ms:
        return "<time></time>"
    return f'<time datetime="{format_time(time_ms)}">{escape(shown_time(time_ms, zone))}</time>'
