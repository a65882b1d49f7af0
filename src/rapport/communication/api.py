"""The public API of communication for programs, async and blocking. [CO-3, CO-15]

`open_communication` and `CommunicationSync` open communication alone on a directory; a node has it
as `node.communication`. Everything else in `__all__` is what their calls take and return.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import warnings
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import CancelledError, Future
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial, wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypedDict, TypeVar, Unpack

import msgspec

from rapport.channel.backends.stores import open_channels
from rapport.channel.config import channels_from_site
from rapport.channel.log.channels import LoggedChannels
from rapport.communication.adapters.adapter_config import adapter_names
from rapport.communication.adapters.base import (
    Confirmed,
    Delivery,
    Failed,
    Outcome,
    OutputAdapter,
    Sent,
    adapter,
)
from rapport.communication.adapters.base import declaration_of as declared
from rapport.communication.adapters.input_base import (
    InputAdapter,
    InputPullAdapter,
    InputPushAdapter,
    Intake,
)
from rapport.communication.adapters.outputs import make_output
from rapport.communication.arrival_checks import Trusted, never
from rapport.communication.assembly import Assembly, AssemblyOptions
from rapport.communication.config import (
    CommunicationConfig,
    arrivals_from_site,
    communication_from_site,
    engines_from_site,
    services_from_site,
)
from rapport.communication.delivery_state import DEFAULT_OPTIONS, DeliveryOptions, NextReceiver
from rapport.communication.directory_callbacks import (
    Callbacks,
    CollectiveInfo,
    NoSuchCollective,
    NoSuchPeer,
    PeerInfo,
)
from rapport.communication.ledger import (
    LEDGER_FILE,
    Ledger,
    LedgerIndex,
    LedgerPage,
    Question,
    TimelineLine,
)
from rapport.communication.ledger_rows import LedgerRow
from rapport.communication.links import PublicAddress
from rapport.communication.message_info import MessageInformation, RelatedMessage
from rapport.communication.message_query import (
    CriteriaFields,
    LoggedMessage,
    MessagePage,
    QueryCriteria,
    with_log_index,
)
from rapport.communication.notifications import NotificationCallback
from rapport.communication.peers import Collective, Peer
from rapport.communication.routing import RoutingRule
from rapport.communication.sessions.logins import Authenticate
from rapport.core.errors import Conflict, InvalidInput, Problem, RapportError, SiteError
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import Clock, SystemClock
from rapport.kernel.plugins import Plugins
from rapport.kernel.tasks import Tasks, run_blocking, run_in_thread
from rapport.kernel.toml import TomlFile
from rapport.store.segment_store import SEGMENT_BYTES

APPLICATION = Identifier("component", "application")

_NO_SITE = TomlFile("site.toml", "", {})
T = TypeVar("T")
P = ParamSpec("P")
N = TypeVar("N", Peer, Collective)
_LAST_CALLS_SECONDS = 30.0
"""Closing waits so long for pending calls of other threads."""
__all__ = [
    "Authenticate",
    "Collective",
    "CollectiveInfo",
    "Communication",
    "CommunicationSync",
    "Confirmed",
    "Delivery",
    "DeliveryOptions",
    "Failed",
    "Identifier",
    "InputPullAdapter",
    "InputPushAdapter",
    "Intake",
    "LedgerRow",
    "LoggedMessage",
    "Message",
    "MessageInformation",
    "MessagePage",
    "NextReceiver",
    "NoSuchCollective",
    "NoSuchPeer",
    "NotificationCallback",
    "Outcome",
    "OutputAdapter",
    "Peer",
    "PeerInfo",
    "QueryCriteria",
    "Question",
    "RapportError",
    "RelatedMessage",
    "RoutingRule",
    "Sent",
    "adapter",
    "open_communication",
]


class Communication:
    """Sends messages and changes how they are handled.

    All calls belong to the event loop in which it was opened. Errors are `RapportError`s with a
    stable code; a refused call has no effect.
    """

    def __init__(
        self, assembly: Assembly, ledger: Ledger, *, application: Identifier = APPLICATION
    ) -> None:
        """`application`: the author of changes, as the log shows it."""
        self._assembly, self._application = assembly, application
        self.ledger = assembly.mail_questions.ledger = ledger
        """States of messages and deliveries, and answers."""
        self.people = assembly.people
        """Adds, changes and removes peers and collectives while it runs."""
        self.logins = assembly.logins
        """Sets and removes passwords."""
        self.arrivals = assembly.arrivals
        """Takes messages from outside, for endpoints of one's own."""
        self.arrivals.expire_answers_by(ledger.closed_before)

    # --- messages ---

    async def send(
        self,
        message: Message,
        *,
        options: DeliveryOptions = DEFAULT_OPTIONS,
        wishes: DeliveryOptions | None = None,
    ) -> str:
        """Takes a message to be delivered and returns its id, durable; does not wait for the
        delivery. Notification callbacks get its fate, when the sender is a component.

        The receiver is a peer, a collective or a component; without one the message goes to the
        notification callbacks. `options`: how many have to answer, until when, and escalation.

        Raises InvalidInput for a message that cannot be sent. Cost: one group commit, shared with
        concurrent sends.
        """
        (id,) = await self.send_all([message], options=_given_options(options, wishes))
        return id

    async def send_all(
        self,
        messages: Sequence[Message],
        *,
        options: DeliveryOptions = DEFAULT_OPTIONS,
        wishes: DeliveryOptions | None = None,
    ) -> list[str]:
        """As `send` for many messages, all or none; their ids in order. One group commit."""
        if not messages:
            return []
        return await self._assembly.arrivals.send(messages, options=_given_options(options, wishes))

    # --- routing ---

    async def add_routing(self, rule: RoutingRule) -> str:
        """Puts a rule in force, for good, and returns its id. The same rule again changes nothing.

        Raises InvalidInput for a rule that matches everything or names no receiver, DuplicateName
        when another rule has its id.
        """
        return await self._assembly.services.routing.add(rule, by=str(self._application))

    async def remove_routing(self, rule_id: str) -> RoutingRule | None:
        """Takes a rule out of force and returns it; None when there is none of that id. Raises
        Conflict for a rule of the site file.
        """
        return await self._assembly.services.routing.remove(rule_id, by=str(self._application))

    # --- input ---

    async def add_push_adapter(
        self, adapter: InputPushAdapter, *, name: str = "", trusted: Trusted = never
    ) -> str:
        """Starts a push adapter and returns its id. One that cannot start is not added: raises
        Unavailable, or the RapportError that it raised.

        `name`: its id and that of its durable memory, the same after a restart. `trusted`: whether
        the medium proves the sender of a message.
        """
        return await self._assembly.inputs.add_push(
            adapter, name=name, owner=str(self._application), trusted=trusted
        )

    async def add_pull_adapter(
        self,
        adapter: InputPullAdapter,
        interval_ms: int | None,
        delete_if_successful: bool = False,
        *,
        deadline_ms: int | None = None,
        name: str = "",
        trusted: Trusted = never,
    ) -> str:
        """Pulls an adapter every `interval_ms`, never twice at a time; returns its id. With
        `delete_if_successful` it is removed after the first pull that found something, with a
        deadline (ms UTC) after a last pull at that time. Without an interval it is pulled at the
        deadline or by `request_pull`.

        Raises InvalidInput for an interval that is not positive. `name` and `trusted` as in
        `add_push_adapter`.
        """
        return await self._assembly.inputs.add_pull(
            adapter,
            interval_ms,
            delete_if_successful,
            deadline_ms,
            name=name,
            owner=str(self._application),
            trusted=trusted,
        )

    async def request_pull(self, adapter_id: str, *, ttl_ms: int = 0) -> str:
        """Pulls an adapter now; returns the request's id, durable. With a time to live it is pulled
        until something comes; after it notification callbacks get TIMEOUT.

        Raises UnknownName, or InvalidInput for an adapter that is not pulled.
        """
        return await self._assembly.inputs.request(
            adapter_id, requester=self._application, ttl_ms=ttl_ms
        )

    async def remove_input_adapter(self, adapter_id: str) -> InputAdapter | None:
        """Ends an input adapter and returns it once nothing of it runs; None when there is none of
        that id.
        """
        return await self._assembly.inputs.remove(adapter_id)

    # --- output ---

    async def register_output_adapter(self, kind: type[Any]) -> str:
        """Adds an output adapter: a class declared with `@adapter(NAME)`, whose id is that name.
        Stateless: one instance, made now. Stateful: one for each peer, made on first use.

        Deliveries that waited for the adapter since before the last start fail before this can be
        called; pass the class to `open_communication` instead.

        Raises InvalidInput for a class that is not declared, cannot be made or has no usable name,
        DuplicateName when there is such an adapter.
        """
        return await self._assembly.outputs.register(kind)

    async def remove_output_adapter(self, adapter_id: str) -> bool:
        """Removes an output adapter: nothing more is queued for it, and pending deliveries have
        gone out when it returns. False when there is none of that id.
        """
        return await self._assembly.outputs.remove(adapter_id)

    # --- callbacks ---

    async def add_notification_callback(
        self, callback: NotificationCallback, *, name: str = ""
    ) -> str:
        """Calls this with messages to components, with messages that have no receiver, and with
        ACK, COMERROR and TIMEOUT about messages that components sent; in order. Returns its id.

        A plain function is called in the event loop and must not block it. With a `name` it
        continues after a restart where it stopped, at least once; without, it gets what comes from
        now on. Its errors are logged and have no effect. Raises DuplicateName.
        """
        return self._assembly.engine.add_notification(callback, name)

    async def remove_notification_callback(self, callback_id: str) -> bool:
        """Removes a callback; False when there is none of that id."""
        return self._assembly.engine.remove_notification(callback_id)

    # --- queries and message info ---

    def create_query(self, **criteria: Unpack[CriteriaFields]) -> QueryCriteria:
        """A query over all handled messages: narrow it down with `where`, then read it page by page
        (`page`) or with `async for`. Raises InvalidInput for invalid criteria.
        """
        return self._assembly.services.queries.create_query(**criteria)

    async def info_for_message(
        self, message: Message | None = None, *, id: str = "", type: str = "", subtype: str = ""
    ) -> MessageInformation:
        """The meaning, answers and related messages of a message, of the one with this id, or of a
        type.

        Raises UnknownName (`message.unknown`) when no message has that id or the type is unknown,
        InvalidInput when none or several of them are given.
        """
        if message is not None:
            if id or type or subtype:
                raise InvalidInput(
                    "a message already has its type",
                    code="info.asked_twice",
                    hint="give the message, or its id, or a type",
                )
            type, subtype = message.type, message.subtype
        infos = self._assembly.services.infos
        return (await infos.info_for_message(id=id, type=type, subtype=subtype)).information

    async def add_message_info(
        self, type: str, subtype: str, information: MessageInformation
    ) -> None:
        """Adds or replaces the information about a type of message; durable when it returns. An
        empty subtype stands for all subtypes without an entry of their own.

        Raises InvalidInput for an invalid text, name or JSON Schema.
        """
        infos = self._assembly.services.infos
        await infos.add_message_info(type, subtype, information, by=str(self._application))


def _given_options(options: DeliveryOptions, wishes: DeliveryOptions | None) -> DeliveryOptions:
    """The options under their former keyword, which goes with the next release."""
    if wishes is None:
        return options
    warnings.warn("wishes= is called options= now", DeprecationWarning, stacklevel=3)
    return wishes


class OpenOptions(TypedDict, total=False):
    """The keyword arguments of `open_communication`."""

    peers: Iterable[Peer]
    collectives: Iterable[Collective]
    outputs: Iterable[type[Any]]
    peer_info: PeerInfo | None
    collective_info: CollectiveInfo | None
    authenticate: Authenticate | None
    site: Path | str | None
    public_url: str
    application: str
    clock: Clock | None


@asynccontextmanager
async def open_communication(
    directory: Path | str,
    *,
    peers: Iterable[Peer] = (),
    collectives: Iterable[Collective] = (),
    outputs: Iterable[type[Any]] = (),
    peer_info: PeerInfo | None = None,
    collective_info: CollectiveInfo | None = None,
    authenticate: Authenticate | None = None,
    site: Path | str | None = None,
    public_url: str = "",
    application: str = str(APPLICATION),
    clock: Clock | None = None,
) -> AsyncIterator[Communication]:
    """Opens the channels, records and adapters in a directory, which is created if missing, and
    runs them until the block ends. Pending messages continue.

    Args:
        directory: Where everything is stored; one process at a time.
        peers: Peers besides those of `site`, those added at run time, and those of the callbacks.
        collectives: The same for collectives.
        outputs: Own output adapters, classes declared with `@adapter(NAME)`.
        peer_info: Looks up a peer; cached for a minute.
        collective_info: Looks up a collective, at every sending.
        authenticate: Checks a password, in place of those stored here.
        site: A site file of which `[peers]`, `[collectives]`, `[adapters]`, `[inputs]`,
            `[routing]`, `[messages]`, `[sessions]`, `[arriving]`, `[engines]` and `[channels]` are
            used.
        public_url: Base address of links in messages; empty = no links.
        application: The caller as the log shows it: `component:NAME`.
        clock: In place of the machine's clock, for tests.

    Raises SiteError for a wrong site, InvalidInput for an adapter that cannot be made, and
    StoreUnavailable when another process works on the directory. Costs what the last segment of the
    log needs to be read after a crash, next to nothing otherwise.
    """
    clock, directory = clock or SystemClock(), Path(directory)
    file = await run_blocking(partial(TomlFile.load, Path(site))) if site else _NO_SITE
    lookup = directory if site is None else Path(site).parent  # of secrets and privacy functions
    plugins, own = Plugins(), {declared(kind).name: make_output(kind, clock) for kind in outputs}
    for name, made in own.items():
        plugins.add("adapters", name, _factory_of(made))
    config = _config(file, lookup, plugins, peers, collectives, outputs=tuple(own))
    callbacks = Callbacks(
        peer_info=peer_info, collective_info=collective_info, authenticate=authenticate
    )
    options = _options(file, lookup, config, plugins, public_url, callbacks)
    async with AsyncExitStack() as closing:
        channels = await run_blocking(partial(_open_channels, directory, clock, file, lookup))
        closing.push_async_callback(channels.close)
        ledger = await run_blocking(lambda: Ledger(channels, LedgerIndex(directory / LEDGER_FILE)))
        closing.callback(ledger.close)
        assembly = _assembly(channels, clock, config, options)
        closing.push_async_callback(assembly.close)
        await assembly.people.open()
        await assembly.services.open()
        tasks = Tasks(clock)
        closing.push_async_callback(tasks.stop)
        tasks.start("retention", channels.sweeper.run)
        for name, work in assembly.work().items():
            tasks.start(name, work)
        yield Communication(assembly, ledger, application=Identifier.parse(application))


def _options(
    file: TomlFile,
    site: Path,
    config: CommunicationConfig,
    plugins: Plugins,
    public_url: str,
    callbacks: Callbacks,
) -> AssemblyOptions:
    services = services_from_site(file, site, peers=config.peers, collectives=config.collectives)
    return AssemblyOptions(
        address=PublicAddress(public_url),
        plugins=plugins,
        site=site,
        arrivals=_checked(arrivals_from_site(file)),
        services=_checked(services),
        callbacks=callbacks,
        engines=_checked(engines_from_site(file)),
        acts=False,
    )


def _assembly(
    channels: LoggedChannels, clock: Clock, config: CommunicationConfig, options: AssemblyOptions
) -> Assembly:
    """Blocks briefly: it reads the secret of answer links."""
    return Assembly(channels, channels.records, clock, config, options)


def _open_channels(directory: Path, clock: Clock, file: TomlFile, site: Path) -> LoggedChannels:
    rules = with_log_index(_checked(channels_from_site(file)))
    channels = open_channels(directory, clock, rules, site=site, segment_bytes=SEGMENT_BYTES)
    channels.use_rules(rules)
    return channels


def _config(
    file: TomlFile,
    directory: Path,
    plugins: Plugins,
    peers: Iterable[Peer],
    collectives: Iterable[Collective],
    *,
    outputs: tuple[str, ...],
) -> CommunicationConfig:
    """The configuration of the site file with the given people."""
    known = adapter_names(plugins)
    config = _checked(communication_from_site(file, directory, adapters=known))
    together = msgspec.structs.replace(
        config,
        peers=_merged("peer", config.peers, peers),
        collectives=_merged("collective", config.collectives, collectives),
        wanted=(*config.wanted, *outputs),
    )
    later = tuple(name for name in together.adapters() if name not in known)
    return msgspec.structs.replace(together, registered_later=later)


def _factory_of(made: OutputAdapter) -> Callable[..., OutputAdapter]:
    """The factory of a plug-in that exists already."""
    return lambda _settings, _link_for: made


def _checked(read: tuple[T, list[Problem]]) -> T:
    """The configuration without its problems; raises SiteError with all of them."""
    config, problems = read
    if any(problem.severity == "error" for problem in problems):
        raise SiteError(problems)
    return config


def _merged(kind: str, declared: Mapping[str, N], given: Iterable[N]) -> dict[str, N]:
    """Both by name; raises InvalidInput for a duplicate name."""
    found = dict(declared)
    for one in given:
        if one.name in found:
            raise InvalidInput(
                f"the {kind} {one.name!r} is given twice",
                code=f"{kind}.given_twice",
                hint="leave one of them out",
            )
        found[one.name] = one
    return found


class LoopThread:
    """An event loop in a thread of its own, with `Communication` open in it."""

    def __init__(self, directory: Path | str, options: OpenOptions) -> None:
        """Returns when it is open; raises what opening raises."""
        self._guard, self._closing = threading.Lock(), False
        self._calls: set[Future[Any]] = set()
        self._opened: Future[Communication] = Future()
        self._in_callback = threading.local()
        self._failure: BaseException | None = None
        work = partial(self._work, directory, options)
        # A daemon: a program that forgets to close can still end; nothing is lost by that.
        self._thread = threading.Thread(target=work, name="communication", daemon=True)
        self._thread.start()
        self.communication = self._opened.result()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the loop and waits for it. Raises Conflict when it is closed, or when
        called in the loop's own thread, which would wait for itself.
        """
        try:
            future = self._submitted(work)
        except BaseException:
            work.close()
            raise
        try:
            return future.result()
        except CancelledError:
            raise _closed("was closed meanwhile; the call may have been carried out") from None
        except BaseException:
            future.cancel()
            raise
        finally:
            with self._guard:
                self._calls.discard(future)

    def aside(self, callback: NotificationCallback) -> NotificationCallback:
        """Wraps a callback so that it may block and call back: a plain function runs in a worker
        thread.
        """

        async def call(message: Message) -> None:
            # Not one of the loop's own threads: those are few, and the engine needs them.
            waited_for = await run_in_thread(
                partial(self._called, callback, message), name="callback"
            )
            if inspect.isawaitable(waited_for):
                await waited_for

        return call

    def close(self) -> None:
        """Waits for pending calls, then closes everything and ends the thread; a second call is no
        error. Raises Conflict inside a callback, which would wait for itself.
        """
        if threading.current_thread() is self._thread or getattr(self._in_callback, "it", False):
            raise Conflict(
                "a callback cannot close what called it",
                code="communication.own_thread",
                hint="close it in the thread that opened it",
            )
        with self._guard:
            is_first, self._closing = not self._closing, True
        if is_first:
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        if is_first and self._failure is not None:
            raise self._failure

    # --- parts ---

    def _submitted(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if threading.current_thread() is self._thread:
            raise Conflict(
                "this call would wait for itself",
                code="communication.own_thread",
                hint="a coroutine uses Communication, a plain function may use CommunicationSync",
            )
        with self._guard:
            # Under the guard, so that closing sees every call that was let in.
            if self._closing:
                raise _closed("is closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._calls.add(future)
        return future

    def _called(self, callback: NotificationCallback, message: Message) -> Any:
        self._in_callback.it = True
        try:
            return callback(message)
        finally:
            self._in_callback.it = False

    def _work(self, directory: Path | str, options: OpenOptions) -> None:
        try:
            asyncio.run(self._until_closed(directory, options))
        except BaseException as error:
            if self._opened.done():
                self._failure = error
            else:
                self._opened.set_exception(error)

    async def _until_closed(self, directory: Path | str, options: OpenOptions) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        async with open_communication(directory, **options) as communication:
            self._opened.set_result(communication)
            await self._end.wait()
            with self._guard:
                calls = [asyncio.wrap_future(call) for call in self._calls if not call.done()]
            if calls:
                await asyncio.wait(calls, timeout=_LAST_CALLS_SECONDS)


def _closed(what: str) -> Conflict:
    return Conflict(f"communication {what}", code="communication.closed", hint="open it anew")


class QuerySync:
    """A query for programs without asyncio; see QueryCriteria."""

    def __init__(self, thread: LoopThread, query: QueryCriteria) -> None:
        self._thread, self._query = thread, query

    def where(self, **given: Unpack[CriteriaFields]) -> QuerySync:
        """Adds or replaces criteria."""
        return QuerySync(self._thread, self._query.where(**given))

    def newest_first(self) -> QuerySync:
        return QuerySync(self._thread, self._query.newest_first())

    def page(self, token: str = "") -> MessagePage:
        """The first page, or that of a token."""
        return self._thread.call(self._query.page(token))

    def __iter__(self) -> Iterator[LoggedMessage]:
        """Every match, page after page."""
        page = self.page()
        yield from page.messages
        while page.next_token:
            page = self.page(page.next_token)
            yield from page.messages


class LedgerSync:
    """The ledger for programs without asyncio; see Ledger."""

    def __init__(self, thread: LoopThread) -> None:
        self._thread = thread

    def find(self, question: Question) -> LedgerPage:
        """A page of matching rows, newest change first, up to date."""
        return self._thread.call(self._thread.communication.ledger.find(question))

    def timeline(self, message: str) -> list[TimelineLine]:
        """All lines about a message, in order; raises UnknownName."""
        return self._thread.call(self._thread.communication.ledger.timeline(message))


def _blocking(
    method: Callable[Concatenate[Communication, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[CommunicationSync, P], T]:
    """The same call for `CommunicationSync`."""

    @wraps(method)
    def call(sync: CommunicationSync, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return sync._thread.call(method(sync._communication, *args, **kwargs))

    return call


class CommunicationSync:
    """`Communication` for programs without asyncio: every call may come from any thread and blocks
    until it is done.

    Takes the arguments of `open_communication`; `with` closes it. Callbacks that are plain
    functions are called in worker threads, one message at a time, and may call back. Adapters are
    coroutines as always and run in the loop.
    """

    def __init__(self, directory: Path | str, **options: Unpack[OpenOptions]) -> None:
        self._thread = LoopThread(directory, options)
        self._communication = self._thread.communication
        self.ledger = LedgerSync(self._thread)

    def __enter__(self) -> CommunicationSync:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes everything after pending calls of other threads; a second call is no error."""
        self._thread.close()

    send = _blocking(Communication.send)
    send_all = _blocking(Communication.send_all)
    add_routing = _blocking(Communication.add_routing)
    remove_routing = _blocking(Communication.remove_routing)
    add_push_adapter = _blocking(Communication.add_push_adapter)
    add_pull_adapter = _blocking(Communication.add_pull_adapter)
    request_pull = _blocking(Communication.request_pull)
    remove_input_adapter = _blocking(Communication.remove_input_adapter)
    register_output_adapter = _blocking(Communication.register_output_adapter)
    remove_output_adapter = _blocking(Communication.remove_output_adapter)
    remove_notification_callback = _blocking(Communication.remove_notification_callback)
    info_for_message = _blocking(Communication.info_for_message)
    add_message_info = _blocking(Communication.add_message_info)

    def add_notification_callback(self, callback: NotificationCallback, *, name: str = "") -> str:
        """See Communication.add_notification_callback; a plain function may block and call back."""
        aside = self._thread.aside(callback)
        return self._thread.call(self._communication.add_notification_callback(aside, name=name))

    def create_query(self, **criteria: Unpack[CriteriaFields]) -> QuerySync:
        """See Communication.create_query; read it with `page` or `for`."""
        return QuerySync(self._thread, self._communication.create_query(**criteria))
