"""`rapport send`: sends a message to a person, a group or a component. [CO-1, CO-10, UX-3]

The running node delivers it; `--wait` shows the progress until the delivery is decided.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import msgspec
from cyclopts import Parameter

from rapport.cli.arguments import STDIN, JsonOption, may_be_stdin, prompt_for_input
from rapport.cli.hints import wrong_use
from rapport.cli.node_api import HERE, Remote, Where
from rapport.cli.output import print_note, stderr, write_json, write_table
from rapport.core.errors import InvalidInput, NotAllowed
from rapport.core.message import Identifier, Message
from rapport.core.times import format_duration, format_time, parse_duration
from rapport.kernel.clock import SystemClock

if TYPE_CHECKING:
    from rapport.communication.ledger import MessageView

_MOST_PEOPLE = 20
_DONE = ("notified", "forwarded", "routed")
_OVER = (*_DONE, "closed", "failed", "no_receiver", "refused")


def is_over(shown: MessageView) -> bool:
    """Whether nothing more is decided about the message."""
    return shown.message.state in _OVER


def outcome_of(shown: MessageView | None) -> str:
    """`done`, `failed`, `timed_out`, or `undecided`."""
    if shown is None or not is_over(shown):
        return "undecided"
    if shown.message.state in _DONE:
        return "done"
    return shown.message.result or "failed"


class GivenAnswer(msgspec.Struct, frozen=True):
    """What one person answered."""

    time: int
    person: str
    answer: str
    declined: bool


def answers_of(shown: MessageView) -> list[GivenAnswer]:
    """The answers so far, the first one first; the last one of each person."""
    found = [
        GivenAnswer(each.time, each.peer, each.answer, each.fate == "declined")
        for each in shown.people
        if each.fate in ("answered", "declined")
    ]
    return sorted(found, key=lambda one: (one.time, one.person))


class Progress:
    """A live table on a terminal; elsewhere a line whenever something changed."""

    def __init__(self, message: str) -> None:
        self._message, self._last = message, ""
        self._live: Any = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            from rich.live import Live

            self._live = Live(console=stderr(), auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, shown: MessageView) -> None:
        if self._live is not None:
            self._live.update(_table(shown), refresh=True)
        elif shown.sentence != self._last:
            print_note(shown.sentence)
        self._last = shown.sentence


def _table(shown: MessageView) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=shown.sentence, title_justify="left", header_style="bold")
    for column in ("person", "how far", "by", "answer", "why"):
        table.add_column(column)
    newest = sorted(shown.people, key=lambda person: -person.time)[:_MOST_PEOPLE]
    for person in sorted(newest, key=lambda person: person.peer):
        row = (person.peer, person.fate, " ".join(person.by), person.answer, person.reason)
        table.add_row(*(Text(cell) for cell in row))
    return table


_LOOK_EVERY_MS = 300
_NS_PER_MS = 1_000_000


def send(
    text: Annotated[
        str,
        may_be_stdin(lambda: send),
        Parameter(name=["--text"], help="What it says; - for standard input."),
    ],
    *,
    to: Annotated[str, Parameter(help="A person or a group by name, or component:NAME.")],
    type: Annotated[str, Parameter(help="What kind of message it is.")] = "NOTIFICATION",
    subtype: Annotated[str, Parameter(help="And which of that kind.")] = "MESSAGE",
    urgent: Annotated[bool, Parameter(negative="", help="Breaks through quiet hours.")] = False,
    ttl: Annotated[str, Parameter(help="Nobody needs it after this long, such as 10min.")] = "",
    conversation: Annotated[str, Parameter(help="What it belongs to.")] = "",
    sender: Annotated[str, Parameter(name="--from", help="Who says it.")] = "component:cli",
    least: Annotated[int, Parameter(help="Of a group so many have to answer.")] = 0,
    answer_within: Annotated[str, Parameter(help="Who has not answered by then is late.")] = "",
    then: Annotated[
        list[str] | None,
        Parameter(negative="", help="Person or group asked when nobody answered: crew, max=10min."),
    ] = None,
    repeat: Annotated[str, Parameter(help="Say it again this often until answered.")] = "",
    repeat_most: Annotated[int, Parameter(help="But at most so often.")] = 0,
    wait: Annotated[str, Parameter(help="Wait so long at most, and print the answers.")] = "",
    where: Where = HERE,
    json: JsonOption = False,
) -> int:
    """Send a message; prints its id. With --wait also who answered what and when; ends with 0 when
    it was done, 1 when it failed or nothing was decided in time.
    """
    remote = where.remote()
    message = Message(
        type=type,
        subtype=subtype,
        sender=Identifier.parse(sender),
        receiver=_receiver(remote, to),
        content=_typed() if text == STDIN else text,
        ttl=parse_duration(ttl) if ttl else 0,
        conversation=conversation,
        urgent=urgent,
    )
    wait_ms = parse_duration(wait) if wait else 0
    if least < 0 or (least and message.receiver and message.receiver.kind != "collective"):
        raise wrong_use("--least is of a group, from 1 on", "--to GROUP --least 2, or leave it out")
    if not message.content.strip():
        raise InvalidInput("the message says nothing", code="message.empty", hint="--text ...")
    options = {
        "least": least,
        "answer_within": parse_duration(answer_within or "0s"),
        "escalate": _steps(remote, then or [], answer_within),
        "repeat_every": parse_duration(repeat or "0s"),
        "repeat_most": repeat_most,
    }
    (name,) = remote.post("/messages", _body(message, options))["ids"]
    if not wait_ms:
        write_json({"id": name}) if json else print(name)
        return 0
    shown = _wait(remote, name, wait_ms, quiet=json)
    return _print_outcome(name, shown, wait_ms, json=json)


def _typed() -> str:
    prompt_for_input()
    return sys.stdin.read()


def _receiver(remote: Remote, text: str) -> Identifier:
    """Whom a name means: `kind:name` as it stands; a bare one the person of that name, else the
    group. Raises UnknownName with the nearest names of both.
    """
    if ":" in text:
        return Identifier.parse(text)
    try:
        remote.get(f"/peers/{quote(text, safe='')}")
    except InvalidInput as error:
        if error.code == "peer.unknown" and _is_group(remote, text):
            return Identifier("collective", text)
        if (
            error.status != NotAllowed.status
        ):  # without the right to read people one may send to them
            raise
    return Identifier("peer", text)


def _is_group(remote: Remote, name: str) -> bool:
    try:
        remote.get(f"/collectives/{quote(name, safe='')}")
    except InvalidInput as error:
        if error.code == "collective.unknown":
            return False
        raise
    return True


def _steps(remote: Remote, then: list[str], answer_within: str) -> list[dict[str, Any]]:
    """Who is asked next, each with a time to answer: its own or that of the first."""
    if then and not answer_within:
        raise wrong_use(
            "--then needs --answer-within: without it nobody is ever late",
            "--answer-within 10min --then next-town",
        )
    steps = []
    for step in then:
        receiver, _, within = step.partition("=")
        own_ms = parse_duration(within or answer_within)
        steps.append({"receiver": str(_receiver(remote, receiver)), "answer_within": own_ms})
    return steps


def _body(message: Message, given: dict[str, Any]) -> bytes:
    options = {key: value for key, value in given.items() if value}
    written = msgspec.json.decode(message.to_json(), type=dict[str, Any])
    return msgspec.json.encode(written | ({"wishes": options} if options else {}))


def _wait(remote: Remote, message: str, wait_ms: int, *, quiet: bool) -> MessageView | None:
    """Looks until the message is decided or the time is up; shows every change meanwhile."""
    clock = SystemClock()
    end_ns = clock.steady_ns() + wait_ms * _NS_PER_MS
    progress: Any = nullcontext() if quiet else Progress(message)
    shown = None
    with progress:
        while True:
            shown = _look(remote, message) or shown
            if shown is not None and not quiet:
                progress.show(shown)
            left_ms = (end_ns - clock.steady_ns()) / _NS_PER_MS
            if left_ms <= 0 or (shown is not None and is_over(shown)):
                return shown
            asyncio.run(clock.sleep(min(_LOOK_EVERY_MS, left_ms)))


def _look(remote: Remote, message: str) -> MessageView | None:
    """How far it got; None while the node has not come to it."""
    from rapport.communication.ledger import MessageView

    try:
        found = remote.get(f"/ledger/messages/{quote(message, safe='')}?timeline=false")
    except InvalidInput as error:
        if error.code == "message.unknown":
            return None
        raise
    return msgspec.convert(found, MessageView)


def _print_answers(shown: MessageView) -> None:
    """Who answered what, and when; nothing where nobody did."""
    answers = answers_of(shown)
    if answers:
        rows = [(format_time(one.time), one.person, one.answer) for one in answers]
        write_table("answers", ("time", "person", "answer"), rows)
    elif is_over(shown) and not shown.message.answered_by and outcome_of(shown) == "done":
        print_note("nobody had to answer; --answer-within 10min asks for an answer")


def _print_outcome(name: str, shown: MessageView | None, wait_ms: int, *, json: bool) -> int:
    if json:
        answers = answers_of(shown) if shown is not None else []
        outcome = outcome_of(shown)
        write_json({"id": name, "outcome": outcome, "answers": answers, "progress": shown})
    else:
        print(name)
        if shown is not None:
            _print_answers(shown)
        sentence = shown.sentence if shown is not None else "the node has not come to it yet"
        print_note(f"{outcome_of(shown)}: {sentence}")
        if outcome_of(shown) == "undecided":
            print_note(
                f"nothing was decided within {format_duration(wait_ms)}; "
                f"rapport ledger --message {name} tells more"
            )
    return 0 if outcome_of(shown) == "done" else 1
