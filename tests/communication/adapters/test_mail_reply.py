"""What mails mean that come in: answers with and without proof, robots, strangers."""

from __future__ import annotations

from email.message import EmailMessage
from email.policy import SMTP

import pytest

from rapport.communication.adapters.input_base import RejectedInput
from rapport.communication.adapters.mail import make_mail
from rapport.communication.adapters.mail_parser import MailLimits, reply_of
from rapport.communication.adapters.mail_replies import (
    Bounce,
    MailContext,
    MailWithAttachments,
    meaning_of,
)
from rapport.communication.links import answer_link, answer_token, is_answer_token
from rapport.core.message import Identifier, Message
from rapport.testing.suites.adapter import make_delivery

SECRET = b"s" * 32
LIMITS = MailLimits()
DELIVERY = make_delivery("mail:ana@example.org", message="m-1", peer="ana")
SENT = make_mail(
    DELIVERY,
    sender="alarm@example.org",
    link=answer_link("http://node", SECRET, "m-1", "ana"),
    token=answer_token(SECRET, "m-1", "ana"),
)
KNOWN = MailContext(
    proves=lambda message, peer, token: is_answer_token(SECRET, message, peer, token),
    peer_of={"ana@example.org": "ana", "ben@example.org": "ben"}.get,
)


def reply(text="On my way!", *, sender="Ana <ana@example.org>", to=SENT["Message-ID"], **headers):
    mail = EmailMessage()
    mail["From"] = sender
    mail["To"] = "alarm@example.org"
    mail["Subject"] = "Re: Guest 5 alone in r1"
    mail["Message-ID"] = "<reply-1@example.org>"
    if to:
        mail["In-Reply-To"] = to
    mail.set_content(text)
    for name, value in headers.items():
        mail[name.replace("_", "-")] = value
    return mail


def meaning(mail, **options):
    return meaning_of(mail if isinstance(mail, bytes) else bytes(mail), KNOWN, LIMITS, **options)


def test_a_reply_to_a_mail_of_ours_is_the_answer_of_the_peer_it_was_sent_to():
    found = meaning(reply("On my way!\n\nOn Mon Rapport wrote:\n> Guest 5 alone\n"))
    assert isinstance(found, Message)
    assert (found.type, found.subtype) == ("ANSWER", "")
    assert found.sender == Identifier("peer", "ana")
    assert found.refers_to == "m-1"
    assert found.content == "On my way!"
    assert found.session_token == answer_token(SECRET, "m-1", "ana")
    assert found.id


def test_the_proof_counts_not_the_address_it_comes_from():
    found = meaning(reply(sender="somebody@elsewhere.example"))
    assert found.sender.name == "ana"
    assert found.session_token


def test_the_oldest_reference_counts_where_a_thread_has_gone_on():
    mail = reply(to="<another@example.org>", References=f"{SENT['Message-ID']} <x@y> <z@y>")
    assert meaning(mail).refers_to == "m-1"


def test_a_reply_whose_id_a_server_replaced_is_known_by_the_link_it_quotes():
    quoted = "".join(f"> {line}\n" for line in SENT.get_content().splitlines())
    found = meaning(reply(f"yes\n\nOn Mon Rapport wrote:\n{quoted}", to="<new-id@ses.example>"))
    assert (found.type, found.refers_to, found.sender.name) == ("ANSWER", "m-1", "ana")
    assert found.content == "yes"


@pytest.mark.parametrize("peer", ["jürgen", "a/b", "~x", "Ana Müller"])
def test_a_link_is_read_whatever_the_name_of_the_peer_it_was_made_for(peer):
    link = answer_link("http://node", SECRET, "m-1", peer)
    found = meaning(reply(f"Coming.\n\n> Please answer here: {link}\n", to=""))
    assert (found.sender, found.refers_to) == (Identifier("peer", peer), "m-1")


def test_a_forged_token_proves_nothing_but_the_address_still_says_who_it_claims_to_be():
    forged = SENT["Message-ID"].replace(answer_token(SECRET, "m-1", "ana"), "0" * 40)
    found = meaning(reply(to=forged, sender="ben@example.org"))
    assert found.sender.name == "ben"
    assert found.refers_to == "m-1"
    assert found.session_token == ""


def test_the_token_of_one_peer_does_not_serve_for_another():
    stolen = SENT["Message-ID"].replace(".ana.", ".ben.")
    found = meaning(reply(to=stolen, sender="eve@example.org"))
    assert isinstance(found, RejectedInput)
    assert found.code == "mail.unknown_sender"


def test_a_mail_of_a_peer_that_answers_nothing_is_a_message_with_its_subject():
    found = meaning(reply("All quiet.", to=""))
    assert (found.type, found.refers_to, found.session_token) == ("MAIL", "", "")
    assert found.content == "Re: Guest 5 alone in r1\n\nAll quiet."


def test_strangers_are_kept_aside_with_what_they_wrote():
    found = meaning(reply("Buy!", to="", sender="eve@example.org"))
    assert (found.code, found.sender) == ("mail.unknown_sender", "eve@example.org")
    assert found.text.strip() == "Buy!"


@pytest.mark.parametrize(
    "headers",
    [
        {"Auto_Submitted": "auto-replied"},
        {"Auto_Submitted": "auto-generated; x=1"},
        {"Precedence": "bulk"},
        {"X_Autoreply": "yes"},
        {"Return_Path": "<>"},
    ],
)
def test_automatic_replies_are_never_answers_whatever_they_prove(headers):
    found = meaning(reply("I am away until Monday.", **headers))
    assert isinstance(found, RejectedInput)
    assert found.code == "mail.automatic"


@pytest.mark.parametrize("subject", ["Automatic reply: Guest 5", "Abwesenheitsnotiz: Guest 5"])
def test_an_out_of_office_reply_that_only_its_subject_tells_is_no_answer(subject):
    mail = reply()
    mail.replace_header("Subject", subject)
    assert meaning(mail).code == "mail.automatic"


@pytest.mark.parametrize(
    ("sender", "subject"),
    [
        ("Ana <ana@example.org>", "Gone fishing"),
        ("Ana <ana@elsewhere.example>", "Automatic reply: Guest 5"),
    ],
)
def test_an_out_of_office_reply_with_a_telephone_number_is_no_bounce(sender, subject):
    """As servers write them: an empty path, and numbers that look like codes of a refusal."""
    text = "I have moved permanently. In urgent cases call +43 1 555 123."
    mail = reply(text, sender=sender, Return_Path="<>", Auto_Submitted="auto-generated")
    mail.replace_header("Subject", subject)
    raw = mail.as_bytes(policy=SMTP.clone(max_line_length=0))  # our id in one piece
    assert meaning(raw).code == "mail.automatic"


def test_a_person_who_says_so_is_not_taken_for_a_robot():
    assert isinstance(meaning(reply(Auto_Submitted="no")), Message)


def test_the_same_mail_has_the_same_id_and_another_text_another():
    assert meaning(reply("a")).id == meaning(reply("a", Received="by other")).id
    assert meaning(reply("a")).id != meaning(reply("b")).id


def test_the_same_words_without_a_message_id_are_another_mail_when_anything_else_differs():
    """Gateways leave the id out: "yes" to one question must not swallow the "yes" to the next."""
    at = "Mon, 02 Mar 2026 12:00:00 +0000"
    mails = [
        reply("yes", Date=at),
        reply("yes", Date=at, to="<other@example.org>"),
        reply("yes", Date=at.replace("12", "13")),
    ]
    for mail in mails:
        del mail["Message-ID"]
    assert len({meaning(mail).id for mail in mails}) == 3
    assert meaning(mails[0]).id == meaning(mails[0]).id


def test_an_address_that_stands_in_the_name_as_well_is_one_sender():
    found = meaning(reply(to="").as_bytes().replace(b"Ana <", b"ana@example.org <"))
    assert str(found.sender) == "peer:ana"


def test_several_senders_are_nobody():
    found = meaning(reply(sender="ana@example.org, eve@example.org", to=""))
    assert found.code == "mail.unknown_sender"


def test_html_alone_is_read_as_text_without_its_quotation():
    mail = reply("x")
    mail.set_content(
        "<html><head><style>p {}</style></head><body><p>On my&nbsp;way &amp; <b>fast</b></p>"
        "<script>evil()</script><div class='gmail_quote'>On Mon Rapport wrote:"
        "<blockquote>Guest 5</blockquote></div></body></html>",
        subtype="html",
    )
    assert meaning(mail).content == "On my way & fast"


def test_of_text_and_html_the_text_is_read_and_attachments_are_not():
    mail = reply("plain words")
    mail.add_alternative("<p>html words</p>", subtype="html")
    mail.add_attachment(b"\0" * 100, maintype="image", subtype="png", filename="x.png")
    found = meaning(mail)
    assert isinstance(found, MailWithAttachments)
    assert found.attachments == ("x.png",)
    assert found.message.content == "plain words\n\n[not kept: x.png]"


def test_signatures_and_pictures_that_the_text_shows_are_no_attachments():
    mail = reply("plain words")
    mail.add_alternative("<p>html words</p>", subtype="html")
    logo = mail.get_payload()[1]
    logo.add_related(b"\0" * 9, maintype="image", subtype="png", cid="<logo@example.org>")
    assert meaning(mail).content == "plain words"


def test_a_plain_part_that_is_empty_leaves_the_word_to_the_html():
    mail = reply(" \n")
    mail.add_alternative("<p>I come at once</p>", subtype="html")
    assert meaning(mail).content == "I come at once"


def test_the_language_of_a_mail_is_kept_when_it_is_one():
    assert meaning(reply(Content_Language="de-AT, en")).language == "de-AT"
    assert meaning(reply(Content_Language="<script>")).language == ""


REPLIES = {
    "yes\n\n-- \nAna\nEngineer": "yes",
    "yes\n\nSent from my iPhone": "yes",
    "> Guest 5?\nI see him.\n> Where?\nIn r1.": "I see him.\nIn r1.",
    "yes\n\nAm 02.03.2026 um 12:00 schrieb Rapport <a@b.org>:\n> x": "yes",
    "yes\n\nLe lun. 2 mars 2026 à 12:00, Rapport <a@b.org> a\nécrit :\n> x": "yes",
    "yes\n\n-----Original Message-----\nFrom: Rapport\nx": "yes",
    "yes\n\nFrom: Rapport\nSent: Monday\nTo: Ana\nSubject: x\n\nold": "yes",
    "yes\n\n________________________________\nFrom: Rapport\nold": "yes",
    "Two lines:\n\nfirst\nsecond": "Two lines:\n\nfirst\nsecond",
    "From: the north gate I see nobody": "From: the north gate I see nobody",
    "Note:\n> quoted": "Note:",
    "> only quoted": "",
    "": "",
}


@pytest.mark.parametrize("text", REPLIES)
def test_quotations_and_signatures_are_cut_and_nothing_else(text):
    assert reply_of(text) == REPLIES[text]


def bounce(state="failed", *, original=SENT, recipient="ana@example.org", code="5.1.1"):
    """A delivery status notification as Postfix writes it."""
    boundary = "b-1"
    copy = "".join(f"{name}: {value}\r\n" for name, value in original.items())
    return (
        "From: MAILER-DAEMON@mx.example.org\r\nTo: alarm@example.org\r\n"
        "Subject: Undelivered Mail Returned to Sender\r\nAuto-Submitted: auto-replied\r\n"
        f'Content-Type: multipart/report; report-type=delivery-status; boundary="{boundary}"\r\n'
        f"MIME-Version: 1.0\r\n\r\n--{boundary}\r\nContent-Type: text/plain\r\n\r\n"
        f"I'm sorry.\r\n--{boundary}\r\nContent-Type: message/delivery-status\r\n\r\n"
        "Reporting-MTA: dns; mx.example.org\r\n\r\n"
        f"Final-Recipient: rfc822; {recipient}\r\nAction: {state}\r\nStatus: {code}\r\n"
        f"Diagnostic-Code: smtp; 550 no such user\r\n\r\n--{boundary}\r\n"
        f"Content-Type: text/rfc822-headers\r\n\r\n{copy}\r\n--{boundary}--\r\n"
    ).encode()


def test_a_bounce_by_the_standard_names_delivery_address_and_reason():
    found = meaning(bounce())
    assert isinstance(found, Bounce)
    assert (found.message, found.peer, found.key) == ("m-1", "ana", DELIVERY.key)
    assert found.recipient == "ana@example.org"
    assert found.reason == "5.1.1 550 no such user"


@pytest.mark.parametrize("state", ["delayed", "delivered", "relayed"])
def test_a_notice_that_is_no_failure_fails_nothing(state):
    found = meaning(bounce(state))
    assert isinstance(found, RejectedInput)
    assert found.code == "mail.notice"


def test_a_bounce_of_a_mail_that_was_never_sent_counts_for_nothing():
    forged = make_mail(DELIVERY, sender="alarm@example.org", link="", token="0" * 40)
    assert meaning(bounce(original=forged)).code == "mail.bad_token"


def test_a_bounce_with_the_whole_mail_in_it_is_read_too():
    raw = bounce().replace(b"text/rfc822-headers", b"message/rfc822")
    assert isinstance(meaning(raw), Bounce)


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("Hi. This is qmail. 550 sorry, no mailbox here by that name.", "failed"),
        ("Your message could not be delivered.", "failed"),
        ("Warning: message delayed, still trying. 451", "delayed"),
    ],
)
def test_a_bounce_that_only_quotes_the_message_id_is_read_by_its_words(text, state):
    mail = EmailMessage()
    mail["From"] = "MAILER-DAEMON@qmail.example"
    mail["Subject"] = "notice"
    mail.set_content(f"{text}\n\n--- Below is a copy\nMessage-ID: {SENT['Message-ID']}\n")
    found = meaning(mail)
    if state == "failed":
        assert isinstance(found, Bounce)
        assert found.message == "m-1"
    else:
        assert found.code == "mail.notice"


def test_a_person_who_quotes_our_id_and_says_undeliverable_bounces_nothing():
    found = meaning(reply(f"it says undeliverable, 550 {SENT['Message-ID']}"))
    assert isinstance(found, Message)


def test_a_receipt_that_a_mail_was_read_is_neither_answer_nor_bounce():
    raw = bounce().replace(b"report-type=delivery-status", b"report-type=disposition-notification")
    assert meaning(raw).code == "mail.automatic"
