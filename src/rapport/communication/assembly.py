"""Builds communication from the configuration of a site: engine, adapters, dispatches, services.
[CO-4, PO-10]
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from rapport.channel.channel import AppendResult, Channels
from rapport.communication.actions import Action, EndPhrases, Phrases, PolicyActions, no_own_actions
from rapport.communication.adapters.adapter_config import BUILT_IN
from rapport.communication.adapters.append import Append, AppendAdapter
from rapport.communication.adapters.attempts import OutcomeData
from rapport.communication.adapters.base import Delivery, OutputAdapter
from rapport.communication.adapters.dispatch import Dispatch
from rapport.communication.adapters.factory import (
    AdapterContext,
    InputContext,
    SiteInputs,
    make_adapters,
    web_inputs_of,
    with_seals,
)
from rapport.communication.adapters.inbox import OpenPages
from rapport.communication.adapters.inputs import Inputs
from rapport.communication.adapters.mail_replies import MailQuestions
from rapport.communication.adapters.outputs import Outputs, PrivacyRecheck
from rapport.communication.answers import Declines
from rapport.communication.arrivals import Arrivals
from rapport.communication.cluster import (
    Cluster,
    SharedOutputs,
    SiteReloads,
    announced,
    made_or_elsewhere,
)
from rapport.communication.cluster_leases import ShareSettings, check_unshared
from rapport.communication.config import ArrivalConfig, CommunicationConfig, ServicesConfig
from rapport.communication.delivery_runner import EngineParts
from rapport.communication.delivery_state import DEFAULT_RETRY, RetryPolicy
from rapport.communication.directory import DirectoryChanges, PeopleChange, StoredDirectory
from rapport.communication.directory_callbacks import NO_CALLBACKS, CallbackDirectory, Callbacks
from rapport.communication.engine import CommunicationEngine
from rapport.communication.links import (
    LinkEditions,
    PublicAddress,
    answer_link,
    answer_secret,
    answer_token,
)
from rapport.communication.message_info import InfoResponder, MessageInfoService, Send
from rapport.communication.message_plan import assume_listeners
from rapport.communication.message_query import MessageQueries
from rapport.communication.peers import CachedDirectory, PeerDirectory, SiteDirectory
from rapport.communication.privacy import WorkerPrivacyFunctions
from rapport.communication.records import LookupCounts
from rapport.communication.routing import RoutingRecords
from rapport.communication.sessions.logins import Authenticator, Logins
from rapport.communication.sessions.passwords import Passwords
from rapport.communication.sessions.sessions import Sessions
from rapport.communication.texts import Facts, TextReader, no_facts
from rapport.core.errors import RapportError, Unsupported
from rapport.core.event import Event
from rapport.core.message import Identifier
from rapport.kernel.clock import Chance, Clock, Ids
from rapport.kernel.plugins import Plugins
from rapport.kernel.tasks import close_all, run_blocking
from rapport.store.base import RecordStore

INPUTS = "communication.inputs"
"""The task that runs the inputs of the site."""


class MessageServices:
    """Routing rules, message queries and message info of one node."""

    def __init__(
        self,
        channels: Channels,
        records: RecordStore,
        clock: Clock,
        declared: ServicesConfig,
        *,
        send: Send | None = None,
    ) -> None:
        """`send`: sends replies to MESSAGEINFO REQUESTs; None = they are not answered."""
        self.routing = RoutingRecords(channels, records, clock, of_site=declared.rules)
        self.queries = MessageQueries(channels, clock)
        self.infos = MessageInfoService(channels, records, clock, of_site=declared.information)
        self._answers = InfoResponder(channels, self.infos, send) if send is not None else None

    async def open(self) -> None:
        """Loads the entries that were added at run time; to be called before the engine starts."""
        await self.routing.open()
        await self.infos.open()

    def work(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The background tasks by name; each may be restarted."""
        return {} if self._answers is None else {"message info": self._answers.run}


class AssemblyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Additions of a program or node to the configuration of communication."""

    phrases: Phrases | Mapping[str, Sequence[str]] = {}
    """The action phrases of each version of a policy."""
    own_actions: PolicyActions = no_own_actions
    """The actions that a version of a policy declares itself."""
    end_phrases: EndPhrases | Mapping[str, Sequence[str]] = {}
    """The phrases of `actions when cleared`; None for a version without a situation."""
    facts: Facts = no_facts
    """Looks columns of an alias up in tables, for texts."""
    append: Append | None = None
    """How actions append their events; None = directly to the channel."""
    address: PublicAddress = msgspec.field(default_factory=PublicAddress)
    """The address of the node, read at each sending: it is known only when its endpoints are
    open. Empty = no links in messages."""
    plugins: Plugins = msgspec.field(default_factory=Plugins)
    site: Path = Path()
    """The directory of the site, with its privacy functions."""
    arrivals: ArrivalConfig = ArrivalConfig()
    services: ServicesConfig = ServicesConfig()
    callbacks: Callbacks = NO_CALLBACKS
    """Callbacks of the application; their coroutines run in the loop that is running now."""
    retry: RetryPolicy = DEFAULT_RETRY
    engines: ShareSettings | None = None
    """Set where other processes work on the same channels and records."""
    acts: bool = True
    """With `engines`: this process knows the policies."""


class Assembly:
    """Everything of communication that a node starts and stops: `work()` names the background
    tasks, `close` ends the adapters.
    """

    def __init__(
        self,
        channels: Channels,
        records: RecordStore,
        clock: Clock,
        declared: CommunicationConfig,
        options: AssemblyOptions,
    ) -> None:
        """Reads the secret of answer links from the records (blocks briefly). Raises UnknownName or
        Unsupported for an adapter that is not installed.
        """
        self._channels, self._records, self._clock = channels, records, clock
        self._options, self._reader = options, TextReader(declared.zone, declared.language)
        self.secret = answer_secret(records)
        self._sessions = Sessions(records, clock, options.arrivals.sessions)
        self._build_outputs(declared)
        self._build_directory(declared)
        self._build_logins()
        self._build_inputs(declared)
        self._build_engine(declared)

    # --- builders ---

    def _build_outputs(self, declared: CommunicationConfig) -> None:
        options, clock = self._options, self._clock
        self.pages = OpenPages()
        proof_for = partial(answer_token, self.secret)
        context = AdapterContext(
            self.link_for, proof_for, self.pages, clock, self.zone_of, options.plugins
        )
        self._make_adapters = partial(make_adapters, context=context)
        self._sealed = partial(with_seals, sessions=self._sessions, clock=clock)
        self.adapters = self._adapters_of(declared)
        self._sending = dict(declared.sending)
        self._instance = Ids(clock, Chance.from_machine()).new()
        self.outputs: Outputs
        if options.engines is None:
            self.outputs = Outputs(
                self._channels,
                self._records,
                clock,
                report=self._report,
                is_decided=lambda message, peer: self.engine.is_decided(message, peer),
                recall=lambda message, peer: self.engine.recall_decision(message, peer),
                may_go=self._may_go,
                settings=self._sending,
            )
        else:
            self.outputs = SharedOutputs(
                self._channels,
                self._records,
                clock,
                partial(self._announced, declared),
                instance=self._instance,
                every_ms=options.engines.beat_ms,
                settings=self._sending,
            )
        for adapter in self.adapters.values():
            self.outputs.hold(self._sealed(adapter))
        if options.engines is not None:
            for name in sorted(announced(self._records)):
                if name not in self.outputs.names:
                    make = partial(self._announced, declared)
                    self.outputs.hold(made_or_elsewhere(name, make))
        self.outputs.hold_absent(declared.registered_later)

    def _build_directory(self, declared: CommunicationConfig) -> None:
        options, clock = self._options, self._clock
        site = SiteDirectory(declared.peers, declared.collectives, declared.zone)
        self.directory = StoredDirectory(site, self._records, site=options.site)
        self._known: PeerDirectory = self.directory
        if options.callbacks != NO_CALLBACKS:
            loop = asyncio.get_running_loop()
            self._known = CallbackDirectory(self.directory, options.callbacks, loop, clock=clock)
        self._cached = CachedDirectory(self._known, clock)
        self.people = DirectoryChanges(
            self.directory,
            self._records,
            self._channels,
            clock,
            new_id=Ids(clock, Chance.from_machine()).new,
            adapters=lambda: self.outputs.names,
            built_in=BUILT_IN,
        )
        self.people.changed += [self._cached.forget, self.outputs.peer_changed]
        self.privacy = WorkerPrivacyFunctions(clock, (str(options.site.resolve()),))
        self._still_allowed = PrivacyRecheck(self._cached, self.privacy)

    def _build_logins(self) -> None:
        options, records, clock = self._options, self._records, self._clock
        passwords = Passwords(records, options.arrivals.passwords)
        self.authenticating = Authenticator(
            self._channels,
            records,
            clock,
            self._sessions,
            options.callbacks.authenticate or passwords.check,
            is_peer=self._is_peer,
        )
        links = LinkEditions(records, clock)
        self.authenticating.after_ending.append(links.end)
        self.logins = Logins(
            passwords,
            self.authenticating,
            self._is_peer,
            unknown=partial(self.directory.unknown, "peer"),
            others=links.peers,
        )
        self.people.changed.append(self.logins.peer_changed)

    def _build_inputs(self, declared: CommunicationConfig) -> None:
        channels, records, clock = self._channels, self._records, self._clock
        options = self._options
        self.services = MessageServices(
            channels,
            records,
            clock,
            options.services,
            send=lambda messages: self.arrivals.send(messages),
        )
        self.arrivals = Arrivals(
            channels,
            records,
            clock,
            self.authenticating,
            secret=self.secret,
            settings=options.arrivals.arriving,
            contents=self.services.infos,
        )
        self.inputs = Inputs(
            self.arrivals.publish, channels, records, clock, has_listeners=self._has_listeners
        )
        self.mail_questions = MailQuestions()
        """Has open questions once its ledger is set."""
        surroundings = InputContext(
            channels,
            clock,
            self.directory,
            self.secret,
            self.mail_questions,
            options.plugins,
        )
        self._site_inputs = SiteInputs(self.inputs, declared.inputs, surroundings)
        self.web_inputs = web_inputs_of(self._site_inputs)
        """Inputs by HTTP, by name: the web package opens an endpoint for each."""

    def _build_engine(self, declared: CommunicationConfig) -> None:
        options, records, clock = self._options, self._records, self._clock
        self.lookups = LookupCounts()
        """Receivers that could not be looked up."""
        self._parts = EngineParts(
            directory=self._cached,
            adapters=self.outputs.names,
            actions=dict(declared.actions),
            phrases=options.phrases,
            reader=self._reader,
            own_actions=options.own_actions,
            end_phrases=options.end_phrases,
            facts=options.facts,
            act_within_ms=declared.act_within_ms,
            contents=self.services.infos,
            route=self.services.routing.recipients,
            functions=self.privacy,
            retry=options.retry,
            declines=Declines(options.arrivals.arriving.declines),
            lookups=self.lookups,
            # Of several engines each may have callbacks that the others do not know.
            listening=None if options.engines is None else assume_listeners,
        )
        self.engine: CommunicationEngine | Cluster
        self._reloads: SiteReloads | None = None
        if options.engines is not None:
            self._build_cluster(declared, options.engines)
            return
        check_unshared(records)
        self.engine = CommunicationEngine(self._channels, records, clock, self._parts)
        self.outputs.engine = self.engine

    def _build_cluster(self, declared: CommunicationConfig, settings: ShareSettings) -> None:
        assert isinstance(self.outputs, SharedOutputs)
        self.engine = self.outputs.cluster = Cluster(
            self._channels,
            self._records,
            self._clock,
            instance=self._instance,
            parts=self._parts,
            adapters=lambda: [dispatch.adapter for dispatch in self.dispatches],
            settings=settings,
            dispatch=declared.sending,
            acts=self._options.acts,
            alone=self._work_beside() | {INPUTS: self._site_inputs.run_polled},
            may_go=self._may_go,
        )
        self._reloads = SiteReloads(
            self._records,
            self._clock,
            declared,
            instance=self._instance,
            every_ms=settings.beat_ms,
        )

    # --- changes while it runs ---

    async def take_over(
        self,
        declared: CommunicationConfig,
        actions: Mapping[str, Action],
        *,
        by: str,
        then: Callable[[], None] = lambda: None,
    ) -> list[PeopleChange]:
        """Takes over the people and actions of another version of the site file, and calls `then`:
        all at once, from the next batch on. Adapters that they need are started before; pending
        messages stay as they are. Returns the changes, which are logged.

        Of several engines only that of this process changes; call `announce_reload` afterwards.
        Raises Unsupported when several engines would need another adapter.
        """
        adapters = self._adapters_of(declared, but=self.outputs.names)
        if adapters and self._reloads is not None:
            raise Unsupported(
                f"the adapter {next(iter(adapters))} beside several engines",
                "a reload",
                hint="restart the engines one after the other",
            )
        for name, adapter in adapters.items():
            self.adapters[name] = adapter
            self._sending |= {name: declared.sending[name]} if name in declared.sending else {}
            await self.outputs.use(self._sealed(adapter))
        self._reader = TextReader(declared.zone, declared.language)
        directory = SiteDirectory(declared.peers, declared.collectives, declared.zone)
        is_logged = self._reloads is not None and self._reloads.is_following
        async with self.engine.between_batches():
            changes = await self.people.use_file(directory, by=by, is_logged=is_logged)
            self._parts.actions.clear()  # for engines that are made later
            self._parts.actions.update(actions)
            self.engine.use_actions(actions)
            then()
        if self._reloads is not None:
            self._reloads.has(declared)
        return changes

    async def announce_reload(self) -> None:
        """Makes other engines on the same records read their site files again."""
        if self._reloads is not None:
            await self._reloads.announce()

    def follow_reloads(self, reload: Callable[[], Awaitable[object]]) -> None:
        """Calls `reload`, which reads the site files of this process again, when another engine has
        done so.
        """
        if self._reloads is not None:
            self._reloads.follow = reload

    @property
    def can_take_over(self) -> bool:
        """Whether `take_over` may be called; otherwise the process has to be restarted."""
        return self._reloads is None or self._reloads.follow is not None

    def _adapters_of(
        self, declared: CommunicationConfig, *, but: Collection[str] = ()
    ) -> dict[str, OutputAdapter]:
        """New adapters that the site needs, without those of `but`."""
        wanted = tuple(name for name in declared.adapters() if name not in but)
        only = msgspec.structs.replace(declared, peers={}, actions={}, wanted=wanted)
        made = self._make_adapters(only)
        if declared.appends() and AppendAdapter.name not in but:
            append = self._options.append or self._append
            made[AppendAdapter.name] = AppendAdapter(append)
        return made

    def _announced(self, declared: CommunicationConfig, name: str) -> OutputAdapter:
        only = msgspec.structs.replace(
            declared, peers={}, actions={}, wanted=(name,), registered_later=()
        )
        return self._sealed(self._make_adapters(only)[name])

    @property
    def dispatches(self) -> list[Dispatch]:
        return self.outputs.dispatches()

    def _has_listeners(self) -> bool:
        return not isinstance(self.engine, CommunicationEngine) or self.engine.has_listeners()

    async def _report(self, outcomes: Sequence[OutcomeData]) -> None:
        """Reports outcomes directly: adapters and engine are in one process."""
        assert isinstance(self.engine, CommunicationEngine), "shares report for themselves"
        await self.engine.opened.wait()
        await self.engine.apply_outcomes(outcomes)

    async def _append(self, name: str, events: Sequence[Event]) -> AppendResult:
        return await self._channels.channel(name).append(events)

    def _may_go(self, delivery: Delivery, now_ms: int) -> bool:
        return self._still_allowed(delivery, now_ms)

    def _is_peer(self, name: str) -> bool:
        return self.directory.has(Identifier("peer", name)) or self._known.peer(name) is not None

    def link_for(self, message: str, peer: str) -> str:
        """The answer page of a message and peer; empty when the node has no address."""
        url = self._options.address.url
        return answer_link(url, self.secret, message, peer) if url else ""

    async def zone_of(self, peer: str) -> str:
        """The time zone of a peer, by default that of the site."""
        return (await self.reader_of(peer)).zone

    async def reader_of(self, peer: str) -> TextReader:
        """Zone and language of a peer, by default those of the site."""
        try:
            found = await run_blocking(partial(self._cached.peer, peer))
        except RapportError:  # a directory that fails delays no message
            found = None
        if found is None:
            return self._reader
        return TextReader(found.zone or self._reader.zone, found.language or self._reader.language)

    def work(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The background tasks by name, the last stage first; each may be restarted."""
        own = {**self.outputs.work(), "communication": self.engine.run}
        if self._reloads is None:
            return own | self._work_beside()
        # Only one process at a time does the rest: see Cluster.
        return own | {
            "communication.http_inputs": self._site_inputs.run_http,
            "communication.reloads": self._reloads.run,
        }

    def _work_beside(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return {
            INPUTS: self._site_inputs.run,
            "communication.arrivals": self.arrivals.run,
            **self.services.work(),
        }

    async def close(self) -> None:
        """Closes adapters and the process of privacy functions, after the tasks have ended."""
        privacy = partial(run_blocking, self.privacy.close)
        await close_all(
            [("inputs", self.inputs.close), ("outputs", self.outputs.close), ("privacy", privacy)]
        )
