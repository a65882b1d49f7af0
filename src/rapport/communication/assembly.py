"""The whole room from what a site declares: engine, adapters and dispatches. [CO-4, PO-10]"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from rapport.channel.channel import Appended, Channels
from rapport.communication.actions import Action, OwnAction, Phrases, nothing_said
from rapport.communication.adapters.append import Append, AppendAdapter
from rapport.communication.adapters.base import Delivery, OutputAdapter
from rapport.communication.adapters.build import make_adapters
from rapport.communication.adapters.incoming.build_inputs import (
    AllPeople,
    InputSurroundings,
    SiteInputs,
    web_inputs_of,
)
from rapport.communication.adapters.incoming.inputs import Inputs
from rapport.communication.adapters.mail.care import AskedByMail
from rapport.communication.adapters.outgoing.dispatch import Dispatch
from rapport.communication.adapters.outgoing.outcomes import OutcomeData
from rapport.communication.adapters.outgoing.outputs import Outputs
from rapport.communication.adapters.outgoing.still_allowed import StillAllowed
from rapport.communication.adapters.sealed import with_seals
from rapport.communication.adapters.web.page import OpenPages
from rapport.communication.answers import Declines, answer_link, answer_secret, answer_token
from rapport.communication.arrivals import Arrivals
from rapport.communication.blocking import run_blocking
from rapport.communication.cluster import (
    AdapterAnnouncements,
    Cluster,
    SiteReloads,
    announced,
    made_or_elsewhere,
)
from rapport.communication.cluster_leases import ShareSettings, check_unshared
from rapport.communication.config import ArrivalConfig, CommunicationConfig, ServicesConfig
from rapport.communication.delivery_state import DEFAULT_RETRY, RetryPolicy
from rapport.communication.directory import DirectoryChanges, PeopleChange, StoredDirectory
from rapport.communication.directory_callbacks import (
    NO_CALLBACKS,
    CachedDirectory,
    CallbackDirectory,
    Callbacks,
)
from rapport.communication.engine import CommunicationEngine
from rapport.communication.links import LinkEditions
from rapport.communication.message_plan import assume_listeners
from rapport.communication.message_services import MessageServices
from rapport.communication.peers import PeerDirectory, SiteDirectory
from rapport.communication.privacy import WorkerPrivacyFunctions
from rapport.communication.schedule import LookupCounts
from rapport.communication.sessions.authenticating import Authenticating
from rapport.communication.sessions.logins import Logins
from rapport.communication.sessions.passwords import Passwords
from rapport.communication.sessions.sessions import Sessions
from rapport.communication.templates import Facts, nothing_known
from rapport.core.errors import RapportError, Unsupported
from rapport.core.event import Event
from rapport.core.message import Identifier, Message
from rapport.kernel.chance import Chance, Ids
from rapport.kernel.clock import Clock
from rapport.kernel.ending import end_each
from rapport.kernel.plugins import Plugins
from rapport.store.base import RecordStore

INPUTS = "communication.inputs"
"""The task that runs what the site declares."""


def _nowhere() -> str:
    return ""


class Assembly:
    """What a node starts and stops: `work()` names the background tasks, `close` ends adapters."""

    def __init__(
        self,
        channels: Channels,
        records: RecordStore,
        clock: Clock,
        declared: CommunicationConfig,
        *,
        phrases: Phrases | Mapping[str, Sequence[str]],
        public_url: Callable[[], str] = _nowhere,
        plugins: Plugins | None = None,
        retry: RetryPolicy = DEFAULT_RETRY,
        facts: Facts = nothing_known,
        own_action: OwnAction = nothing_said,
        append: Append | None = None,
        site: Path = Path(),
        entrance: ArrivalConfig | None = None,
        services: ServicesConfig | None = None,
        callbacks: Callbacks = NO_CALLBACKS,
        engines: ShareSettings | None = None,
        acts: bool = True,
    ) -> None:
        """`phrases` gives the action phrases of a policy's version; `public_url` is asked at each
        sending: a node knows its address only when its doors are open; empty = no link in messages.
        `append` is how actions append their events; None = straight into the channel. `site` is the
        site's directory, where privacy functions lie. With `callbacks` it is made in the running
        loop, where coroutines among them run. With `engines` other processes work on the same
        channels and records; `acts`: this one knows the policies.

        Reads the secret from the records (blocks briefly). Raises UnknownName or Unsupported for an
        adapter that is not installed.
        """
        self.secret = answer_secret(records)
        self._public_url, self._zone = public_url, declared.zone
        self.pages = OpenPages()
        self._make_adapters = partial(
            make_adapters,
            link_for=self.link_for,
            plugins=plugins or Plugins(),
            proof_for=partial(answer_token, self.secret),
            pages=self.pages,
            clock=clock,
            zone_of=self.zone_of,
        )
        self._append: Append = append or partial(_append, channels)
        self.adapters = self._adapters_of(declared)
        self._sending = dict(declared.sending)
        self.outputs = Outputs(
            channels,
            records,
            clock,
            report=self._report,
            is_decided=self._is_decided,
            recall=self._recall_decision,
            may_go=self._may_go,
            settings=self._sending,
            shared=engines is not None,
        )
        entrance = entrance or ArrivalConfig()
        sessions = Sessions(records, clock, entrance.sessions)
        self._sealed = partial(with_seals, sessions=sessions, clock=clock)
        for adapter in self.adapters.values():
            self.outputs.hold(self._sealed(adapter))
        announced_here = partial(self._announced, declared)
        for name in sorted(announced(records) if engines is not None else ()):
            if name not in self.outputs.names:
                self.outputs.hold(made_or_elsewhere(name, announced_here))
        self.outputs.hold_absent(declared.registered_later)
        self.directory = StoredDirectory(
            SiteDirectory(declared.peers, declared.collectives), records, site=site
        )
        self._known: PeerDirectory = self.directory
        if callbacks != NO_CALLBACKS:
            loop = asyncio.get_running_loop()
            self._known = CallbackDirectory(self.directory, callbacks, loop, clock=clock)
        cached = self._cached = CachedDirectory(self._known, clock)
        self.people = DirectoryChanges(
            self.directory,
            records,
            channels,
            clock,
            new_id=Ids(clock, Chance.from_machine()).new,
            adapters=lambda: self.outputs.names,
        )
        self.people.changed += [cached.forget, self.outputs.peer_changed]
        passwords = Passwords(records, entrance.passwords)
        self.authenticating = Authenticating(
            channels,
            records,
            clock,
            sessions,
            callbacks.authenticate or passwords.check,
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
        self.services = MessageServices(
            channels, records, clock, services or ServicesConfig(), send=self._say
        )
        self.arrivals = Arrivals(
            channels,
            records,
            clock,
            self.authenticating,
            secret=self.secret,
            settings=entrance.arriving,
            contents=self.services.infos,
        )
        self.inputs = Inputs(
            self.arrivals.publish, channels, records, clock, is_heard=self._is_heard
        )
        self.asked_by_mail = AskedByMail()
        """Knows open questions once it is given the ledger."""
        self._site_inputs = SiteInputs(
            self.inputs,
            declared.inputs,
            InputSurroundings(
                channels,
                clock,
                AllPeople(self.directory),
                self.secret,
                self.asked_by_mail,
                plugins or Plugins(),
            ),
        )
        self.web_inputs = web_inputs_of(self._site_inputs)
        """Inputs by HTTP, by name: the web room opens a door for each."""
        self.privacy = WorkerPrivacyFunctions(clock, (str(site.resolve()),))
        self._still_allowed = StillAllowed(cached, self.privacy)
        self.lookups = LookupCounts()
        """What waits because nobody can say who a receiver is."""
        self._actions = dict(declared.actions)
        """What is done about phrases, for engines that are made later."""
        make_engine = partial(
            CommunicationEngine,
            clock=clock,
            directory=cached,
            actions=self._actions,
            phrases=phrases,
            adapters=self.outputs.names,
            retry=retry,
            facts=facts,
            own_action=own_action,
            functions=self.privacy,
            route=self.services.routing.recipients,
            declines=Declines(entrance.arriving.declines),
            lookups=self.lookups,
            contents=self.services.infos,
            act_within_ms=declared.act_within_ms,
            # Of several engines each may have callbacks that the others do not know.
            is_heard=None if engines is None else assume_listeners,
        )
        self.engine: CommunicationEngine | Cluster
        self._registrations: AdapterAnnouncements | None = None
        self._reloads: SiteReloads | None = None
        if engines is None:
            check_unshared(records)
            self.engine = make_engine(channels, records)
            self.outputs.handle_accepted = self.engine.handle_accepted
        else:
            instance = Ids(clock, Chance.from_machine()).new()
            self.engine = Cluster(
                channels,
                records,
                clock,
                instance=instance,
                make_engine=make_engine,
                adapters=lambda: [dispatch.adapter for dispatch in self.dispatches],
                settings=engines,
                dispatch=declared.sending,
                acts=acts,
                alone=self._work_beside() | {INPUTS: self._site_inputs.run_without_doors},
                route=self.services.routing.recipients,
                may_go=self._may_go,
            )
            self.outputs.carrier = self._registrations = AdapterAnnouncements(
                records,
                clock,
                self.outputs,
                announced_here,
                self.engine.carry,
                instance=instance,
                every_ms=engines.beat_ms,
            )
            self._reloads = SiteReloads(
                records, clock, declared, instance=instance, every_ms=engines.beat_ms
            )

    async def take_over(
        self,
        declared: CommunicationConfig,
        actions: Mapping[str, Action],
        *,
        by: str,
        then: Callable[[], None] = lambda: None,
    ) -> list[PeopleChange]:
        """The people of another site file, what is done about phrases, and `then` what else follows
        from them: from the next batch on, all at once. Adapters that are needed now are there
        before; messages under way stay as they are. Gives who changed, told in `log`.

        Of several engines this is about the one of this process; `tell_others` when all is well.
        Raises Unsupported when those would need an adapter that was not there at their start.
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
        self._zone = declared.zone
        directory = SiteDirectory(declared.peers, declared.collectives)
        is_told = self._reloads is not None and self._reloads.is_following
        async with self.engine.between_batches():
            said = await self.people.take_file(directory, by=by, is_told=is_told)
            self._actions.clear()
            self._actions.update(actions)
            self.engine.use_actions(actions)
            then()
        if self._reloads is not None:
            self._reloads.has(declared)
        return said

    async def tell_others(self) -> None:
        """The people of this process are those of the site from now on: other engines on the same
        records read their files again. Nothing to do for one that is alone.
        """
        if self._reloads is not None:
            await self._reloads.announce()

    def follow_reloads(self, reload: Callable[[], Awaitable[object]]) -> None:
        """Calls this, which reads the site files of this process again, when another engine has
        taken other people over.
        """
        if self._reloads is not None:
            self._reloads.follow = reload

    @property
    def can_take_over(self) -> bool:
        """Whether `take_over` may be called; else the process has to be started again."""
        return self._reloads is None or self._reloads.follow is not None

    def _adapters_of(
        self, declared: CommunicationConfig, *, but: Collection[str] = ()
    ) -> dict[str, OutputAdapter]:
        """Those that are needed, without those that are there."""
        wanted = tuple(name for name in declared.adapters() if name not in but)
        only = msgspec.structs.replace(declared, peers={}, actions={}, wanted=wanted)
        made = self._make_adapters(only)
        if declared.appends() and AppendAdapter.name not in but:
            made[AppendAdapter.name] = AppendAdapter(self._append)
        return made

    def _announced(self, declared: CommunicationConfig, name: str) -> OutputAdapter:
        """The adapter that another engine announced, where its kind is known."""
        only = msgspec.structs.replace(
            declared, peers={}, actions={}, wanted=(name,), registered_later=()
        )
        return self._sealed(self._make_adapters(only)[name])

    @property
    def dispatches(self) -> list[Dispatch]:
        """What carries deliveries to the adapters, as there are now."""
        return self.outputs.dispatches()

    def _is_heard(self) -> bool:
        """Whether notification callbacks are registered, as far as this process can know."""
        return not isinstance(self.engine, CommunicationEngine) or self.engine.is_heard()

    async def _report(self, outcomes: Sequence[OutcomeData]) -> None:
        """Hands outcomes over without a channel between: adapters and engine are in one process."""
        assert isinstance(self.engine, CommunicationEngine), "shares report for themselves"
        await self.engine.opened.wait()
        await self.engine.take_outcomes(outcomes)

    async def _say(self, messages: Sequence[Message]) -> None:
        """Sends messages of the node itself."""
        await self.arrivals.send(messages)

    def _is_decided(self, message: str, peer: str) -> bool:
        return self.engine.is_decided(message, peer)

    def _recall_decision(self, message: str, peer: str) -> bool | None:
        return self.engine.recall_decision(message, peer)

    def _may_go(self, delivery: Delivery, now_ms: int) -> bool:
        return self._still_allowed(delivery, now_ms)

    def _is_peer(self, name: str) -> bool:
        return self.directory.has(Identifier("peer", name)) or self._known.peer(name) is not None

    def link_for(self, message: str, peer: str) -> str:
        """The page on which this peer answers this message; empty when the node has no address."""
        url = self._public_url()
        return answer_link(url, self.secret, message, peer) if url else ""

    async def zone_of(self, peer: str) -> str:
        """The zone on whose clock a peer reads times: their own, else the site's."""
        try:
            found = await run_blocking(partial(self._cached.peer, peer))
        except RapportError:  # a directory that does not answer keeps no message back
            found = None
        return (found.zone if found is not None else "") or self._zone

    def work(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The tasks to run, by name, the last stage first; each may be started again after a
        failure.
        """
        own = {**self.outputs.work(), "communication": self.engine.run}
        if self._registrations is None or self._reloads is None:
            return own | self._work_beside()
        # Only one process at a time does the rest: see Sharing.
        return own | {
            "communication.doors": self._site_inputs.run_doors,
            "communication.media": self._registrations.run,
            "communication.reloads": self._reloads.run,
        }

    def _work_beside(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return {
            INPUTS: self._site_inputs.run,
            "communication.arrivals": self.arrivals.run,
            **self.services.work(),
        }

    async def close(self) -> None:
        """Lets go of the adapters' connections and of the process that privacy functions run in;
        called after the tasks have ended.
        """
        privacy = partial(run_blocking, self.privacy.close)
        await end_each(
            [("inputs", self.inputs.close), ("outputs", self.outputs.close), ("privacy", privacy)]
        )


async def _append(channels: Channels, name: str, events: Sequence[Event]) -> Appended:
    return await channels.channel(name).append(events)
