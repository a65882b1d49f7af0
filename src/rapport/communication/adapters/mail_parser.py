"""Parses a mail: sender, references, and the text of the reply. Pure. [CO-16]

Mails come from anybody: every fault of a mail is an InvalidInput that concerns only that mail.
Headers are read with the old policy of the standard library; the new one parses them into trees and
fails on malformed ones. The library's parser takes minutes for small mails made for the purpose, so
parts and boundaries are counted first, and HTML is read by one pattern that never backtracks.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from datetime import UTC
from email.errors import MessageError
from email.header import decode_header
from email.message import Message as ParsedMail
from email.parser import BytesParser
from email.policy import compat32
from email.utils import parsedate_to_datetime
from html import unescape

import msgspec

from rapport.communication.texts import clean
from rapport.core.errors import InvalidInput
from rapport.core.event import content_id

_TAG = re.compile(r"<(/?)([A-Za-z][A-Za-z0-9]{0,20})((?:[\s/][^<>]{0,4000})?)>|<[!?][^<>]{0,4000}>")
_CLASS = re.compile(r"class\s*=\s*[\"']?([^\"'<>]{0,200})", re.IGNORECASE)
_UNSEEN = frozenset(("script", "style", "head", "title", "template", "noscript"))
_LINES = frozenset(
    ("p", "div", "br", "li", "ul", "ol", "tr", "table", "h1", "h2", "h3", "h4", "hr", "pre")
)
_QUOTING_CLASSES = ("gmail_quote", "moz-cite-prefix", "yahoo_quoted", "protonmail_quote")
_VOID = frozenset(("br", "hr", "img", "input", "meta", "link", "area", "col", "wbr"))
_MOST_OPEN = 1_000
_LOOKED_BACK = 20
"""How many open tags a closing tag is looked for in; others were never opened, or long ago."""


def text_of_html(html: str) -> str:
    """The readable text of HTML: lines where a reader sees lines, quotations marked with `>`.
    Linear in the length.
    """
    reader = _Reader()
    place = 0
    whole = "".join(_without_comments(html))
    for tag in _TAG.finditer(whole):
        reader.add_text(whole[place : tag.start()])
        place = tag.end()
        if tag[2]:
            reader.apply_tag(tag[2].lower(), tag[3] or "", closing=bool(tag[1]))
    reader.add_text(whole[place:])
    return reader.text()


def _without_comments(html: str) -> Iterator[str]:
    place = 0
    while (begin := html.find("<!--", place)) >= 0:
        yield html[place:begin]
        end = html.find("-->", begin + 4)
        if end < 0:
            return
        place = end + 3
    yield html[place:]


class _Reader:
    """Collects text; knows only whether it is within something unseen or quoted."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._line: list[str] = []
        self._open: list[tuple[str, bool]] = []
        self._quoted = self._unseen = 0

    def text(self) -> str:
        """The visible text."""
        self._end_line()
        return "\n".join(self._lines).strip("\n")

    def add_text(self, text: str) -> None:
        """Adds the text between two tags."""
        if text and not self._unseen:
            self._line.append(unescape(text))

    def apply_tag(self, name: str, attributes: str, *, closing: bool) -> None:
        if name in _LINES or name == "blockquote":
            self._end_line()
        if closing:
            self._close(name)
        elif name not in _VOID and len(self._open) < _MOST_OPEN:
            quoting = name == "blockquote" or _is_quoting(attributes)
            self._open.append((name, quoting))
            self._quoted += quoting
            self._unseen += name in _UNSEEN

    def _close(self, wanted: str) -> None:
        if not any(name == wanted for name, _quoting in self._open[-_LOOKED_BACK:]):
            return
        while self._open:
            name, quoting = self._open.pop()
            self._quoted -= quoting
            self._unseen -= name in _UNSEEN
            if name == wanted:
                return

    def _end_line(self) -> None:
        words = " ".join("".join(self._line).split())
        self._line.clear()
        if words or (self._lines and self._lines[-1]):
            self._lines.append(f"> {words}" if self._quoted else words)


def _is_quoting(attributes: str) -> bool:
    found = _CLASS.search(attributes)
    return found is not None and any(word in found[1] for word in _QUOTING_CLASSES)


_BOUNDARY = re.compile(
    rb"boundary[ \t\r\n]*=[ \t\r\n]*(?:\"([^\"\r\n]{1,200})\"|([^\s;\"]{1,200}))", re.IGNORECASE
)
_IN_PIECES = re.compile(rb"boundary\*", re.IGNORECASE)
_WITHIN = re.compile(rb"content-type[ \t]*:[ \t\r\n]*message/", re.IGNORECASE)


class MailLimits(msgspec.Struct, frozen=True, kw_only=True):
    parts: int = 100
    depth: int = 10
    text: int = 1_000_000
    """Characters of its text."""
    header: int = 64_000
    """Characters of one header; what is longer is cut."""


def check_structure(raw: bytes, limits: MailLimits) -> None:
    """Raises InvalidInput when parsing the mail could cost more than its size warrants. Linear in
    its size times the boundaries it declares, of which there are few.
    """
    if _IN_PIECES.search(raw):
        raise _too_much("its boundaries are written in pieces")
    found = {quoted or bare for quoted, bare in _BOUNDARY.findall(raw)}
    if len(found) > limits.depth:
        raise _too_much(f"it has more than {limits.depth} kinds of parts")
    within = len(_WITHIN.findall(raw))
    delimiters = sum(raw.count(b"--" + boundary) for boundary in found)
    if within + delimiters > 2 * limits.parts:
        raise _too_much(f"it has more than {limits.parts} parts")


def _too_much(why: str) -> InvalidInput:
    return InvalidInput(f"the mail cannot be read: {why}", code="mail.too_many_parts")


_REFERENCE = re.compile(r"<([^<>\s]{1,998})>")
_MOST_REFERENCES = 50
_LONGEST_SENDER = 2_000
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_ADDRESS = re.compile(r"[^\s<>(),;:\"@]{1,64}@[^\s<>(),;:\"@]{1,255}(?![^\s<>(),;:])")
_TRANSFER_ENCODINGS = ("", "7bit", "8bit", "binary", "base64", "quoted-printable")
_CHARSETS = re.compile(
    r"utf_(8|16|32|7).*|ascii|iso(8859|2022).*|cp\d+|windows.*|koi8.*|gb.*|hz|big5.*|shift_jis.*"
    r"|euc_.*|mac_.*|johab|tis_620|viscii"
)
_SIGNATURES = (
    *("application/pgp-signature", "application/pkcs7-signature"),
    "application/x-pkcs7-signature",
)
_MOST_ATTACHMENTS, _LONGEST_FILE_NAME = 10, 100
_UNSEEN_LINES = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\0"


class MailContent(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a mail. The sender is only claimed."""

    id: str
    """The same for the same mail, whenever and from wherever it is fetched."""
    sender: str
    """The bare address of From, in lower case; empty when there is not exactly one."""
    subject: str
    references: tuple[str, ...]
    """The ids of In-Reply-To and References, the nearest first, without brackets."""
    text: str
    language: str = ""
    written_ms: int = 0
    """Its Date, ms UTC; 0 = none."""
    automatic: str = ""
    """The sign that no person wrote it; empty = one may have."""
    cut: bool = False
    """The end of the mail, but not of its text, was left out."""
    attachments: tuple[str, ...] = ()
    """Names of attached files; the files are not kept."""


def parse_mail(raw: bytes, limits: MailLimits) -> ParsedMail:
    """The MIME tree; raises InvalidInput for a mail that would cost too much or cannot be read."""
    check_structure(raw, limits)
    try:
        return BytesParser(policy=compat32).parsebytes(raw)
    except (MessageError, ValueError, RecursionError, LookupError, TypeError) as error:
        raise _unreadable(type(error).__name__) from None


def read_mail(tree: ParsedMail, limits: MailLimits, *, cut: bool = False) -> MailContent:
    """The content of the mail; raises InvalidInput when no text can be read. `cut`: only the
    beginning of the mail was fetched.
    """
    sender, text = _sender(tree), _text(tree, limits, cut=cut)
    return MailContent(
        id=content_id("mail", _own_name(tree, limits), sender, text),
        sender=sender,
        subject=header(tree, "Subject", limits),
        references=references_of(tree, limits),
        text=text,
        language=_language(header(tree, "Content-Language", limits)),
        written_ms=_written_ms(header(tree, "Date", limits)),
        automatic=_automatic(tree, limits),
        cut=cut,
        attachments=_attachments(tree, limits),
    )


def header(tree: ParsedMail, name: str, limits: MailLimits) -> str:
    """The header as one line of readable text; empty when it is absent."""
    written = tree.get(name)
    if written is None:
        return ""
    return clean(_decoded(str(written)[: limits.header])).strip()


def references_of(tree: ParsedMail, limits: MailLimits) -> tuple[str, ...]:
    """The ids of In-Reply-To and References, the nearest first."""
    nearest = _REFERENCE.findall(_joined(tree, "In-Reply-To", limits))
    older = _REFERENCE.findall(_joined(tree, "References", limits))
    return tuple(dict.fromkeys([*nearest, *reversed(older)]))[:_MOST_REFERENCES]


def leaves_of(tree: ParsedMail, limits: MailLimits) -> list[ParsedMail]:
    """The leaf parts in order; forwarded mails stay closed."""
    found: list[ParsedMail] = []
    waiting = [(tree, 0)]
    while waiting:
        part, depth = waiting.pop()
        if depth > limits.depth or len(found) > limits.parts:
            raise InvalidInput("the mail has too many parts", code="mail.too_many_parts")
        if part.get_content_maintype() == "multipart" and part.is_multipart():
            waiting += [(one, depth + 1) for one in reversed(inner_of(part))]
        else:
            found.append(part)
    return found


def inner_of(part: ParsedMail) -> list[ParsedMail]:
    """The parts, or the mail, within a part."""
    inner = part.get_payload() if part.is_multipart() else []
    return [one for one in inner if isinstance(one, ParsedMail)]


def decoded_text(part: ParsedMail, limits: MailLimits) -> str:
    """The text of a part by its charset; undecodable bytes become replacement characters."""
    encoding = str(part.get("Content-Transfer-Encoding", "")).strip().lower()
    if encoding not in _TRANSFER_ENCODINGS:
        raise InvalidInput(
            f"the mail's text is encoded as {encoding[:40]!r}", code="mail.unknown_encoding"
        )
    try:
        body = part.get_payload(decode=True)
        charset = part.get_content_charset("utf-8")
    except (MessageError, ValueError, LookupError, TypeError, AssertionError) as error:
        raise _unreadable(type(error).__name__) from None
    return _in_charset(body if isinstance(body, bytes) else b"", charset)[: limits.text]


# --- parts of a mail ---


def _own_name(tree: ParsedMail, limits: MailLimits) -> str:
    """The Message-ID; for gateways and devices that leave it out, other headers that distinguish
    two mails with the same text.
    """
    if named := header(tree, "Message-ID", limits).strip():
        return named
    others = [header(tree, name, limits) for name in ("Date", "Subject")]
    return "\n".join([*others, *references_of(tree, limits)])


def _written_ms(date: str) -> int:
    try:
        written = parsedate_to_datetime(date)
        return int(written.replace(tzinfo=written.tzinfo or UTC).timestamp() * 1_000)
    except (ValueError, TypeError, IndexError, OverflowError):
        return 0


def _text(tree: ParsedMail, limits: MailLimits, *, cut: bool) -> str:
    """The first plain text that is not empty, else the first HTML; empty for a mail of neither."""
    leaves = [leaf for leaf in leaves_of(tree, limits) if not _is_attached(leaf)]
    for kind in ("text/plain", "text/html"):
        for leaf in leaves:
            if leaf.get_content_type() != kind:
                continue
            if cut and leaf is leaves_of(tree, limits)[-1]:
                raise InvalidInput("the text of the mail is too long", code="mail.too_long")
            text = decoded_text(leaf, limits)
            plain = _with_plain_lines(text_of_html(text) if kind == "text/html" else text)
            if plain.strip():
                return plain
    return ""


def _attachments(tree: ParsedMail, limits: MailLimits) -> tuple[str, ...]:
    """Names of attached files, without signatures and pictures that the text shows."""
    found = []
    for leaf in leaves_of(tree, limits):
        kind = leaf.get_content_type()
        is_shown = leaf.get_content_maintype() == "text" or "Content-ID" in leaf
        if not _is_attached(leaf) and (is_shown or leaf is tree or kind in _SIGNATURES):
            continue
        name = clean(_decoded(str(leaf.get_filename("") or "")[: limits.header])).strip()
        found.append(name[:_LONGEST_FILE_NAME] or kind)
    return tuple(found[:_MOST_ATTACHMENTS])


def _is_attached(part: ParsedMail) -> bool:
    return str(part.get("Content-Disposition", "")).strip().lower().startswith("attachment")


def _sender(tree: ParsedMail) -> str:
    """The sender's address; empty for several senders or none."""
    written = tree.get_all("From", [])
    if len(written) != 1:
        return ""
    text = _QUOTED.sub("", clean(str(written[0])).strip()[:_LONGEST_SENDER])
    # Some programs write the address as the name, too.
    found = {address.lower() for address in _ADDRESS.findall(text)}
    return found.pop() if len(found) == 1 else ""


def _automatic(tree: ParsedMail, limits: MailLimits) -> str:
    """The sign that no person wrote the mail. In doubt it counts as automatic: an alarm that stays
    open harms less than one that an out-of-office reply has closed.
    """
    submitted = header(tree, "Auto-Submitted", limits).partition(";")[0].strip().lower()
    if submitted not in ("", "no"):
        return f"Auto-Submitted: {submitted[:40]}"
    precedence = header(tree, "Precedence", limits).strip().lower()
    if precedence in ("bulk", "junk", "list", "auto_reply"):
        return f"Precedence: {precedence}"
    for name in ("X-Autoreply", "X-Autorespond", "X-Autoresponder"):
        if header(tree, name, limits).strip().lower() not in ("", "no"):
            return name
    if "".join(str(tree.get("Return-Path", "")).split()) == "<>":
        return "an empty Return-Path"
    if tree.get_content_type() == "multipart/report":
        return "a report"
    return automatic_subject(header(tree, "Subject", limits))


_AUTOMATIC_SUBJECT = re.compile(
    r"(automatic reply|auto[- ]?reply|autoreply|out of (the )?office|automatische antwort"
    r"|abwesenheits\w{0,12}|réponse automatique|risposta automatica|respuesta automática"
    r"|resposta automática|automatisch antwoord)\s*(:|$)",
    re.IGNORECASE,
)


def automatic_subject(subject: str) -> str:
    """The sign in the subject that no person wrote the mail, for old responders; empty = none."""
    found = _AUTOMATIC_SUBJECT.match(subject.strip())
    return f"the subject begins with {found[1]!r}" if found else ""


def _language(text: str) -> str:
    first = text.split(",")[0].strip()
    return first if re.fullmatch(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8}){0,4}", first) else ""


# --- characters ---


def _in_charset(body: bytes, charset: str) -> str:
    """Decodes by charsets that people write in; other codecs of the library cost far more than
    their input, or are no charsets.
    """
    try:
        name = codecs.lookup(charset).name
        usual = _CHARSETS.fullmatch(name.replace("-", "_")) is not None
        return body.decode(name if usual else "utf-8", "replace")
    except (LookupError, ValueError):  # an unknown charset
        return body.decode("utf-8", "replace")


def _decoded(text: str) -> str:
    """A header with its encoded words decoded."""
    try:
        pieces = decode_header(text)
    except (MessageError, ValueError):
        return text
    return "".join(
        piece if isinstance(piece, str) else _in_charset(piece, charset or "utf-8")
        for piece, charset in pieces
    )


def _joined(tree: ParsedMail, name: str, limits: MailLimits) -> str:
    """The decoded values of a header; some programs write long ids as encoded words."""
    values = [_decoded(str(value)[: limits.header]) for value in tree.get_all(name, [])[:10]]
    return " ".join(values)[: limits.header]


def _with_plain_lines(text: str) -> str:
    """Line ends as `\\n`; other line-ending characters become blanks."""
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    return plain.translate({ord(one): " " for one in _UNSEEN_LINES})


def _unreadable(what: str) -> InvalidInput:
    return InvalidInput(f"the mail cannot be read ({what})", code="mail.unreadable")


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
    """The line at which the signature or an unmarked copy of an older mail begins."""
    last = max((number for number, line in enumerate(lines) if line), default=0)
    for number, line in enumerate(lines):
        if _SIGNATURE.match(line) or _FORWARDED.match(line) or _is_header_block(lines, number):
            return number
        if number == last and _ATTRIBUTION.match(line):
            return number
    return len(lines)


def _is_header_block(lines: list[str], number: int) -> bool:
    """Three lines like `From: ...` in a row: an older mail without a mark."""
    block = lines[number : number + 3]
    return len(block) == 3 and all(_HEADER_LINE.match(line) for line in block)


def _drop_attribution(kept: list[str]) -> None:
    """Removes the line or lines that introduce a quotation."""
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
