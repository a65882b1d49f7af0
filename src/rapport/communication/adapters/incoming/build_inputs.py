"""The input adapters of a site, made from what it declares; drivers load only when used. [CO-5,
CO-16, CO-17]
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from rapport.channel.channel import Channels
from rapport.communication.adapters.incoming.declare_inputs import InputDeclared
from rapport.communication.adapters.incoming.input_base import (
    InputAdapter,
    InputHost,
    InputPullAdapter,
    never,
)
from rapport.communication.adapters.incoming.inputs import Inputs
from rapport.communication.adapters.mail.care import AskedByMail
from rapport.communication.adapters.unusable import bury_unusable
from rapport.communication.adapters.web.webhook_in import WebhookInput
from rapport.communication.directory import StoredDirectory
from rapport.communication.peers import Peer
from rapport.core.errors import InvalidInput, RapportError, Unsupported
from rapport.core.message import Message
from rapport.kernel.clock import Clock
from rapport.kernel.plugins import Plugins
from rapport.kernel.tasks import Tasks

SITE = "component:site"
"""The owner of what the site file declares."""
DOORS = frozenset({"webhook"})
"""Inputs that take what is brought to them and look nowhere."""


class AllPeople:
    """All peers of a directory, page by page: for finding the one behind an address."""

    def __init__(self, directory: StoredDirectory) -> None:
        self._directory = directory

    def peer_names(self) -> Iterator[str]:
        """Their names, sorted."""
        after = ""
        while page := self._directory.peers(after=after):
            yield from (entry.name for entry in page)
            after = page[-1].name

    def peer(self, name: str) -> Peer | None:
        """The peer of that name, or None."""
        return self._directory.peer(name)


class InputSurroundings(msgspec.Struct, frozen=True):
    """What input adapters need beside their settings."""

    channels: Channels
    clock: Clock
    people: AllPeople
    secret: bytes
    """That of answer tokens."""
    asked: AskedByMail
    plugins: Plugins = msgspec.field(default_factory=Plugins)


class SiteInputs:
    """Runs what the site declares: each input is added when that is possible, and tried again later
    when its medium is not there yet.
    """

    def __init__(
        self, inputs: Inputs, declared: Sequence[InputDeclared], around: InputSurroundings
    ) -> None:
        """Raises Unsupported when a driver is not installed, and InvalidInput for a plug-in that
        cannot be made.
        """
        self._inputs, self._clock = inputs, around.clock
        self._declared = [(one, make_input(one, around)) for one in declared]

    def adapters(self, kind: str) -> dict[str, InputAdapter]:
        """The adapters of a kind by name of the input."""
        return {one.name: adapter for one, adapter in self._declared if one.adapter == kind}

    async def run(self) -> None:
        """Until cancelled; then all of them are removed."""
        await self._run(self._declared)

    async def run_doors(self) -> None:
        """As `run`, only those that wait for who comes: of several processes each runs its own, and
        what comes to any of them is in `input` for whoever handles it.
        """
        await self._run([pair for pair in self._declared if pair[0].adapter in DOORS])

    async def run_without_doors(self) -> None:
        """As `run`, the others: a mailbox or a folder is looked into by one process at a time."""
        await self._run([pair for pair in self._declared if pair[0].adapter not in DOORS])

    async def _run(self, chosen: Sequence[tuple[InputDeclared, InputAdapter]]) -> None:
        tasks = Tasks(self._clock)
        for one, adapter in chosen:
            tasks.start(f"input.{one.name}.add", partial(self._add, one, adapter))
        try:
            await asyncio.Event().wait()
        finally:
            await tasks.stop()
            for one, _ in chosen:
                await self._inputs.remove(one.name)

    async def _add(self, declared: InputDeclared, adapter: InputAdapter) -> None:
        await add_input(self._inputs, declared, adapter)


def make_input(declared: InputDeclared, around: InputSurroundings) -> InputAdapter:
    """The adapter that a site declares; raises Unsupported when its driver is not installed, and
    InvalidInput for a plug-in that cannot be made.
    """
    make = _MAKERS.get(declared.adapter, _plugged_in)
    try:
        return make(declared, around)
    except ImportError as error:
        raise Unsupported(
            f"the input {declared.adapter}", f"this installation ({error.name} is missing)"
        ) from None


def web_inputs_of(inputs: SiteInputs) -> dict[str, WebhookInput]:
    """The inputs by HTTP, by name: the web room opens a door for each."""
    found = inputs.adapters("webhook").items()
    return {name: adapter for name, adapter in found if isinstance(adapter, WebhookInput)}


async def add_input(inputs: Inputs, declared: InputDeclared, adapter: InputAdapter) -> str:
    """Adds a declared input under its name, in the name of the site."""
    trusted = _any_peer if declared.trusted else never
    if isinstance(adapter, InputPullAdapter):
        return await inputs.add_pull(
            adapter, declared.interval_ms, name=declared.name, owner=SITE, trusted=trusted
        )
    return await inputs.add_push(adapter, name=declared.name, owner=SITE, trusted=trusted)


def _any_peer(message: Message) -> bool:
    """A medium proves peers only: no component sends from outside."""
    return message.sender.kind == "peer"


def _plugged_in(declared: InputDeclared, around: InputSurroundings) -> InputAdapter:
    """A kind of a package: called with its table of the site file and what every input may use."""
    make = around.plugins.get("inputs", declared.adapter)
    set_aside = bury_unusable(declared.name, around.channels, around.clock)
    host = InputHost(
        name=declared.name, directory=declared.directory, clock=around.clock, set_aside=set_aside
    )
    try:
        made = make(declared.settings, host)
    except (RapportError, ImportError):
        raise
    except Exception as error:
        raise _cannot_be(declared, f"{type(error).__name__}: {error}") from error
    if not callable(getattr(made, "pull", None)) and not callable(getattr(made, "start", None)):
        raise _cannot_be(declared, "it has neither `pull` nor `start`")
    adapter: InputAdapter = made
    return adapter


def _cannot_be(declared: InputDeclared, why: str) -> InvalidInput:
    return InvalidInput(
        f"[inputs.{declared.name}]: the plug-in {declared.adapter!r} gives no input: {why[:500]}",
        code="input.cannot_make",
        hint="look at its settings beside `adapter`, and at the package that offers it",
    )


def _mqtt(declared: InputDeclared, around: InputSurroundings) -> InputAdapter:
    from rapport.communication.adapters.mqtt.incoming import MqttInput

    set_aside = bury_unusable(declared.name, around.channels, around.clock)
    return MqttInput(declared.settings, around.clock, set_aside)


def _webhook(declared: InputDeclared, _around: InputSurroundings) -> InputAdapter:
    return WebhookInput(declared.settings)


def _mail(declared: InputDeclared, around: InputSurroundings) -> InputAdapter:
    from rapport.communication.adapters.mail.care import AddressBook, mail_care, mail_knowledge
    from rapport.communication.adapters.mail.imap import ImapInput, ImapPushInput

    book = AddressBook(around.people, around.clock)
    asked, vouched = around.asked, declared.trusted
    known = mail_knowledge(around.secret, book, asked=asked, vouched=vouched)
    care = mail_care(declared.name, around.channels, book, around.clock, asked)
    if declared.adapter == "imap":
        return ImapInput(declared.settings, known, care)
    return ImapPushInput(declared.settings, known, care)


def _folder(declared: InputDeclared, around: InputSurroundings) -> InputAdapter:
    from rapport.communication.adapters.files.folder_in import FolderInput

    return FolderInput(declared.settings, around.clock)


def _ftp(declared: InputDeclared, around: InputSurroundings) -> InputAdapter:
    from rapport.communication.adapters.files.ftp import FtpInput

    set_aside = bury_unusable(declared.name, around.channels, around.clock)
    return FtpInput(declared.settings, around.clock, set_aside)


_MAKERS: dict[str, Callable[[InputDeclared, InputSurroundings], InputAdapter]] = {
    "folder": _folder,
    "ftp": _ftp,
    "imap": _mail,
    "imap-push": _mail,
    "mqtt": _mqtt,
    "webhook": _webhook,
}
