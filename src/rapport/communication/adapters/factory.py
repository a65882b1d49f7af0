"""Creates the output and input adapters of a site, built in or plugged in, and runs its inputs.
[CO-4, CO-5, CO-11, CO-16, CO-17, UX-9]

An adapter with `seals = True` is wrapped so that texts for addresses that end with `;sealed` are
encrypted with the key of the peer's newest session: media on the way cannot read them. The receiver
and the answer link stay readable.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from rapport.channel.channel import Channels
from rapport.communication.adapters.adapter_config import BUILT_IN, InputConfig
from rapport.communication.adapters.apprise import AppriseAdapter
from rapport.communication.adapters.base import (
    Delivery,
    Failed,
    Outcome,
    OutputAdapter,
    declaration_of,
    is_repeatable,
    is_stateful,
)
from rapport.communication.adapters.folder import FolderAdapter, FolderInput
from rapport.communication.adapters.ftp import FtpAdapter, FtpInput
from rapport.communication.adapters.imap import ImapInput, ImapPushInput
from rapport.communication.adapters.inbox import InboxAdapter, OpenPages, PageAdapter
from rapport.communication.adapters.input_base import (
    InputAdapter,
    InputHost,
    InputPullAdapter,
    dead_letter_inputs,
)
from rapport.communication.adapters.inputs import Inputs
from rapport.communication.adapters.mail import MailAdapter
from rapport.communication.adapters.mail_replies import (
    AddressBook,
    MailHandlers,
    MailQuestions,
    mail_context,
)
from rapport.communication.adapters.mqtt import MqttAdapter, MqttInput
from rapport.communication.adapters.outputs import PeerInstances
from rapport.communication.adapters.webhook import WebhookAdapter, WebhookInput
from rapport.communication.arrival_checks import never
from rapport.communication.directory import StoredDirectory
from rapport.communication.sessions.seals import NONCE_BYTES, Seal, seal_text, split_sealed
from rapport.communication.sessions.sessions import Sessions
from rapport.core.errors import InvalidInput, RapportError, Unsupported
from rapport.core.message import Message
from rapport.kernel.clock import Clock
from rapport.kernel.plugins import Plugins
from rapport.kernel.tasks import Tasks

if TYPE_CHECKING:
    from rapport.communication.config import CommunicationConfig

_EXTRAS = {"apprise": "notify", "mqtt": "mqtt"}
_MAILBOXES = ("imap", "imap-push")
"""Kinds of inputs that read replies to mails."""
SITE = "component:site"
"""The owner of the inputs that the site file declares."""
HTTP_INPUTS = frozenset({"webhook"})
"""Kinds of inputs that only receive, and poll nothing."""
ZoneOf = Callable[[str], Awaitable[str]]
LinkFor = Callable[[str, str], str]
"""Message and peer to the address of the page to answer on; empty text = no link."""


# --- outputs ---


class AdapterContext(msgspec.Struct, frozen=True):
    """The parts of the node that output adapters need beside their settings."""

    link_for: LinkFor
    proof_for: LinkFor
    """Message and peer to the token that proves an answer."""
    pages: OpenPages
    clock: Clock
    zone_of: ZoneOf
    """Peer to the time zone in which times are shown."""
    plugins: Plugins = msgspec.field(default_factory=Plugins)


def make_adapters(
    declared: CommunicationConfig, context: AdapterContext
) -> dict[str, OutputAdapter]:
    """One instance of each adapter that the peers need.

    A plug-in is called with its table of the site file and `link_for`, a stateful one for each peer
    and with the peer's address, too. Raises UnknownName, or Unsupported when the extra with a
    built-in's driver is not installed.
    """
    return {name: _make(name, declared, context) for name in declared.adapters()}


def _make(name: str, declared: CommunicationConfig, context: AdapterContext) -> OutputAdapter:
    if name not in BUILT_IN:
        return _plugin_adapter(name, declared.plugin_settings.get(name, {}), context)
    try:
        return _built_in_adapter(name, declared, context)
    except ImportError as error:
        raise Unsupported(
            f"the adapter {name}",
            f"this installation ({error.name} is missing)",
            hint=f"pip install 'rapport[{_EXTRAS.get(name, 'all')}]'",
        ) from None


def _plugin_adapter(name: str, settings: dict[str, Any], context: AdapterContext) -> OutputAdapter:
    make = partial(context.plugins.get("adapters", name), settings, context.link_for)
    if is_stateful(make.func):
        return PeerInstances(name, make, context.clock)
    made: OutputAdapter = make()
    return made


def _built_in_adapter(
    name: str, declared: CommunicationConfig, context: AdapterContext
) -> OutputAdapter:
    settings: Any = declared.media.get(name)
    match name:
        case "inbox":
            return InboxAdapter()
        case "ws":
            return PageAdapter(context.pages, settings, context.clock)
        case "mail":
            return MailAdapter(
                settings,
                context.link_for,
                context.proof_for,
                clock=context.clock,
                zone_of=context.zone_of,
                reads_replies=any(one.adapter in _MAILBOXES for one in declared.inputs),
            )
        case "folder":
            return FolderAdapter(settings, context.proof_for)
        case "ftp":
            return FtpAdapter(settings, context.proof_for)
        case "mqtt":
            return MqttAdapter(settings, context.proof_for, context.clock)
        case "apprise":
            return AppriseAdapter(settings, context.link_for)
        case _:
            return WebhookAdapter(settings, context.link_for, context.clock)


class SealingAdapter:
    """Seals texts for addresses that end with `;sealed`, then calls the wrapped adapter."""

    def __init__(self, inner: OutputAdapter, sessions: Sessions, clock: Clock) -> None:
        self._inner, self._sessions, self._clock = inner, sessions, clock
        self.name = inner.name
        self.declared = declaration_of(inner)
        self.repeatable = is_repeatable(inner)

    async def send(self, delivery: Delivery) -> Outcome | None:
        """Unavailable while the peer has no open session; it may log in later."""
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
        await self._inner.close()


def with_seals(adapter: OutputAdapter, sessions: Sessions, clock: Clock) -> OutputAdapter:
    """The adapter, wrapped if it carries seals."""
    seals = bool(getattr(adapter, "seals", False))
    return SealingAdapter(adapter, sessions, clock) if seals else adapter


# --- inputs ---


class InputContext(msgspec.Struct, frozen=True):
    """The parts of the node that input adapters need beside their settings."""

    channels: Channels
    clock: Clock
    people: StoredDirectory
    secret: bytes
    """For answer tokens."""
    questions: MailQuestions
    plugins: Plugins = msgspec.field(default_factory=Plugins)


class SiteInputs:
    """Runs the inputs that the site declares. An input whose medium is not available yet is added
    later.
    """

    def __init__(
        self, inputs: Inputs, declared: Sequence[InputConfig], context: InputContext
    ) -> None:
        """Raises Unsupported when a driver is not installed, and InvalidInput for a plug-in that
        cannot be created.
        """
        self._inputs, self._clock = inputs, context.clock
        self._declared = [(one, make_input(one, context)) for one in declared]

    def adapters(self, kind: str) -> dict[str, InputAdapter]:
        return {one.name: adapter for one, adapter in self._declared if one.adapter == kind}

    async def run(self) -> None:
        """Runs until cancelled; then all inputs are removed."""
        await self._run(self._declared)

    async def run_http(self) -> None:
        """As `run`, HTTP inputs only: each of several processes runs its own, since all of them
        write to the same `input`.
        """
        await self._run([pair for pair in self._declared if pair[0].adapter in HTTP_INPUTS])

    async def run_polled(self) -> None:
        """As `run`, the other inputs: one process at a time polls a mailbox or a folder."""
        await self._run([pair for pair in self._declared if pair[0].adapter not in HTTP_INPUTS])

    async def _run(self, chosen: Sequence[tuple[InputConfig, InputAdapter]]) -> None:
        tasks = Tasks(self._clock)
        for one, adapter in chosen:
            tasks.start(f"input.{one.name}.add", partial(add_input, self._inputs, one, adapter))
        try:
            await asyncio.Event().wait()
        finally:
            await tasks.stop()
            for one, _ in chosen:
                await self._inputs.remove(one.name)


def web_inputs_of(inputs: SiteInputs) -> dict[str, WebhookInput]:
    """The HTTP inputs by name; the web package adds an endpoint for each."""
    found = inputs.adapters("webhook").items()
    return {name: adapter for name, adapter in found if isinstance(adapter, WebhookInput)}


async def add_input(inputs: Inputs, declared: InputConfig, adapter: InputAdapter) -> None:
    """Adds a declared input under its name, owned by the site."""
    trusted = _is_from_peer if declared.trusted else never
    if isinstance(adapter, InputPullAdapter):
        await inputs.add_pull(
            adapter, declared.interval_ms, name=declared.name, owner=SITE, trusted=trusted
        )
    else:
        await inputs.add_push(adapter, name=declared.name, owner=SITE, trusted=trusted)


def _is_from_peer(message: Message) -> bool:
    """A medium proves peers only: no component sends from outside."""
    return message.sender.kind == "peer"


def make_input(declared: InputConfig, context: InputContext) -> InputAdapter:
    """The adapter of a declared input; raises Unsupported when its driver is not installed, and
    InvalidInput for a plug-in that cannot be created.
    """
    try:
        return _input(declared, context)
    except ImportError as error:
        raise Unsupported(
            f"the input {declared.adapter}", f"this installation ({error.name} is missing)"
        ) from None


def _input(declared: InputConfig, context: InputContext) -> InputAdapter:
    settings, clock = declared.settings, context.clock
    dead_letter = dead_letter_inputs(declared.name, context.channels, clock)
    match declared.adapter:
        case "folder":
            return FolderInput(settings, clock)
        case "ftp":
            return FtpInput(settings, clock, dead_letter)
        case "mqtt":
            return MqttInput(settings, clock, dead_letter)
        case "webhook":
            return WebhookInput(settings)
        case "imap" | "imap-push":
            book, questions = AddressBook(context.people, clock), context.questions
            known = mail_context(
                context.secret, book, questions=questions, vouched=declared.trusted
            )
            handlers = MailHandlers(declared.name, context.channels, book, clock, questions)
            kind = ImapInput if declared.adapter == "imap" else ImapPushInput
            return kind(settings, known, handlers)
    host = InputHost(
        name=declared.name, directory=declared.directory, clock=clock, set_aside=dead_letter
    )
    return _plugin_input(declared, context.plugins.get("inputs", declared.adapter), host)


def _plugin_input(
    declared: InputConfig, make: Callable[[Any, InputHost], Any], host: InputHost
) -> InputAdapter:
    try:
        made = make(declared.settings, host)
    except (RapportError, ImportError):
        raise
    except Exception as error:
        raise _cannot_make(declared, f"{type(error).__name__}: {error}") from error
    if not callable(getattr(made, "pull", None)) and not callable(getattr(made, "start", None)):
        raise _cannot_make(declared, "it has neither `pull` nor `start`")
    adapter: InputAdapter = made
    return adapter


def _cannot_make(declared: InputConfig, why: str) -> InvalidInput:
    return InvalidInput(
        f"[inputs.{declared.name}]: the plug-in {declared.adapter!r} returns no input: {why[:500]}",
        code="input.cannot_make",
        hint="look at its settings beside `adapter`, and at the package that offers it",
    )
