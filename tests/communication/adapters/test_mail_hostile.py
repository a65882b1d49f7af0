"""Mails made to harm: nothing raises, nothing takes long, each harms only itself."""

from __future__ import annotations

import time
from email.message import EmailMessage

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.communication.adapters.input_base import RejectedInput
from rapport.communication.adapters.mail_parser import MailLimits, reply_of, text_of_html
from rapport.communication.adapters.mail_replies import (
    Bounce,
    MailContext,
    MailWithAttachments,
    meaning_of,
)
from rapport.core.message import Message

ANYBODY = MailContext(
    proves=lambda message, peer, token: token == "0" * 40, peer_of=lambda address: "ana"
)
LIMITS = MailLimits()
SECONDS = 5
"""Far more than any of these may take, far less than those take that the limits keep out."""


def nested(depth):
    head = b"".join(
        b'Content-Type: multipart/mixed; boundary="b%d"\r\n\r\n--b%d\r\n' % (number, number)
        for number in range(depth)
    )
    return b"From: a@b.org\r\n" + head + b"Content-Type: text/plain\r\n\r\nhi\r\n"


def wrapped(depth):
    return b"From: a@b.org\r\n" + b"Content-Type: message/rfc822\r\n\r\n" * depth + b"hi"


def with_html(html):
    return b"From: a@b.org\r\nContent-Type: text/html\r\n\r\n" + html


BOMBS = {
    "deeply nested": nested(5_000),
    "same boundary again and again": b"From: a@b.org\r\n"
    + b'Content-Type: multipart/mixed; boundary="b"\r\n\r\n--b\r\n' * 10_000,
    "mails in mails": wrapped(20_000),
    "many small parts": b'From: a@b.org\r\nContent-Type: multipart/mixed; boundary="b"\r\n\r\n'
    + b"--b\r\n\r\nx\r\n" * 90_000,
    "boundaries in pieces": b"From: a@b.org\r\nContent-Type: multipart/mixed; boundary*0=a;"
    + b" boundary*1=b\r\n\r\n--ab\r\n\r\nx\r\n",
    "one endless header": b"From: a@b.org\r\nSubject: " + b"=?utf-8?q?x?= " * 60_000 + b"\r\n\r\n",
    "many references": b"From: a@b.org\r\nReferences: " + b"<a@b>" * 190_000 + b"\r\n\r\nx",
    "addresses without end": b"From: " + b"(" * 500_000 + b"\r\n\r\nx",
    "many headers": b"X-A: b\r\n" * 120_000 + b"\r\nx",
    "open tags": with_html(b"<div>" * 150_000),
    "open comments": with_html(b"<!--" * 200_000),
    "open declarations": with_html(b"<![" * 250_000),
    "broken tags": with_html(b"<a " * 250_000),
    "unclosed attributes": with_html(b"<a x='" * 150_000),
    "references without end": with_html(b"&#" * 400_000),
    "closing what is not open": with_html(b"</p>" * 200_000),
    "quotations": b"From: a@b.org\r\n\r\n" + b"> x\r\n:\r\n" * 100_000,
    "wrote": b"From: a@b.org\r\n\r\n" + b"on wrote: " * 90_000,
    "attributions": b"From: a@b.org\r\n\r\n" + b"On x wrote:\r\n" * 70_000,
    "blanks": b"From: a@b.org\r\n\r\n" + b" " * 900_000 + b"-- x",
    "underscores": b"From: a@b.org\r\n\r\n" + b"_" * 900_000 + b"x",
    "punycode": b"From: a@b.org\r\nContent-Type: text/plain; charset=punycode\r\n\r\n"
    + b"a-" * 400_000,
    "idna": b"From: a@b.org\r\nContent-Type: text/plain; charset=idna\r\n\r\n" + b"xn--" * 200_000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_mail_made_to_cost_much_costs_little(name):
    raw = BOMBS[name][:1_000_000]
    began = time.monotonic()
    found = meaning_of(raw, ANYBODY, LIMITS)
    assert time.monotonic() - began < SECONDS
    assert isinstance(found, Message | RejectedInput | Bounce)


@pytest.mark.parametrize("name", ["deeply nested", "mails in mails", "many small parts"])
def test_mime_bombs_are_kept_aside_and_say_why(name):
    found = meaning_of(BOMBS[name][:1_000_000], ANYBODY, LIMITS)
    assert isinstance(found, RejectedInput)
    assert found.code == "mail.too_many_parts"


@pytest.mark.parametrize("charset", ["utf-9", "hex", "zlib", "undefined", "idna", "x" * 500, "\\"])
def test_a_charset_that_lies_leaves_readable_what_is_readable(charset):
    raw = (
        f'From: a@b.org\r\nContent-Type: text/plain; charset="{charset}"\r\n\r\non my way \u00e9'
    ).encode()
    found = meaning_of(raw, ANYBODY, LIMITS)
    assert isinstance(found, Message)
    assert "on my way \u00e9" in found.content


def test_bytes_that_do_not_fit_their_charset_are_marked():
    raw = b"From: a@b.org\r\nContent-Type: text/plain; charset=utf-8\r\n\r\nyes \xff\xfe"
    assert "yes \ufffd" in meaning_of(raw, ANYBODY, LIMITS).content


def test_a_text_that_was_cut_is_no_answer_and_one_before_a_cut_attachment_is():
    alone = b"From: a@b.org\r\n\r\nthe beginning of"
    assert meaning_of(alone, ANYBODY, LIMITS, cut=True).code == "mail.too_long"
    mail = EmailMessage()
    mail["From"] = "a@b.org"
    mail.set_content("on my way")
    mail.add_attachment(b"x" * 10_000, maintype="image", subtype="png", filename="x.png")
    found = meaning_of(bytes(mail)[:5_000], ANYBODY, LIMITS, cut=True)
    assert "on my way" in found.message.content
    assert found.attachments == ("x.png",)


pieces = st.sampled_from(
    [
        b"From: a@b.org\r\n",
        b"From: \xff\xfe <\r\n",
        b"Content-Type: multipart/report; report-type=delivery-status; boundary=b\r\n",
        b"Content-Type: multipart/mixed; boundary=\r\n",
        b"Content-Type: multipart/alternative; boundary=b\r\n",
        b"Content-Type: message/rfc822\r\n",
        b"Content-Type: message/delivery-status\r\n",
        b"Content-Type: text/html; charset=utf-16\r\n",
        b"Content-Type: text/plain; charset*=utf-8''x\r\n",
        b"Content-Type: ;;;=\r\n",
        b"Content-Transfer-Encoding: base64\r\n",
        b"Content-Transfer-Encoding: x-uuencode\r\n",
        b"Content-Disposition: attachment; filename*0*=x\r\n",
        b"Subject: =?utf-8?b?////?= =?x?q?=ff?=\r\n",
        b"References: <" + b"0" * 32 + b".m.p." + b"0" * 40 + b"@rapport.invalid>\r\n",
        b"Action: failed\r\nStatus: 5.0.0\r\n",
        b"Auto-Submitted: no\r\n",
        b"Return-Path: <>\r\n",
        b"\r\n",
        b"--b\r\n",
        b"--b--\r\n",
        b"<blockquote><p>&#x110000;</div>\r\n",
        b"begin 644 x\r\nend\r\n",
        b"> quoted\r\n",
        b"550 undeliverable\r\n",
    ]
)
mails = st.lists(pieces | st.binary(max_size=40), max_size=40).map(b"".join)


@given(mails, st.booleans())
def test_no_mail_whatsoever_raises(raw, cut):
    found = meaning_of(raw, ANYBODY, LIMITS, cut=cut)
    assert isinstance(found, Message | RejectedInput | Bounce | MailWithAttachments)
    if isinstance(found, MailWithAttachments):
        assert all(name.isprintable() and len(name) <= 100 for name in found.attachments)
        found = found.message
    if isinstance(found, Message):
        assert "\r" not in found.content
        found.to_json()
    if isinstance(found, RejectedInput):
        assert not found.reason.startswith("the mail cannot be read (Assert")


@given(st.text(max_size=500))
def test_no_text_stops_the_cutting_of_quotations(text):
    assert len(reply_of(text)) <= len(text) + 1


@given(st.text(alphabet="<>/&;#!-=\"' abdiv", max_size=200))
def test_no_html_stops_the_reading(html):
    assert "<script" not in text_of_html(html)
