"""Mails by which the world's mail servers say that a mail did not arrive. Pure. [CO-10, CO-16]

By the standard (RFC 3464) and as older servers write them. A bounce counts only when it names a
Message-ID of ours whose token is right: who made it has seen the mail.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.message import Message as ParsedMail
from typing import Literal

import msgspec

from rapport.communication.adapters.mail.ids import DOMAIN, SentMail, read_message_id
from rapport.communication.adapters.mail.limits import MailLimits
from rapport.communication.adapters.mail.parsing import (
    automatic_subject,
    decoded_text,
    header,
    inner_of,
    leaves_of,
)
from rapport.communication.templates import clean
from rapport.core.errors import InvalidInput

BounceState = Literal["failed", "delayed", "delivered"]

_OURS = re.compile(rf"<([^<>\s]{{1,500}}@{re.escape(DOMAIN)})>")
_ROBOTS = ("mailer-daemon", "postmaster", "mail-daemon", "mailerdaemon")
_CODE = re.compile(r"\b([245])(?:\.\d{1,3}\.\d{1,3}|\d\d)\b")
_FOR_GOOD = re.compile(
    r"undeliver|could ?n[o']t be delivered|delivery.{0,30}fail|failed.{0,30}deliver|permanent"
    r"|user unknown|unknown user|no such (user|person|mailbox)|does not exist|unzustellbar",
    re.IGNORECASE,
)
_NOT_YET = re.compile(r"delayed|still trying|will (be )?retr|warning", re.IGNORECASE)
_LONGEST_REASON = 300


class BounceNotice(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says about one mail of ours."""

    mail: SentMail
    state: BounceState
    reason: str
    recipient: str = ""
    """The address it is about, without `mail:`; empty when it does not say."""


def read_bounce(
    tree: ParsedMail, sender: str, limits: MailLimits, *, is_peer: bool = False
) -> BounceNotice | None:
    """What the mail says about a mail of ours, None when it is no such notice.

    The token of what it names is not checked here. `is_peer`: the sender is one we write to.
    """
    if not _is_from_a_server(tree, sender, limits, is_peer=is_peer):
        return None
    mail = next(_named(tree, limits), None)
    if mail is None:
        return None
    for fields in _status_blocks(tree):
        if notice := _by_standard(fields, mail, limits):
            return notice
    return _by_words(tree, mail, limits)


def _is_from_a_server(tree: ParsedMail, sender: str, limits: MailLimits, *, is_peer: bool) -> bool:
    """An out-of-office reply has an empty path, too, and telephone numbers look like codes: it
    comes from who was written to, or says what it is.
    """
    if tree.get_content_type() == "multipart/report":
        report = str(tree.get_param("report-type", "delivery-status")).lower()
        return report == "delivery-status"
    empty_path = "".join(str(tree.get("Return-Path", "")).split()) == "<>"
    automatic = header(tree, "Auto-Submitted", limits).lower()
    robot = sender.partition("@")[0] in _ROBOTS or bool(tree.get("X-Failed-Recipients"))
    is_reply = is_peer or automatic.startswith("auto-replied")
    if robot or is_reply or not empty_path:
        return robot
    return not automatic_subject(header(tree, "Subject", limits))


def _named(tree: ParsedMail, limits: MailLimits) -> Iterator[SentMail]:
    """Our Message-IDs in the mail: in the copy of what was sent, in references, in its text."""
    texts = [str(tree.get("References", "")), str(tree.get("In-Reply-To", ""))]
    for leaf in leaves_of(tree, limits):
        if leaf.is_multipart():
            texts += [str(one.get("Message-ID", "")) for one in inner_of(leaf)]
        elif leaf.get_content_maintype() in ("text", "message"):
            texts.append(_readable(leaf, limits))
    for text in texts:
        for found in _OURS.findall("".join(text[: limits.text].split("\r\n "))):
            if mail := read_message_id(found):
                yield mail


def _status_blocks(tree: ParsedMail) -> Iterator[ParsedMail]:
    """The groups of fields in `message/delivery-status`, one per recipient."""
    for part in inner_of(tree):
        if part.get_content_type() == "message/delivery-status":
            yield from inner_of(part)


def _by_standard(fields: ParsedMail, mail: SentMail, limits: MailLimits) -> BounceNotice | None:
    action = header(fields, "Action", limits).strip().lower()
    states: dict[str, BounceState] = {
        "failed": "failed",
        "delayed": "delayed",
        "delivered": "delivered",
        "relayed": "delivered",
        "expanded": "delivered",
    }
    if action not in states:
        return None
    said = header(fields, "Diagnostic-Code", limits).partition(";")[2].strip()
    reason = " ".join(part for part in (header(fields, "Status", limits), said) if part)
    recipient = header(fields, "Final-Recipient", limits) or header(
        fields, "Original-Recipient", limits
    )
    return BounceNotice(
        mail=mail,
        state=states[action],
        reason=_shown(reason or action),
        recipient=recipient.partition(";")[2].strip().lower(),
    )


def _by_words(tree: ParsedMail, mail: SentMail, limits: MailLimits) -> BounceNotice | None:
    """A server that does not follow the standard: its subject and text, up to our own mail."""
    texts = [header(tree, "Subject", limits)]
    texts += [
        _readable(leaf, limits)
        for leaf in leaves_of(tree, limits)
        if leaf.get_content_type() == "text/plain"
    ]
    said = "\n".join(texts).partition(f"@{DOMAIN}")[0][:20_000]
    code = _CODE.search(said)
    for_good = bool(_FOR_GOOD.search(said)) or (code is not None and code[1] == "5")
    if not for_good and not _NOT_YET.search(said):
        return None
    state: BounceState = "failed" if for_good else "delayed"
    recipient = header(tree, "X-Failed-Recipients", limits).split(",")[0].strip().lower()
    line = next((line for line in said.splitlines() if code and code[0] in line), texts[0])
    return BounceNotice(mail=mail, state=state, reason=_shown(line), recipient=recipient)


def _readable(part: ParsedMail, limits: MailLimits) -> str:
    """A part's text; one that cannot be read names nothing."""
    try:
        return decoded_text(part, limits)
    except InvalidInput:
        return ""


def _shown(text: str) -> str:
    return " ".join(clean(text).split())[:_LONGEST_REASON]
