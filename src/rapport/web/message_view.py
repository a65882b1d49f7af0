"""What pages say about a message beside its text: sender, kind, conversation, date. Pure. [UX-6]"""

from __future__ import annotations

from html import escape

from rapport.communication.ledger_rows import MessageRow
from rapport.communication.presentation import shown_kind, shown_sender, shown_time
from rapport.core.times import format_time


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
