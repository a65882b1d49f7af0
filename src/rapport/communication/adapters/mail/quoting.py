"""What a person wrote in a reply, without what the mail program added: quotations, the line before
them, signatures. Pure. [CO-16]

Wrong in doubt towards keeping: a line too many is read over, a word too few may be the answer.
"""

from __future__ import annotations

import re

_LONGEST_LINE = 2_000
_SIGNATURE = re.compile(r"--\s?\Z")
_FORWARDED = re.compile(
    r"\s*(-{2,}\s*(original message|ursprüngliche nachricht|forwarded message"
    r"|weitergeleitete nachricht|message d'origine|messaggio originale|mensaje original"
    r"|oorspronkelijk bericht)\s*-{2,}"
    r"|_{10,})\s*\Z",
    re.IGNORECASE,
)
_HEADER_LINE = re.compile(
    r"[\s*]*(from|von|de|da|van|sent|gesendet|envoyé|inviato|enviado|verzonden|to|an|à|a|aan|subject"
    r"|betreff|obj.t|oggetto|asunto|onderwerp|date|datum)\s*:[\s*]",
    re.IGNORECASE,
)
_DEVICE = re.compile(
    r"(sent from my|sent from outlook|get outlook for|von meinem .{1,40} gesendet|gesendet von"
    r"|envoyé de mon|inviato da|enviado desde|verstuurd vanaf)\b.{0,80}\Z",
    re.IGNORECASE,
)
_ATTRIBUTION = re.compile(
    r"(on|am|le|el|il|op|em|den)\b.*(wrote|schrieb.*|écrit|escribió|scritto|schreef.*|escreveu)\s*:\s*\Z"
    r"|.*(wrote|schrieb|a écrit|escribió|ha scritto|schreef)\s*:\s*\Z",
    re.IGNORECASE,
)
_MOST_ATTRIBUTION_LINES = 3


def reply_of(text: str) -> str:
    """The reply alone; empty when nothing but quotations is there.

    >>> reply_of("On my way!\\n\\nOn Mon, 2 Mar 2026 Rapport wrote:\\n> Guest 5 alone\\n")
    'On my way!'
    """
    lines = [line.rstrip()[:_LONGEST_LINE] for line in text.split("\n")]
    lines = lines[: _end_of_reply(lines)]
    kept: list[str] = []
    for number, line in enumerate(lines):
        if not line.startswith(">"):
            kept.append(line)
        elif number == 0 or not lines[number - 1].startswith(">"):
            _drop_attribution(kept)
    while kept and (not kept[-1] or _DEVICE.match(kept[-1])):
        kept.pop()
    return "\n".join(kept).strip("\n")


def _end_of_reply(lines: list[str]) -> int:
    """Where the signature or the unmarked copy of an older mail begins."""
    last = max((number for number, line in enumerate(lines) if line), default=0)
    for number, line in enumerate(lines):
        if _SIGNATURE.match(line) or _FORWARDED.match(line) or _is_header_block(lines, number):
            return number
        if number == last and _ATTRIBUTION.match(line):
            return number
    return len(lines)


def _is_header_block(lines: list[str], number: int) -> bool:
    """Three lines like `From: ...`, one after the other: an older mail without a mark."""
    block = lines[number : number + 3]
    return len(block) == 3 and all(_HEADER_LINE.match(line) for line in block)


def _drop_attribution(kept: list[str]) -> None:
    """Takes away the line, or what was broken into few, that says who wrote what is quoted."""
    while kept and not kept[-1]:
        kept.pop()
    for count in range(1, _MOST_ATTRIBUTION_LINES + 1):
        if len(kept) < count or not kept[-count]:
            return
        if _begins_attribution(" ".join(kept[-count:])):
            del kept[-count:]
            return


def _begins_attribution(text: str) -> bool:
    if not text.endswith(":") or not _ATTRIBUTION.match(text):
        return False
    return "@" in text or any(character.isdigit() for character in text) or len(text) < 100
