"""The adapters of a site, built in or plugged in; drivers load only when used. [CO-4, UX-9]

The input adapters of a site, made from what it declares; drivers load only when used. [CO-5,
CO-16, CO-17]

Texts sealed on their way to a peer: for addresses that end with `;sealed`. [CO-11, CO-16]

Stands before an adapter that says `seals = True`. The text is encrypted with the peer's newest
session, so whoever carries or keeps it on the way cannot read it; who it is for and the link to
answer at stay readable.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from rapport.channel.channel import Channels
from rapport.communication.adapters.adapter_config import InputConfig
from rapport.communication.adapters.base import (
    Delivery,
    Failed,
    Outcome,
    OutputAdapter,
    declaration_of,
    is_stateful,
)
from rapport.communication.adapters.inbox import InboxAdapter, OpenPages, PageAdapter
from rapport.communication.adapters.input_base import (
    InputAdapter,
    InputHost,
    InputPullAdapter,
    dead_letter_inputs,
    never,
)
from rapport.communication.adapters.inputs import Inputs
from rapport.communication.adapters.mail_replies import MailQuestions
from rapport.communication.adapters.outputs import PeerInstances
from rapport.communication.adapters.webhook import WebhookInput
from rapport.communication.directory.stored import StoredDirectory
from rapport.communication.peers import Peer
from rapport.communication.sessions.seals import NONCE_BYTES, Seal, seal_text, split_sealed
from rapport.communication.sessions.sessions import Sessions
from rapport.core.errors import InvalidInput, RapportError, Unsupported
from rapport.core.message import Message
from rapport.kernel.clock import Clock, SystemClock
from rapport.kernel.plugins import Plugins
from rapport.kernel.tasks import Tasks

if TYPE_CHECKING:
    from rapport.communication.declare import Communication

BUILT_IN = ("apprise", "folder", "ftp", "inbox", "mail", "mqtt", "webhook", "ws")
_EXTRAS = {"apprise": "notify", "mqtt": "mqtt"}

MAILBOXES = ("imap", "imap-push")
"""Kinds of inputs that read replies to mails."""
ZoneOf = Callable[[str], Awaitable[str]]
LinkFor = Callable[[str, str], str]
"""Message and peer to the address of the page to answer on; empty text = no link."""


def _nothing(_message: str, _peer: str) -> str:
    return ""


async def _utc(_peer: str) -> str:
    return "UTC"


def adapter_names(plugins: Plugins) -> tuple[str, ...]:
    """All adapters that a site may name."""
    return tuple(sorted({*BUILT_IN, *plugins.names("adapters")}))


class AdapterContext(msgspec.Struct, frozen=True):
    """What adapters need beside their settings."""

    link_for: LinkFor
    proof_for: LinkFor
    """Message and peer to the token that proves an answer."""
    pages: OpenPages
    clock: Clock
    zone_of: ZoneOf
    """Peer to the zone on whose clock they read times."""


def make_adapters(
    declared: Communication,
    link_for: LinkFor,
    plugins: Plugins,
    *,
    proof_for: LinkFor = _nothing,
    pages: OpenPages | None = None,
    clock: Clock | None = None,
    zone_of: ZoneOf = _utc,
) -> dict[str, OutputAdapter]:
    """One instance of each adapter that the peers need, shared by all unless it is stateful.

    A plug-in is called with its table of the site file and `link_for`, a stateful one for each peer
    and with the peer's address, too. Raises UnknownName, or
    Unsupported when the extra with a built-in's driver is not installed.
    """
    around = AdapterContext(
        link_for, proof_for, pages or OpenPages(), clock or SystemClock(), zone_of
    )
    return {name: _make(name, declared, around, plugins) for name in declared.adapters()}


def _make(
    name: str, declared: Communication, around: AdapterContext, plugins: Plugins
) -> OutputAdapter:
    if name not in BUILT_IN:
        return _plugin_adapter(name, declared.plugin_settings.get(name, {}), around, plugins)
    try:
        return _built_in_adapter(name, declared, around)
    except ImportError as error:
        raise Unsupported(
            f"the adapter {name}",
            f"this installation ({error.name} is missing)",
            hint=f"pip install 'rapport[{_EXTRAS.get(name, 'all')}]'",
        ) from None


def _plugin_adapter(
    name: str, settings: dict[str, Any], around: AdapterContext, plugins: Plugins
) -> OutputAdapter:
    make = partial(plugins.get("adapters", name), settings, around.link_for)
    if is_stateful(make.func):
        return PeerInstances(name, make, around.clock)
    made: OutputAdapter = make()
    return made


def _built_in_adapter(name: str, declared: Communication, around: AdapterContext) -> OutputAdapter:
    """Drivers load here, for adapters that are used."""
    match name:
        case "inbox":
            return InboxAdapter()
        case "ws":
            return PageAdapter(around.pages, declared.media["ws"], around.clock)
        case "mail":
            from rapport.communication.adapters.mail import MailAdapter

            return MailAdapter(
                declared.mail,
                around.link_for,
                around.proof_for,
                clock=around.clock,
                zone_of=around.zone_of,
                reads_replies=any(one.adapter in MAILBOXES for one in declared.inputs),
            )
        case "folder":
            from rapport.communication.adapters.folder import FolderAdapter

            return FolderAdapter(declared.media["folder"], around.proof_for)
        case "ftp":
            from rapport.communication.adapters.ftp import FtpAdapter

            return FtpAdapter(declared.media["ftp"], around.proof_for)
        case "mqtt":
            from rapport.communication.adapters.mqtt import MqttAdapter

            return MqttAdapter(declared.media["mqtt"], around.proof_for, around.clock)
        case "apprise":
            from rapport.communication.adapters.apprise import AppriseAdapter

            return AppriseAdapter(declared.media["apprise"], around.link_for)
        case _:
            from rapport.communication.adapters.webhook import WebhookAdapter

            return WebhookAdapter(declared.webhook, around.link_for, around.clock)


SITE = "component:site"
"""The owner of what the site file declares."""
HTTP_INPUTS = frozenset({"webhook"})
"""Inputs that take what is brought to them and look nowhere."""


class DirectoryPeers:
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


class InputContext(msgspec.Struct, frozen=True):
    """What input adapters need beside their settings."""

    channels: Channels
    clock: Clock
    people: DirectoryPeers
    secret: bytes
    """That of answer tokens."""
    asked: MailQuestions
    plugins: Plugins = msgspec.field(default_factory=Plugins)


class SiteInputs:
    """Runs what the site declares: each input is added when that is possible, and tried again later
    when its medium is not there yet.
    """

    def __init__(
        self, inputs: Inputs, declared: Sequence[InputConfig], around: InputContext
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
        await self._run([pair for pair in self._declared if pair[0].adapter in HTTP_INPUTS])

    async def run_without_doors(self) -> None:
        """As `run`, the others: a mailbox or a folder is looked into by one process at a time."""
        await self._run([pair for pair in self._declared if pair[0].adapter not in HTTP_INPUTS])

    async def _run(self, chosen: Sequence[tuple[InputConfig, InputAdapter]]) -> None:
        tasks = Tasks(self._clock)
        for one, adapter in chosen:
            tasks.start(f"input.{one.name}.add", partial(self._add, one, adapter))
        try:
            await asyncio.Event().wait()
        finally:
            await tasks.stop()
            for one, _ in chosen:
                await self._inputs.remove(one.name)

    async def _add(self, declared: InputConfig, adapter: InputAdapter) -> None:
        await add_input(self._inputs, declared, adapter)


def make_input(declared: InputConfig, around: InputContext) -> InputAdapter:
    """The adapter that a site declares; raises Unsupported when its driver is not installed, and
    InvalidInput for a plug-in that cannot be made.
    """
    make = _MAKERS.get(declared.adapter, _plugin_input)
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


async def add_input(inputs: Inputs, declared: InputConfig, adapter: InputAdapter) -> str:
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


def _plugin_input(declared: InputConfig, around: InputContext) -> InputAdapter:
    """A kind of a package: called with its table of the site file and what every input may use."""
    make = around.plugins.get("inputs", declared.adapter)
    set_aside = dead_letter_inputs(declared.name, around.channels, around.clock)
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


def _cannot_be(declared: InputConfig, why: str) -> InvalidInput:
    return InvalidInput(
        f"[inputs.{declared.name}]: the plug-in {declared.adapter!r} gives no input: {why[:500]}",
        code="input.cannot_make",
        hint="look at its settings beside `adapter`, and at the package that offers it",
    )


def _mqtt_input(declared: InputConfig, around: InputContext) -> InputAdapter:
    from rapport.communication.adapters.mqtt import MqttInput

    set_aside = dead_letter_inputs(declared.name, around.channels, around.clock)
    return MqttInput(declared.settings, around.clock, set_aside)


def _webhook_input(declared: InputConfig, _around: InputContext) -> InputAdapter:
    return WebhookInput(declared.settings)


def _mail_input(declared: InputConfig, around: InputContext) -> InputAdapter:
    from rapport.communication.adapters.imap import ImapInput, ImapPushInput
    from rapport.communication.adapters.mail_replies import AddressBook, mail_context, mail_handlers

    book = AddressBook(around.people, around.clock)
    asked, vouched = around.asked, declared.trusted
    known = mail_context(around.secret, book, asked=asked, vouched=vouched)
    care = mail_handlers(declared.name, around.channels, book, around.clock, asked)
    if declared.adapter == "imap":
        return ImapInput(declared.settings, known, care)
    return ImapPushInput(declared.settings, known, care)


def _folder_input(declared: InputConfig, around: InputContext) -> InputAdapter:
    from rapport.communication.adapters.folder import FolderInput

    return FolderInput(declared.settings, around.clock)


def _ftp_input(declared: InputConfig, around: InputContext) -> InputAdapter:
    from rapport.communication.adapters.ftp import FtpInput

    set_aside = dead_letter_inputs(declared.name, around.channels, around.clock)
    return FtpInput(declared.settings, around.clock, set_aside)


_MAKERS: dict[str, Callable[[InputConfig, InputContext], InputAdapter]] = {
    "folder": _folder_input,
    "ftp": _ftp_input,
    "imap": _mail_input,
    "imap-push": _mail_input,
    "mqtt": _mqtt_input,
    "webhook": _webhook_input,
}


class SealingAdapter:
    """Seals what wants it and passes everything on."""

    def __init__(self, inner: OutputAdapter, sessions: Sessions, clock: Clock) -> None:
        self._inner, self._sessions, self._clock = inner, sessions, clock
        self.name = inner.name
        self.declared = declaration_of(inner)
        self.repeatable = bool(getattr(inner, "repeatable", False))

    async def send(self, delivery: Delivery) -> Outcome | None:
        """A peer without an open session cannot be sent sealed texts now; it may log in later."""
        address, wants_seal = split_sealed(delivery.address)
        if not wants_seal:
            return await self._inner.send(delivery)
        found = await self._sessions.newest_sealing(delivery.peer)
        if found is None:
            reason = "the peer has no open session to seal the text with"
            return Failed(reason, retry=True, unavailable=True)
        session, key = found
        nonce, now_ms = secrets.token_bytes(NONCE_BYTES), self._clock.now_ms()
        seal = Seal("encrypted", delivery.peer, session.id, nonce, now_ms)
        text = seal_text(key, delivery.message, delivery.peer, delivery.text, seal)
        return await self._inner.send(msgspec.structs.replace(delivery, address=address, text=text))

    async def close(self) -> None:
        """Closes what it stands before."""
        await self._inner.close()


def with_seals(adapter: OutputAdapter, sessions: Sessions, clock: Clock) -> OutputAdapter:
    """The adapter, with seals where it says that it carries them."""
    seals = bool(getattr(adapter, "seals", False))
    return SealingAdapter(adapter, sessions, clock) if seals else adapter
