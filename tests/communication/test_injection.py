"""Hostile names and contents on every way out: none adds a header, a line, a tag, a formula, a file
elsewhere or a command to a terminal.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
from email import message_from_bytes
from email.policy import default
from html.parser import HTMLParser

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rapport.channel.mqtt.bridge import is_topic
from rapport.cli import ledger
from rapport.cli.output import visible
from rapport.communication.adapters.apprise import notice
from rapport.communication.adapters.base import Confirmed, Delivery, Failed, Sent, delivery_json
from rapport.communication.adapters.folder import FolderAdapter, FolderSettings, file_name
from rapport.communication.adapters.mail import MailAdapter, MailSettings, make_mail
from rapport.communication.adapters.webhook import WebhookAdapter, WebhookSettings, webhook_body
from rapport.communication.arrival_checks import ArrivalSettings, shape_fault
from rapport.communication.ledger_rows import LedgerRow, MessageRow
from rapport.communication.links import answer_link, answer_token
from rapport.communication.peers import adapter_of, shown_address
from rapport.communication.texts import TextReader, fill_template
from rapport.core.detection import Detection
from rapport.core.message import Identifier, Message
from rapport.scenarios.mail_server import LocalMailServer
from rapport.scenarios.webhook_sink import WebhookSink

HOSTILE = (
    "a\r\nBcc: all@example.org",
    "a\n\nSecond body",
    "x\0y",
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>'",
    "{A} {0.__class__} {} %s $peer ${peer}",
    "=cmd|' /C calc'!A0",
    "@SUM(1)",
    "\x1b]0;owned\x07\x1b[2J\x9b31m",
    "\u202egnp.exe\u2066",
    "../../etc/passwd",
    "..\\..\\x",
    "/etc/passwd",
    "a/b#c?d=e&f",
    "#+/$SYS",
    "\u2028\u2029\x85\x0b\x0c",
    "x" * 5_000,
    "",
    "\ud800",
)
WITHOUT_HALVES = tuple(text for text in HOSTILE if "\ud800" not in text)

pieces = st.sampled_from(WITHOUT_HALVES) | st.text(max_size=20)
texts = st.lists(pieces, max_size=4).map("".join)
deliveries = st.builds(
    Delivery,
    message=texts,
    peer=texts,
    address=st.just("mail:ana@example.org"),
    attempt=st.just(1),
    text=texts,
    policy=texts,
    detection=texts,
    sender=texts,
    type=texts,
    conversation=texts,
    language=texts,
    refers_to=texts,
    urgent=st.booleans(),
)
EXPECTED_HEADERS = {
    *("From", "To", "Subject", "Date", "Message-ID", "Auto-Submitted", "X-Rapport-Message"),
    *("Importance", "Content-Type", "Content-Transfer-Encoding", "MIME-Version", "Reply-To"),
}


def hostile(text, *, address="mail:ana@example.org", **changes):
    fields = dict.fromkeys(("policy", "detection", "sender", "type", "conversation"), text)
    fields |= {"message": text, "peer": text, "text": text} | changes
    return Delivery(address=address, attempt=1, **fields)


# --- mail ---


@pytest.mark.slow
@given(deliveries, texts)
def test_no_field_of_a_delivery_adds_a_header_or_a_part_to_a_mail(delivery, link):
    mail = make_mail(delivery, sender="r@example.org", link=link, reply_to="r@example.org")
    read = message_from_bytes(mail.as_bytes(), policy=default)
    assert set(read.keys()) <= EXPECTED_HEADERS
    assert len(read.keys()) == len(set(read.keys()))
    assert not read.is_multipart()
    assert read.get_content_type() == "text/plain"


def test_a_mail_server_gets_one_mail_to_one_person_whatever_the_message_says():
    async def scenario():
        async with LocalMailServer() as server:
            settings = MailSettings(host="127.0.0.1", port=server.port, sender="r@example.org")
            adapter = MailAdapter(settings, lambda *_names: "")
            for number, text in enumerate(HOSTILE):
                outcome = await adapter.send(hostile(text, message=f"{number}{text}"))
                assert isinstance(outcome, (Sent, Failed)), text
            await adapter.close()
            assert server.mails
            for mail, recipients in zip(server.mails, server.recipients, strict=True):
                assert recipients == ["ana@example.org"]
                assert set(mail.keys()) <= EXPECTED_HEADERS
                assert not mail.get_all("Bcc")
                assert "\n" not in mail["Subject"]
            # An address cannot smuggle in a second one, nor a command.
            before = len(server.mails)
            for target in ("a@b.c\r\nRCPT TO:<x@y.z>", "a@b.c, x@y.z", "a@b.c>\r\nDATA", "\0@b"):
                outcome = await adapter.send(hostile("x", address=f"mail:{target}"))
                assert isinstance(outcome, Failed)
                assert not outcome.retry
            assert len(server.mails) == before

    asyncio.run(scenario())


# --- webhook ---


def test_a_webhook_gets_one_request_with_our_headers_alone_whatever_the_message_says():
    async def scenario():
        async with WebhookSink() as sink:
            adapter = WebhookAdapter(WebhookSettings(secret="s" * 20), lambda *_names: "")
            for text in WITHOUT_HALVES:
                outcome = await adapter.send(hostile(text, address=f"webhook:{sink.url}"))
                assert isinstance(outcome, Confirmed), text
            assert len(sink.posted) == len(WITHOUT_HALVES)
            for request, text in zip(sink.posted, WITHOUT_HALVES, strict=True):
                assert request.path == "/hook"
                assert not {"bcc", "x-evil"} & set(request.headers)
                assert json.loads(request.body)["data"]["text"] == text
                assert request.headers["idempotency-key"].isalnum()
            for path in ("\r\nX-Evil: 1", " HTTP/1.1\r\nX-Evil: 1\r\n\r\nGET /x", "\0", "\u202e"):
                await adapter.send(hostile("x", address=f"webhook:{sink.url}{path}"))
            for request in sink.posted:
                assert "x-evil" not in request.headers
                assert request.path.startswith("/hook")
            await adapter.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "target",
    ["", "file:///etc/passwd", "gopher://x", "//x", "http://", "http://[::1", "javascript:1"],
)
def test_an_address_that_is_no_web_address_fails_for_good(target):
    async def scenario():
        adapter = WebhookAdapter(WebhookSettings(), lambda *_names: "")
        outcome = await adapter.send(hostile("x", address=f"webhook:{target}"))
        await adapter.close()
        assert outcome == Failed("the address cannot be used", retry=False)

    asyncio.run(scenario())


# --- JSON, topics, files, links ---


@given(deliveries)
def test_what_machines_get_is_json_that_says_the_same(delivery):
    assert json.loads(delivery_json(delivery, ""))["content"] == delivery.text
    assert json.loads(webhook_body(delivery, ""))["data"]["text"] == delivery.text
    assert notice(delivery, "") == delivery.text


@given(texts)
def test_a_topic_with_something_to_hide_is_none(text):
    if is_topic(text):
        assert not set(text) & set("#+\0")
        assert text.isprintable()


@given(deliveries)
def test_a_file_is_named_by_letters_and_digits_alone(delivery):
    stem, _, ending = file_name(delivery).partition(".")
    assert ending == "json"
    assert stem.replace("-", "").replace("_", "").isalnum()
    assert len(stem) <= 100


def test_hostile_messages_stay_in_their_folder(tmp_path):
    (tmp_path / "out").mkdir()
    settings = FolderSettings(folders={"alarms": str(tmp_path / "out")})

    async def scenario():
        adapter = FolderAdapter(settings)
        for text in WITHOUT_HALVES:
            outcome = await adapter.send(hostile(text, address="folder:alarms"))
            assert isinstance(outcome, Sent), text
            assert isinstance(await adapter.send(hostile("x", address=f"folder:{text}")), Failed)

    asyncio.run(scenario())
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]
    written = [json.loads(path.read_bytes())["content"] for path in (tmp_path / "out").iterdir()]
    assert sorted(written) == sorted(WITHOUT_HALVES)


@given(texts, texts)
def test_no_name_changes_where_an_answer_link_leads(message, peer):
    secret = b"s" * 32
    link = answer_link("https://node.example", secret, message, peer)
    path = link.removeprefix("https://node.example/answer/")
    assert path != link
    assert path.count("/") == 2
    assert path.isascii()
    assert path.isprintable()
    assert not set(path) & set(" <>\"'?#\\")
    assert path.endswith(answer_token(secret, message, peer))


# --- texts of policies ---


@given(texts)
def test_what_stands_in_for_an_alias_is_neither_filled_in_nor_a_line(value):
    detection = Detection(policy="p", time=0, bindings={"A": value, "R": "secret"}, causes=())
    filled = fill_template("guest {A}.", detection)
    assert "secret" not in filled or "secret" in value
    assert filled.isprintable()


@pytest.mark.parametrize("text", HOSTILE)
def test_a_message_is_taken_as_it_is_or_refused_with_a_code(text):
    message = Message(
        type="T", subtype="S", sender=Identifier("component", "app"), id="m", content=text
    )
    fault = shape_fault(message, ArrivalSettings())
    if fault is not None:
        assert fault.code
    else:
        assert Message.from_event(message.to_event(source="app", time=0)).content == text


# --- pages ---


class Seen(HTMLParser):
    """Every tag and attribute of a page."""

    def __init__(self):
        super().__init__()
        self.tags, self.attributes = [], set()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes.update(name for name, _ in attributes)


@given(texts, texts)
def test_the_answer_page_has_the_same_tags_whatever_it_shows(peer, text):
    from rapport.web.api.answers import answer_page, answered_page

    def pages_of(peer: str, text: str) -> tuple[str, ...]:
        row = MessageRow(
            message="m1",
            text=text,
            sender=f"component:x{text}",
            type=f"x{text}",
            subtype=text,
            conversation=f"x{text}",
            time=1_772_452_800_000,
            answered_by=f"another than {peer} {text}",
            state="closed",
        )
        return (
            answer_page(peer, row, None, reader=TextReader("Europe/Vienna")),
            answered_page(peer, row, text, is_new=True),
            answered_page(peer, row, text, is_new=False),
        )

    pages = zip(pages_of(peer, text), pages_of("ana", "look"), strict=True)
    for hostile_one, harmless in pages:
        shown, plain = Seen(), Seen()
        shown.feed(hostile_one)
        plain.feed(harmless)
        assert shown.tags == plain.tags
        assert shown.attributes == plain.attributes


# --- spreadsheets and terminals ---


def row_of(text):
    return LedgerRow(
        message=text or "m",
        peer=text,
        address=text,
        adapter=text,
        state="answered",
        time=0,
        attempt=1,
        reason=text,
        answer=text,
        until=0,
        policy=text,
        detection=text,
        receiver=text,
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts)
@example("=1+1")
@example("\t=1+1")
@example("a\r=1+1")
@example("＝1+1")
def test_a_spreadsheet_finds_no_formula_in_the_ledger(monkeypatch, text):
    written = []
    monkeypatch.setattr(ledger, "write_bytes", written.append)
    row = row_of(text)
    ledger.write_csv([row], {row.message: text})
    (_head, cells) = csv.reader(io.StringIO(written[0].decode(), newline=""))
    for cell in cells:
        assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠"))


@given(texts)
@example("\x1b[2J\x9b\u202e")
def test_nothing_in_the_ledger_steers_a_terminal(text):
    for cell in ledger.cells(row_of(text), text):
        assert not _steers(cell)
        assert "\n" not in cell
    assert not _steers(visible(text))


def _steers(text):
    return any(not one.isprintable() and one not in "\n\u200c\u200d" for one in text)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_table_shows_what_would_steer_the_terminal(capsys, monkeypatch, is_terminal):
    from rapport.cli.output import show_table, write_table

    write = show_table if is_terminal else write_table
    monkeypatch.setenv("NO_COLOR", "1")
    write("t", ["a"], [["\x1b]0;owned\x07 [bold]x[/bold] \u202e"]])
    out = capsys.readouterr().out
    assert "\x1b]0" not in out
    assert "\\x1b]0;owned\\x07 [bold]x[/bold] \\u202e" in out


@pytest.mark.parametrize(
    "address",
    [
        "webhook:https://ana:hush@example.org/hook?key=hush",
        "webhook:https:/ana:hush@example.org",
        "webhook://ana:hush@example.org",
        "webhook:hush",
        "webhook:http://[hush",
        "apprise:tgram://hush/chat",
    ],
)
def test_no_address_shows_its_secret_however_it_is_written(address):
    """An application that is asked who somebody is may say anything."""
    assert "hush" not in shown_address(address)
    assert adapter_of(shown_address(address)) == adapter_of(address)
